"""The numbered cases of the sheet on branches, runs, pauses and persistence, on a real thread."""
