"""Recorded Temporal histories of every path of a thread: `python -m tests.histories.record` makes them anew.

They are kept whole. A replay that ends before the last task of a run would miss what the last task does wrong.
"""
