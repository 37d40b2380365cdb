"""Models by name."""

import re
import subprocess
import sys
from typing import get_args

import pytest
from anthropic import AsyncAnthropic
from pydantic_ai.models import KnownModelName
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

from perdure.errors import ConfigurationError
from perdure.models import check, check_name, model_settings, provider_of, resolve
from perdure.testing import ScriptedModel


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_openai_and_anthropic_are_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name gives the provider's model object, with the key from the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert isinstance(resolve("openai:gpt-5"), OpenAIResponsesModel)
    assert isinstance(resolve("openai-chat:gpt-5"), OpenAIChatModel)
    assert isinstance(resolve("anthropic:claude-sonnet-4-5"), AnthropicModel)


def test_a_model_object_is_kept() -> None:
    """Objects, scripted ones too, are used as they are."""
    model = ScriptedModel(["hi"])
    assert resolve(model) is model


@pytest.mark.parametrize("name", ["openai:gpt-5", "openai-chat:llama", "anthropic:claude-sonnet-4-5"])
def test_a_missing_key_is_one_line_that_names_the_variable(name: str) -> None:
    """Without a key the error says which variable to set, and nothing else."""
    with pytest.raises(ConfigurationError) as caught:
        check(name)
    variable = "ANTHROPIC_API_KEY" if name.startswith("anthropic") else "OPENAI_API_KEY"
    assert str(caught.value) == f"Model {name!r} needs a key: set {variable} in the worker's environment."


@pytest.mark.parametrize("name", ["openai:gpt-5", "openai-chat:llama", "anthropic:claude-sonnet-4-5", "deepseek:chat"])
def test_an_empty_key_is_a_missing_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set to nothing, as by `export KEY=$UNSET`, gets the same line."""
    variable = f"{re.split('[:-]', name)[0].upper()}_API_KEY"
    monkeypatch.setenv(variable, "")
    with pytest.raises(ConfigurationError) as caught:
        check(name)
    assert str(caught.value) == f"Model {name!r} needs a key: set {variable} in the worker's environment."


@pytest.mark.parametrize("name", ["openia:gpt-5", "gpt-5-of-nobody", ""])
def test_an_unknown_model_is_one_line_that_says_how_to_name_one(name: str) -> None:
    """A name that no provider has gives advice in one line."""
    with pytest.raises(ConfigurationError, match=re.escape(f"Unknown model {name!r}: ")) as caught:
        check(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nonsense:model", "Unknown model 'nonsense:model': name it provider:model"),
        ("openia:gpt-5", "Unknown model 'openia:gpt-5': did you mean openai:gpt-5?"),
        ("gpt-5", "Unknown model 'gpt-5': name it provider:model"),
        ("llama3:8b", "Unknown model 'llama3:8b': name it provider:model"),
        ("test", "Unknown model 'test': name it provider:model"),
        (":x", "Unknown model ':x': name it provider:model"),
        ("openai: ", "The model 'openai: ' names no model of openai: name it provider:model"),
    ],
)
def test_a_name_that_no_provider_can_have_is_known_without_asking(name: str, said: str) -> None:
    """Neither a key nor a network is needed to say so, in one line; and none of them can be resolved either."""
    with pytest.raises(ConfigurationError, match=f"^{re.escape(said)}") as caught:
        check_name(name)
    assert "\n" not in str(caught.value)
    if name != "openai: ":  # the provider's server would have to tell
        with pytest.raises(ConfigurationError):
            resolve(name)


LISTED = [name for name in get_args(KnownModelName.__value__) if name != "test"]
"""What pydantic-ai knows, but for its made-up model, which may not be chosen."""


@pytest.mark.parametrize("name", [*LISTED, "openai-responses:gpt-5", "openai:llama3:8b", "mistral:not-there-yet"])
def test_a_name_that_a_provider_may_have_is_let_through(name: str) -> None:
    """Every model that pydantic-ai lists, with or without its key and package here, and those it does not list yet."""
    check_name(name)


def test_a_provider_whose_package_is_missing_says_what_to_install() -> None:
    """A known provider without its package names the package."""
    with pytest.raises(ConfigurationError, match="pip install"):
        check("mistral:mistral-large-latest", {"api_key_env": None})


def test_a_base_url_in_the_settings_means_chat_completions_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `base_url` any name is a model of that server, with or without a prefix, and needs no key."""
    settings = {"base_url": "http://127.0.0.1:9/v1"}
    for given, expected in [("openai:llama3", "llama3"), ("llama3:8b", "llama3:8b"), ("openai-chat:a/b", "a/b")]:
        model = resolve(given, settings)
        assert isinstance(model, OpenAIChatModel)
        assert model.model_name == expected
        assert str(model.client.base_url) == "http://127.0.0.1:9/v1/"
    assert isinstance(resolve("openai-responses:x", settings), OpenAIResponsesModel)
    monkeypatch.setenv("MY_KEY", "secret")
    keyed = resolve("openai:llama3", settings | {"api_key_env": "MY_KEY"})
    assert isinstance(keyed, OpenAIChatModel)
    assert keyed.client.api_key == "secret"


def test_the_base_url_of_the_environment_counts_for_openai_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPENAI_BASE_URL redirects `openai:` models and leaves other providers alone."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    model = resolve("openai:llama3")
    assert isinstance(model, OpenAIChatModel)
    assert str(model.client.base_url) == "http://127.0.0.1:9/v1/"
    with pytest.raises(ConfigurationError, match="ANTHROPIC_API_KEY"):
        check("anthropic:claude-sonnet-4-5")


def test_a_base_url_for_another_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`base_url` with a provider whose servers are its own is a mistake, told as one."""
    monkeypatch.setenv("DEEPSEEK_API_KEY", "k")
    with pytest.raises(ConfigurationError, match="base_url"):
        check("deepseek:chat", {"base_url": "http://127.0.0.1:9/v1"})


def test_a_key_variable_that_is_not_set_is_named() -> None:
    """`api_key_env` names the variable; if it is empty the error does too."""
    with pytest.raises(ConfigurationError, match="set MY_KEY in"):
        check("openai:gpt-5", {"api_key_env": "MY_KEY"})


def test_a_key_variable_serves_every_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """`api_key_env` works for providers other than OpenAI too."""
    monkeypatch.setenv("MY_KEY", "secret")
    model = resolve("anthropic:claude-sonnet-4-5", {"api_key_env": "MY_KEY"})
    assert isinstance(model, AnthropicModel)
    assert isinstance(model.client, AsyncAnthropic)
    assert model.client.api_key == "secret"


def test_a_client_is_imported_when_a_model_needs_it() -> None:
    """A worker waits at its start for the clients of its agents' models, and for no other provider's."""
    code = """
import os, sys, worker
from perdure.models import check
clients = ("openai", "anthropic", "google.genai")
print([name for name in clients if name in sys.modules])
os.environ["OPENAI_API_KEY"] = "k"
check("openai:gpt-5")
print([name for name in clients if name in sys.modules])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["[]", "['openai']"]


def test_retries_of_the_provider_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings that reach the model carry no retries and none of our own keys."""
    model = resolve("openai:x", {"base_url": "http://127.0.0.1:9/v1"})
    settings = {"base_url": "http://127.0.0.1:9/v1", "api_key_env": "X", "temperature": 0.5}
    assert model_settings(model, settings) == {"temperature": 0.5, "max_retries": 0}


def test_the_start_of_a_request_is_kept_where_the_provider_wants_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On unless the agent says otherwise; nothing is said to those that do it anyway."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    anthropic = resolve("anthropic:claude-opus-4-8")
    assert model_settings(anthropic, {}).get("cache") is True
    assert model_settings(anthropic, {"cache": "1h"}).get("cache") == "1h"
    assert "cache" not in model_settings(resolve("openai:x", {"base_url": "http://127.0.0.1:9/v1"}), {})


def test_openai_alone_is_given_a_key_for_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the same conversation, nothing of whose id is in it; a compatible server gets none."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    for name in ("openai:gpt-5", "openai-chat:gpt-5"):
        model = resolve(name)
        keys = [model_settings(model, {}, thread).get("openai_prompt_cache_key") for thread in ("a", "a", "b")]
        assert keys[0] == keys[1] != keys[2]
        assert len(str(keys[0])) == 32
        assert "openai_prompt_cache_key" not in model_settings(model, {"cache": False}, "a")
        own = {"openai_prompt_cache_key": "mine"}
        assert model_settings(model, own, "a")["openai_prompt_cache_key"] == "mine"  # type: ignore[typeddict-item]  # OpenAI's own
    elsewhere = resolve("openai:x", {"base_url": "http://127.0.0.1:9/v1"})
    assert "openai_prompt_cache_key" not in model_settings(elsewhere, {}, "a")


def test_anthropic_and_google_may_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base URL names a server that speaks the provider's own protocol."""
    monkeypatch.setenv("MY_KEY", "secret")
    for name in ("anthropic:claude-opus-4-8", "google:gemini-2.5-pro"):
        model = resolve(name, {"base_url": "http://127.0.0.1:9", "api_key_env": "MY_KEY"})
        assert str(model.base_url).startswith("http://127.0.0.1:9")


def test_a_service_that_keeps_conversations_is_needed_to_use_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`history='service'` is refused before a worker starts, for a model that cannot keep it."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    check("openai:gpt-5", history="service")
    for refused in ("openai-chat:gpt-5", ScriptedModel(["hi"])):
        check(refused)
        with pytest.raises(ConfigurationError, match="history='service' cannot be used"):
            check(refused, history="service")


def test_a_model_that_calls_every_tool_cannot_be_named() -> None:
    """pydantic-ai has one for tests; words that may name any model may not name that."""
    with pytest.raises(ConfigurationError, match="Unknown model 'test'"):
        resolve("test")


def test_whose_model_a_name_means() -> None:
    """What is on a server like OpenAI's counts as OpenAI's, whatever its name."""
    given = ["openai:a", "openai-chat:a", "openai-responses:a", "llama3:8b", "mine", "anthropic:a", "google:a"]
    assert [provider_of(name) for name in given] == ["openai"] * 5 + ["anthropic", "google"]
