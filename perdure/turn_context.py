"""What an agent's context providers said for a model call, kept so that a retry does not ask them again."""

from typing import Literal

from perdure.codec import Text, Wire


class ContextMessage(Wire):
    """Words that a provider puts before the model. They are nobody's input, whatever their role."""

    text: Text
    role: Literal["user", "assistant"] = "user"


class ProviderContext(Wire):
    """What one provider said. `tools` are the names of those that it offers; None stands for all that it declares.

    `replace`, if it is not None, is what the model reads instead of the conversation before this turn. `problem` says
    why an optional provider was left out.
    """

    source: Text
    instructions: Text = ""
    messages: tuple[ContextMessage, ...] = ()
    tools: tuple[Text, ...] | None = None
    replace: tuple[ContextMessage, ...] | None = None
    problem: Text | None = None


class TurnContext(Wire):
    """What all providers said, in the order in which the agent declares them."""

    providers: tuple[ProviderContext, ...] = ()

    @property
    def instructions(self) -> str:
        """The instructions of all, in order, with a blank line between."""
        return "\n\n".join(text for one in self.providers if (text := one.instructions.strip()))

    @property
    def problems(self) -> tuple[str, ...]:
        """Why providers were left out."""
        return tuple(one.problem for one in self.providers if one.problem)
