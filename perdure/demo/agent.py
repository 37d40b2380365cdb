"""The agent `demo`: a concierge with a few tools. A worker that is given no agents serves it.

Its model follows a script, so it needs no key; PERDURE_DEMO_MODEL names a real one instead. Words that it streams name
the worker's process: so one can see which process said them, and that none of a killed one's words stay.
"""

import asyncio
import os
import re
from datetime import timedelta
from typing import Any, Final

from perdure.agent import Agent, Agents
from perdure.demo.environment import MODEL_VARIABLE, RUNS_VARIABLE
from perdure.demo.tool_runs import ToolRuns
from perdure.testing import Asked, Call, Reply, ScriptedModel

WEATHER_S: Final = 0.5
BOOKING_S: Final = 2.0
_CHUNK_CHARS: Final = 7
_CHUNK_DELAY_S: Final = 0.02
_WEATHER: Final = {"Berlin": "rain, 9 °C", "Cairo": "sun, 31 °C", "Oslo": "snow, -4 °C", "Paris": "clouds, 14 °C"}
_PLACE: Final = "Chez Marie"
_INSTRUCTIONS: Final = (
    "You are a concierge. Use the tools for weather and tables; call all that you need at once, in parallel. "
    "If a result says that the outcome is unknown, look with find_booking and never book a second time. "
    "Asked for a story or an explanation, write at least 200 words without using a tool."
)


def answer(asked: Asked) -> Reply:
    """What the scripted model says: it knows cities, one restaurant, two stories, and how to be careful."""
    if asked.results:
        return _after(asked)
    words = asked.user_text.lower()
    if "story" in words:
        return _say(_story())
    if "worker" in words:
        return _say(_explanation())
    cities = sorted((words.index(city.lower()), city) for city in _WEATHER if city.lower() in words)
    calls = [Call("get_weather", {"city": city}) for _, city in cities]
    if "table" in words:
        calls.insert(0, Call("book_table", {"restaurant": _PLACE, "people": _people(words)}))
    if calls:
        return _say("I see to it.", *calls)
    if "thank" in words:
        return _say("You are welcome. All of this is written down, whoever of us is killed next.")
    return _say(
        f"I am the concierge, in process {os.getpid()}. I follow a script: I know the weather in "
        f"{', '.join(_WEATHER)}, I book tables at {_PLACE}, I tell a story, and I explain what happens when a worker "
        "dies. Interrupt me, or kill my worker while I answer: the thread goes on."
    )


def demo_agent(model: Any) -> Agent:
    """The agent with a model: a name, or a model object."""
    agent = Agent("demo", model=model, instructions=_INSTRUCTIONS)
    runs = ToolRuns.at(os.environ.get(RUNS_VARIABLE))

    @agent.tool(retry_safe=True)
    async def get_weather(city: str) -> str:
        """The weather in a city, now."""
        with runs.record("get_weather", city=city):
            await asyncio.sleep(WEATHER_S)  # long enough to be seen, and to be interrupted
            return f"{city}: {_WEATHER.get(city, 'mild, 18 °C')}."

    @agent.tool(timeout=timedelta(minutes=1))
    async def book_table(restaurant: str, people: int) -> str:
        """Book a table for tonight. Twice means two tables, so nothing may run it twice."""
        with runs.record("book_table", restaurant=restaurant, people=people):
            await asyncio.sleep(BOOKING_S)  # the restaurant has taken it down; its confirmation takes a while
            return f"A table for {people} at {restaurant} is booked."

    @agent.tool(retry_safe=True)
    async def find_booking(restaurant: str) -> str:
        """Look into the restaurant's book."""
        booked = [run for run in runs.read() if run.tool == "book_table" and run.arguments["restaurant"] == restaurant]
        with runs.record("find_booking", restaurant=restaurant):
            tables = ", ".join(f"one for {run.arguments['people']}" for run in booked) or "none"
            return f"Tables booked at {restaurant}: {tables}."

    return agent


agent: Final = demo_agent(os.environ.get(MODEL_VARIABLE) or ScriptedModel(answer, name="scripted-demo"))
agents: Final = Agents([agent])


def _after(asked: Asked) -> Reply:
    results = asked.results
    if any("outcome is unknown" in result for result in results):
        known = " ".join(result for result in results if "outcome is unknown" not in result)
        return _say(
            f"Nobody can tell whether the table was booked, so I look instead of booking again. {known}",
            Call("find_booking", {"restaurant": _PLACE}),
        )
    if any(result.startswith("Tables booked") for result in results):
        return _say(f"It was booked before the worker died, and only once. {results[-1]}")
    return _say("Here you are. " + " ".join(results))


def _story() -> str:
    return (
        f"Process {os.getpid()} tells: Once upon a time there was a thread that never ended. "
        "Every evening somebody pulled the plug, and every morning it went on in the middle of its sentence. "
        "People wondered how it could know what it had said, for nobody in the house remembered anything. "
        "The thread only smiled, for it had written everything down before it said the next word, "
        "and so it told its story through storms and deploys, and if nobody has stopped it, it tells it still."
    )


def _explanation() -> str:
    return (
        f"Process {os.getpid()} speaks. What you read now is a draft in the turn buffer; it becomes history only when "
        "the whole step is synced. If my process dies, Temporal misses my heartbeat, another worker asks the model "
        "again, and the draft is void. So you never read half an answer twice."
    )


def _people(words: str) -> int:
    number = re.search(r"\d+", words)
    return int(number.group()) if number else 2


def _say(*items: str | Call) -> Reply:
    return Reply(*items, chunk_chars=_CHUNK_CHARS, delay_s=_CHUNK_DELAY_S)
