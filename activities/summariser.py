"""Asks a model to sum up a part of a conversation, in as many calls as it takes."""

from dataclasses import dataclass, replace
from typing import Final

from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import ModelContextWindowExceededError
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart

from activities.model_choice import Candidate, Chosen, ModelChoice
from activities.model_errors import may_fall_back
from activities.model_messages import request_parameters
from activities.prices import usage_of, usage_of_unanswered
from perdure import models
from perdure.agent import Agent
from perdure.compaction import Compaction, window
from perdure.contract import CompactRequest, CompleteRequest
from perdure.errors import ModelError
from perdure.limits import Price
from perdure.messages import Usage
from perdure.records import Path
from perdure.summary_plan import Plan
from perdure.summary_prompt import INSTRUCTIONS, earlier, pieces, prompt
from perdure.summary_text import clipped

PIECE_CHARS: Final = 400_000
"""A piece of a transcript has no more, whatever the window: at most 1.6 MB, far below every provider's limit."""

UNKNOWN_PIECE_CHARS: Final = 100_000
"""The same where nobody knows the window. If it is too much, the model says so."""

LEAST_PIECE_CHARS: Final = 300

SHARE: Final = 0.6
"""Of the window, for all of a request; the rest is for the answer, and for estimates that are wrong."""

HALVINGS: Final = 6
"""How often a request may be too long for the model before it is given up: then a piece is a 64th."""


class Spent:
    """What the calls of one try have cost so far, those that failed included."""

    def __init__(self) -> None:
        self.usage = Usage()


class Summariser:
    """Asks the models that sum up: those of the agent, or the one that its `Compaction` names."""

    def __init__(self, choice: ModelChoice) -> None:
        self._choice = choice

    async def window(self, agent: Agent, compaction: Compaction, path: Path, request: CompactRequest) -> int | None:
        """The tokens that the thread's own model takes, None if nobody knows.

        Raises:
            ConfigurationError: if the model cannot be used.
        """
        if compaction.context_window is not None:
            return compaction.context_window
        first = self._own(agent, path, request)[0]
        return window(compaction, (await self._choice.open(first)).model.profile)

    async def sum_up(self, agent: Agent, request: CompactRequest, plan: Plan, spent: Spent) -> str:
        """The summary of what the plan leaves out, blank if a model said nothing. Adds to `spent` whatever happens.

        Raises:
            ConfigurationError: if no model can be used.
            Exception: whatever a provider's client raises, of the last model that was asked.
        """
        compaction = agent.compaction or Compaction()
        candidates = self._candidates(agent, compaction, plan.cut.covered, request)
        for candidate in candidates:
            try:
                chosen = await self._choice.open(candidate)
                return await self._by(chosen, compaction, plan, _price(agent, compaction), spent)
            except Exception as error:  # of any client: the next model may answer, and the last one's error counts
                if candidate is candidates[-1] or not may_fall_back(error):
                    raise
        raise AssertionError("bug: there is no model to ask")

    def _candidates(
        self, agent: Agent, compaction: Compaction, path: Path, request: CompactRequest
    ) -> tuple[Candidate, ...]:
        own = self._own(agent, path, request)
        if compaction.model is None:
            return own
        settings = dict(agent.settings)
        if not _same_provider(compaction.model, agent.model):
            # Its server and its key are those of the agent's own model.
            settings = {k: v for k, v in settings.items() if k not in (models.BASE_URL, models.API_KEY_ENV)}
        return (replace(own[0], model=compaction.model, settings=settings, continues=False),)

    def _own(self, agent: Agent, path: Path, request: CompactRequest) -> tuple[Candidate, ...]:
        """The thread's models. What single messages ask for is theirs alone."""
        call = CompleteRequest(thread_id=request.thread_id, agent=request.agent, turn=0)
        own = self._choice.candidates(agent, path.with_(messages=path.messages[:1]), call)
        return tuple(replace(candidate, continues=False) for candidate in own)

    async def _by(self, chosen: Chosen, compaction: Compaction, plan: Plan, price: Price | None, spent: Spent) -> str:
        size, limit = _sizes(chosen, compaction, plan)
        asking = _Asking(chosen, compaction.instructions or INSTRUCTIONS, price, spent, limit)
        for halving in range(HALVINGS + 1):
            try:
                return await asking.roll(plan.cut.covered, max(size >> halving, LEAST_PIECE_CHARS))
            except ModelContextWindowExceededError:
                if halving == HALVINGS or size >> halving <= LEAST_PIECE_CHARS:
                    raise
        raise AssertionError("bug: the last halving neither answers nor raises")


@dataclass(frozen=True)
class _Asking:
    """One model, and how it is asked; `limit` are the characters of a summary."""

    chosen: Chosen
    instructions: str
    price: Price | None
    spent: Spent
    limit: int

    async def roll(self, covered: Path, piece_chars: int) -> str:
        """Piece by piece, each on top of the summary of all before it: what an earlier compaction left comes once."""
        text = earlier(covered.summary)
        before: list[str] = []
        if len(text) > self.limit:
            # It was made for more room than there is now; nothing of it is dropped unread.
            before, text = [text[at : at + piece_chars] for at in range(0, len(text), piece_chars)], ""
        for piece in (*before, *pieces(covered, piece_chars)):
            text = clipped((await self._ask(prompt(text, piece, self.limit))).strip(), self.limit)
            if not text:
                return ""
        return text

    async def _ask(self, words: str) -> str:
        messages: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(content=words)])]
        used: Usage | None = None
        try:
            # Streamed, though nobody reads along: providers refuse or drop long answers that are not.
            async with model_request_stream(
                self.chosen.model,
                messages,
                model_settings=self.chosen.settings,
                model_request_parameters=request_parameters(self.instructions, ()),
            ) as stream:
                try:
                    async for _ in stream:
                        pass
                finally:
                    used = usage_of(stream.get(), self.price, messages)
                return _text(stream.get())
        finally:
            self.spent.usage += used or usage_of_unanswered(messages, self.chosen.model, self.price)


def _text(response: ModelResponse) -> str:
    if response.finish_reason == "error":
        raise ModelError("The provider broke the summary off with an error.", retryable=True)
    if response.finish_reason == "content_filter":
        raise ModelError("The provider's content filter stopped the summary.", retryable=False)
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    # Cut off by the output limit it still is a summary of nearly everything; the note says that something is missing.
    cut_off = response.finish_reason == "length" and text.strip()
    return clipped(text, max(len(text.rstrip()) - 1, 1)) if cut_off else text


def _sizes(chosen: Chosen, compaction: Compaction, plan: Plan) -> tuple[int, int]:
    """The characters of a piece and those of a summary that a request has room for, besides the instructions."""
    told = compaction.context_window
    own = told if compaction.model is None else None
    # Of another model that does not tell, nothing better is known than what the conversation's takes.
    tokens: int | None = own or chosen.model.profile.get("context_window") or told
    if tokens is None:
        return UNKNOWN_PIECE_CHARS, plan.limit
    around = len(compaction.instructions or INSTRUCTIONS) + len(prompt("x", "", plan.limit))
    room = int(SHARE * tokens * plan.chars_per_token) - around
    # The summary may be one for a conversation whose model takes far more.
    limit = min(plan.limit, max(room // 2, LEAST_PIECE_CHARS))
    return min(max(room - limit, LEAST_PIECE_CHARS), PIECE_CHARS), limit


def _price(agent: Agent, compaction: Compaction) -> Price | None:
    """The agent's own price is that of its own model."""
    return agent.price if compaction.model is None else None


def _same_provider(model: object, other: object) -> bool:
    if not isinstance(model, str) or not isinstance(other, str):
        return False
    return models.provider_of(model) == models.provider_of(other)
