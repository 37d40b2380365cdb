"""The documentation is true: its programs run and its commands exist."""
