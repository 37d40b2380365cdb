"""Stores: where a conversation is kept."""
