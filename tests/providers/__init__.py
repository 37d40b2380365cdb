"""The real clients of the providers, against local servers that speak their streaming formats."""
