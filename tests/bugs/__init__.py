"""Failures that other runtimes have had, each test named after its case; these need the whole stack."""
