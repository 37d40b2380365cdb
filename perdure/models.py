"""Models by name: `openai:gpt-5`, `anthropic:claude-sonnet-5-5`, whatever pydantic-ai knows, any compatible server.

For a server that speaks OpenAI's protocol give the agent `settings={"base_url": "http://localhost:11434/v1"}`, with
`"api_key_env": "MY_KEY"` if it wants a key, or set OPENAI_BASE_URL for every `openai:` model of the process. OpenAI has
two interfaces and other people's servers speak the older one, so a base URL means chat completions unless the name
says `openai-responses:`. A base URL for an `anthropic:` or `google:` model names a server that speaks their protocol.

A provider's client is imported when a model of it is resolved: they take half a second and more.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, cast, get_args

from pydantic_ai.exceptions import UserError
from pydantic_ai.models import KnownModelName, Model, infer_model
from pydantic_ai.providers import Provider, infer_provider_class
from pydantic_ai.settings import ModelSettings

from perdure.errors import ConfigurationError

BASE_URL, API_KEY_ENV = "base_url", "api_key_env"
CACHE = "cache"
CACHE_KEY = "openai_prompt_cache_key"
_OPENAI_HOST = "https://api.openai.com"
_openai_kinds = ("openai", "openai-chat", "openai-responses")
_MADE_UP = "test"
"""What pydantic-ai calls a model that calls every tool there is; words may name any model, and not this one."""

_HOW = "name it provider:model, for instance openai:gpt-5."
_with_base_url = ("anthropic", "google")
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
    base_url = settings.get(BASE_URL)
    if model == _MADE_UP:
        raise ConfigurationError(f"Unknown model {model!r}: {_HOW}")
    try:
        return _openai_compatible(model, base_url, key) or _by_name(model, key, base_url)
    except ImportError as error:
        raise ConfigurationError(f"Model {model!r} cannot be used: {_line(error)}.") from error
    except Exception as error:  # each provider's client has errors of its own; nothing is sent yet, so it is the set-up
        raise ConfigurationError(_advice(model, error)) from error


def check(
    model: str | Model[Any],
    settings: Mapping[str, Any] | None = None,
    history: Literal["local", "service"] = "local",
) -> None:
    """See that the model can be used as far as this can be told without asking it; raises like `resolve`.

    With the history `service` it has to be one whose server keeps conversations.
    """
    resolved = resolve(model, settings)
    if history == "service" and not keeps_conversations(resolved):
        raise ConfigurationError(
            f"Model {model_name(model)!r} keeps no conversations on its server, so history='service' cannot be used "
            "with it; leave that out, or choose a model of openai-responses."
        )


def check_name(model: str) -> None:
    """Raise ConfigurationError for a name that is none, with what to do, as far as this can be told anywhere.

    Keys and packages are the workers' own, and which models a provider has is the provider's to know. A `base_url`
    makes any name a model of that server, and an agent may list others still, so this is for names alone.
    """
    kind, named, name = model.partition(":")
    providers = _providers()
    # First by the list: to ask for a provider imports its client.
    if named and (kind in providers or _is_provider(kind)):
        if not name.strip():
            raise ConfigurationError(f"The model {model!r} names no model of {kind}: {_HOW}")
        return
    meant = get_close_matches(kind, providers, 1) if named else []
    raise ConfigurationError(f"Unknown model {model!r}: " + (f"did you mean {meant[0]}:{name}?" if meant else _HOW))


def model_name(model: str | Model[Any]) -> str:
    """What people call the model."""
    return model if isinstance(model, str) else model.model_name


def provider_of(model: str) -> str:
    """Whose model the name means: `anthropic`, `google` and so on, `openai` for what is on a server like OpenAI's."""
    kind = model.partition(":")[0] if ":" in model else ""
    return kind if kind not in _openai_kinds and _is_provider(kind) else "openai"


def model_settings(model: Model[Any], settings: Mapping[str, Any], conversation: str | None = None) -> ModelSettings:
    """The settings as the model takes them: its own retries off, its prompt cache on.

    One layer retries, and that is Temporal: a client that retries by itself hides what happens, multiplies the
    attempts and does not hear a cancellation in time. Where a client cannot be told, it does not retry either.

    The beginning of a request is the same in every later one of its conversation, so the provider is asked to keep it
    where it wants to be asked, unless `cache` says something else. OpenAI keeps it anyway, and finds it again by a key
    that is the same for the whole conversation; other people's chat servers may refuse a field that they do not know.

    Args:
        model: the model object.
        settings: of the agent, and of the message that is answered.
        conversation: the id of the thread that the conversation began in.
    """
    chosen = {name: value for name, value in settings.items() if name not in (BASE_URL, API_KEY_ENV)}
    if "max_retries" not in model.unsupported_settings:
        chosen["max_retries"] = 0
    if model.profile.get("supports_cache", False):
        chosen.setdefault(CACHE, True)
    if conversation is not None and chosen.get(CACHE, True) is not False and _takes_cache_key(model):
        chosen.setdefault(CACHE_KEY, hashlib.sha256(conversation.encode()).hexdigest()[:32])
    return cast("ModelSettings", chosen)


def keeps_conversations(model: Model[Any]) -> bool:
    """Whether the model's own server keeps conversations, and goes on from what it answered last."""
    return _openai_class(model) == "OpenAIResponsesModel"


def _takes_cache_key(model: Model[Any]) -> bool:
    kind = _openai_class(model)
    at_home = (model.base_url or "").startswith(_OPENAI_HOST)
    return kind == "OpenAIResponsesModel" or (kind == "OpenAIChatModel" and at_home)


def _openai_class(model: Model[Any]) -> str | None:
    """The name of OpenAI's class that the model is of. By name, so that nothing is imported to find that it is none."""
    bases = {base.__name__ for base in type(model).__mro__ if base.__module__.startswith("pydantic_ai.models.openai")}
    return next((name for name in ("OpenAIResponsesModel", "OpenAIChatModel") if name in bases), None)


def _openai_compatible(model: str, base_url: str | None, key: str | None) -> Model[Any] | None:
    kind, _, name = model.partition(":")
    if kind not in _openai_kinds:
        if base_url is None:
            return None
        if kind in _with_base_url:
            return None
        if _is_provider(kind):
            raise UserError(f"`{BASE_URL}` goes with `openai:`, `anthropic:` and `google:` models")
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


def _by_name(model: str, key: str | None, base_url: str | None) -> Model[Any]:
    given = {name: value for name, value in (("api_key", key), ("base_url", base_url)) if value is not None}
    if not given:
        return infer_model(model)

    def provider(name: str) -> Provider[Any]:
        return cast("Provider[Any]", cast("Any", infer_provider_class(name))(**given))

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


def _providers() -> list[str]:
    """What pydantic-ai's own list of models has before the colon: enough to guess what a slip meant."""
    return sorted({known.partition(":")[0] for known in get_args(KnownModelName.__value__) if ":" in known})


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
        meant = f"did you mean {hint}?" if hint else _HOW
        return f"Unknown model {model!r}: {meant}"
    return f"Model {model!r} cannot be used: {_line(error)}."


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")
