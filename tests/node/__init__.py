"""Ours beside what others have published, run in Node."""
