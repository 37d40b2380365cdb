"""Chaos: workers, servers and writers are killed, stopped and doubled, and the thread must not notice."""
