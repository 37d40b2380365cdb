"""An agent of a tool server for worker processes that are killed; the server lives in the test."""

import os
from datetime import timedelta

from perdure.agent import Agent, Agents
from perdure.rap.toolset import RapToolset
from perdure.testing import Asked, Call, Reply, ScriptedModel

URL, EXPIRES_S = "CHAOS_RAP_URL", "CHAOS_RAP_EXPIRES_S"


def agents() -> Agents:
    """One agent; it calls what the words name, as in `call ask safe`, and repeats everything else."""
    expires_s = os.environ.get(EXPIRES_S)
    toolset = RapToolset(os.environ[URL], expires=timedelta(seconds=float(expires_s)) if expires_s else None)
    return Agents([Agent("chaos", model=ScriptedModel(_script), toolsets=[toolset])])


def _script(asked: Asked) -> Reply:
    if asked.results:
        return Reply(f"heard {' | '.join(asked.results)}")
    verb, *tools = asked.user_text.split()
    return Reply(*(Call(tool) for tool in tools)) if verb == "call" else Reply(f"heard {asked.user_text}")
