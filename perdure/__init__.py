"""Durable agent threads on Temporal. Import from the submodules; this file stays empty on purpose."""
