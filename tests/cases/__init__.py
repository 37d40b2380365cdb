"""The numbered cases of branches, runs, pauses and persistence (docs/reference/cases.md), on a real thread."""
