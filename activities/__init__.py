"""Activities: everything that touches the world on behalf of a workflow."""
