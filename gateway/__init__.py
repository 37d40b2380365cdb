"""The gateway: the HTTP side of threads, an ASGI app."""
