"""The command `perdure`: `main` finds the commands, each of which is a module of this package."""
