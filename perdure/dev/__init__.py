"""Servers and processes for development: Temporal's dev server, a supervised worker, `perdure dev` itself."""
