"""Tests of the workflows, on a real Temporal server and a real PostgreSQL."""
