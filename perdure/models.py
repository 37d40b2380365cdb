"""Models by name: `openai:gpt-5`, `anthropic:claude-sonnet-4-5`, whatever pydantic-ai knows, any compatible server.

For a server that speaks OpenAI's protocol give the agent `settings={"base_url": "http://localhost:11434/v1"}`, with
`"api_key_env": "MY_KEY"` if it wants a key, or set OPENAI_BASE_URL for every `openai:` model of the process. OpenAI has
two interfaces and other people's servers speak the older one, so a base URL means chat completions unless the name
says `openai-responses:`.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, cast

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from perdure.errors import ConfigurationError

BASE_URL, API_KEY_ENV = "base_url", "api_key_env"
_OPENAI_HOST = "https://api.openai.com"
_openai_kinds = ("openai", "openai-chat", "openai-responses")
_key_variable = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN)\b")


def resolve(model: str | Model[Any], settings: Mapping[str, Any] | None = None) -> Model[Any]:
    """The model object for a name; an object is returned as it is. Nothing is sent anywhere.

    Args:
        model: `provider:name`, or a pydantic-ai model.
        settings: the agent's settings; only `base_url` and `api_key_env` are looked at.

    Raises:
        ConfigurationError: for an unknown provider, a missing package or a missing key, in one line that says what
            to do. A key that is set to nothing is a missing one.
    """
    if isinstance(model, Model):
        return model
    settings = settings or {}
    key = _key(model, settings.get(API_KEY_ENV))
    try:
        return _openai_compatible(model, settings.get(BASE_URL), key) or _by_name(model, key)
    except ImportError as error:
        raise ConfigurationError(f"Model {model!r} cannot be used: {_line(error)}.") from error
    except Exception as error:  # each provider's client has errors of its own; nothing is sent yet, so it is the set-up
        raise ConfigurationError(_advice(model, error)) from error


def check(model: str | Model[Any], settings: Mapping[str, Any] | None = None) -> None:
    """See that the model can be used as far as this can be told without asking it; raises like `resolve`."""
    resolve(model, settings)


def model_settings(model: Model[Any], settings: Mapping[str, Any]) -> ModelSettings:
    """The agent's settings as the model takes them, its own retries off.

    One layer retries, and that is Temporal: a client that retries by itself hides what happens, multiplies the
    attempts and does not hear a cancellation in time. Where a client cannot be told, it does not retry either.
    """
    chosen = {name: value for name, value in settings.items() if name not in (BASE_URL, API_KEY_ENV)}
    if "max_retries" not in model.unsupported_settings:
        chosen["max_retries"] = 0
    return cast("ModelSettings", chosen)


def _openai_compatible(model: str, base_url: str | None, key: str | None) -> Model[Any] | None:
    kind, _, name = model.partition(":")
    if kind not in _openai_kinds:
        if base_url is None:
            return None
        if _is_provider(kind):
            raise UserError(f"`{BASE_URL}` goes with `openai:` models")
        kind, name = "openai-chat", model
    base_url = base_url or os.environ.get("OPENAI_BASE_URL")
    if not base_url or base_url.startswith(_OPENAI_HOST):
        return None
    # Not at the top: OpenAI's client takes half a second to import, and most agents' models do without it.
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    # Servers at home want no key, and the client insists on one.
    provider = OpenAIProvider(base_url=base_url, api_key=key or os.environ.get("OPENAI_API_KEY") or "none")
    chosen = OpenAIResponsesModel if kind == "openai-responses" else OpenAIChatModel
    return chosen(name, provider=provider)


def _by_name(model: str, key: str | None) -> Model[Any]:
    if key is None:
        return infer_model(model)

    def provider(name: str) -> Provider[Any]:
        return cast("Provider[Any]", cast("Any", infer_provider_class(name))(api_key=key))

    return infer_model(model, provider)


def _is_provider(name: str) -> bool:
    """Whether pydantic-ai knows it: `anthropic:x` names a provider, `llama3:8b` is a model."""
    try:
        infer_provider_class(name)
    except ValueError:
        return False
    except ImportError:
        return True
    return True


def _key(model: str, variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigurationError(f"Model {model!r} needs a key: set {variable} in the worker's environment.")
    return key


def _advice(model: str, error: Exception) -> str:
    variable = _key_variable.search(str(error))
    if variable is not None:
        return f"Model {model!r} needs a key: set {variable.group()} in the worker's environment."
    if str(error).startswith(("Unknown model", "Unknown provider")):
        hint = str(error).partition("Did you mean ")[2].rstrip("?")
        meant = f"did you mean {hint}?" if hint else "name it provider:model, for instance openai:gpt-5."
        return f"Unknown model {model!r}: {meant}"
    return f"Model {model!r} cannot be used: {_line(error)}."


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
