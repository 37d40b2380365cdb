"""Benchmarks: one script for each figure. Each starts what it needs, stops it, and prints one line of JSON last."""
