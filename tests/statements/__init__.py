"""What must hold of context providers, history and sessions: each statement is a test that carries its number."""
