"""Conversations that are made shorter for the model: cases from bug reports, statements, failures, long talks."""
