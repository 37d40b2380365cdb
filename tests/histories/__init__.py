"""Recorded Temporal histories of every path of a thread, and what records them."""
