"""What a person sees and types: Temporal's UI in a browser, Temporal's command line."""
