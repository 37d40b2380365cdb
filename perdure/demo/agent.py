"""The agent `demo`: a worker that is given no agents serves it. It needs no key, since its model follows a script."""

import asyncio
import re
from typing import Final

from perdure.agent import Agent, Agents
from perdure.testing import Asked, Call, Reply, ScriptedModel

_CHUNK_CHARS: Final = 6
_CHUNK_DELAY_S: Final = 0.03
_WEATHER: Final = {"Berlin": "rain, 9 °C", "Cairo": "sun, 31 °C", "Oslo": "snow, -4 °C", "Paris": "clouds, 14 °C"}


def answer(asked: Asked) -> Reply:
    """Call `get_weather` for every city that the user names, all at once, and tell what came back."""
    if asked.results:
        return _say("The weather now. " + " ".join(asked.results))
    words = asked.user_text
    cities = [city for city in _WEATHER if re.search(rf"\b{city}\b", words, re.IGNORECASE)]
    if cities:
        return _say("I look it up.", *(Call("get_weather", {"city": city}) for city in cities))
    return _say(
        f"You said: {words!r}. I follow a script and know one thing: the weather in {', '.join(_WEATHER)}. "
        "Name some and I ask for all at once. Interrupt me, or kill the worker while I answer: the thread goes on."
    )


agent: Final = Agent("demo", model=ScriptedModel(answer, name="scripted-demo"), instructions="Tell the weather.")


@agent.tool(retry_safe=True)
async def get_weather(city: str) -> str:
    """The weather in a city, now."""
    await asyncio.sleep(1)  # long enough to be seen, and to be interrupted
    return f"{city}: {_WEATHER.get(city, 'unknown')}."


agents: Final = Agents([agent])


def _say(*items: str | Call) -> Reply:
    return Reply(*items, chunk_chars=_CHUNK_CHARS, delay_s=_CHUNK_DELAY_S)
