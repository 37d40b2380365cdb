"""What an agent's context providers said for a model call, kept so that a retry does not ask them again."""

from collections.abc import Mapping
from typing import Literal

from perdure.codec import Text, Wire


class ContextMessage(Wire):
    """Words that a provider puts before the model. They are nobody's input, whatever their role."""

    text: Text
    role: Literal["user", "assistant"] = "user"


class ProviderContext(Wire):
    """What one provider said before the model call `step` of a turn.

    `tools` are the names of those that it offers; None stands for all that it declares. `replace`, if it is not None,
    is what the model reads instead of the conversation before this turn. `problem` says why an optional provider was
    left out.
    """

    source: Text
    instructions: Text = ""
    messages: tuple[ContextMessage, ...] = ()
    tools: tuple[Text, ...] | None = None
    replace: tuple[ContextMessage, ...] | None = None
    problem: Text | None = None
    step: int = 0


class TurnContext(Wire):
    """What all providers said for the model call `step`, in the order in which the agent declares them.

    What was said before earlier calls of the turn is in it too, the oldest first: a message stays where it was read
    first, so that each request of a turn begins with the one before it. Of instructions, tools and replacements the
    newest counts.
    """

    providers: tuple[ProviderContext, ...] = ()
    step: int = 0

    @property
    def newest(self) -> Mapping[str, ProviderContext]:
        """What each provider said last, in the agent's order."""
        return {one.source: one for one in self.providers}

    @property
    def instructions(self) -> str:
        """The instructions of all, in order, with a blank line between."""
        return "\n\n".join(text for one in self.newest.values() if (text := one.instructions.strip()))

    @property
    def replace(self) -> tuple[ContextMessage, ...] | None:
        """What is read instead of the conversation before this turn, one provider's after the other's."""
        given = [one.replace for one in self.newest.values() if one.replace is not None]
        return tuple(message for messages in given for message in messages) if given else None

    def messages(self, step: int) -> tuple[ContextMessage, ...]:
        """What stands before the model call `step`: of the first before the turn's words, of others at the end.

        That is, of a later one after the results of the step before it, and before what the model answered.
        """
        return tuple(message for one in self.providers if one.step == step for message in one.messages)

    @property
    def problems(self) -> tuple[str, ...]:
        """Why providers were left out."""
        return tuple(one.problem for one in self.newest.values() if one.problem)
