"""How the demo's command tells its workers what to use. Apart from the agent, whose model library is slow to load."""

from typing import Final

MODEL_VARIABLE: Final = "PERDURE_DEMO_MODEL"
"""Names a real model; empty or absent means the scripted one."""

RUNS_VARIABLE: Final = "PERDURE_DEMO_RUNS"
"""Names the file in which all workers record the runs of their tools."""
