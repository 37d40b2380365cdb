"""The demo: agents that need no key."""
