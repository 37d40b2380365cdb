"""Names of models as they are typed: what cannot be one is refused before anything is begun with it."""

from typing import Annotated, Final

import typer

from perdure.codec import clip
from perdure.errors import ConfigurationError, UsageError

_TYPED_CHARS: Final = 60

Unchecked = Annotated[
    bool,
    typer.Option(
        "--unchecked", help="Take the model's name as it is: the agent's own server, or its list of models, knows it."
    ),
]


def model_typed(name: str | None, *, unchecked: bool = False) -> str | None:
    """The name of a model as it was typed, refused if no provider can have it; None if it was left out.

    Whether the provider knows the model, and whether a worker has its key, is told with the answer. An agent whose own
    server or list of models has other names is known to its workers alone, so `unchecked` takes any name.

    Raises:
        UsageError: in a sentence that says what to do.
    """
    if name is None or (unchecked and name.strip()):
        return name
    if not name.strip():
        raise UsageError("The model's name is empty: name it provider:model, for instance openai:gpt-5.")
    from perdure.models import check_name  # takes a second to import, and most commands name no model

    try:
        check_name(name)
    except ConfigurationError as error:
        why = str(error).replace(repr(name), repr(clip(name, _TYPED_CHARS))).rstrip(".")
        raise UsageError(f"{why} (--unchecked takes a name that only the agent's own server knows).") from error
    return name
