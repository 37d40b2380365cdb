"""Workflows: deterministic, sequence only."""
