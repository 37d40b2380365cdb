"""The view as pydantic-ai messages."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from activities.images import IMAGE_BYTES, TOO_LARGE
from activities.model_messages import CANNOT_READ, MISSING, accepted_files, to_messages
from perdure.messages import ProviderData
from perdure.models import resolve
from perdure.testing import ScriptedModel
from perdure.view import Call, ModelText, Reasoning, Request, Response, Result, UserFile, UserText


@pytest.fixture
def openai() -> Model[Any]:
    """A model whose system is `openai`."""
    return resolve("openai:x", {"base_url": "http://127.0.0.1:9/v1"})


@pytest.mark.parametrize(
    ("thought", "goes_back"),
    [
        (Reasoning("t", "sig", ProviderData(name="openai")), True),
        (Reasoning("t", None, ProviderData(name="openai", id="reasoning_content")), True),
        (Reasoning("t", None, ProviderData(name="openai", id="content")), False),
        (Reasoning("t", None, ProviderData(name="openai")), False),
        (Reasoning("t", "sig", ProviderData(name="anthropic")), False),
        (Reasoning("t", "sig"), False),
    ],
    ids=["signed", "from its own field", "from the words", "unsigned", "of another provider", "of nobody"],
)
def test_b20_a_thought_goes_back_where_it_came_from_or_nowhere(
    openai: Model[Any], thought: Reasoning, goes_back: bool
) -> None:
    """B20: what would have to become visible text is left out instead."""
    (message,) = to_messages((Response((thought, ModelText("so"))),), openai, {})
    assert isinstance(message, ModelResponse)
    assert [isinstance(part, ThinkingPart) for part in message.parts] == ([True, False] if goes_back else [False])


def test_ids_are_shortened_the_same_way_for_call_and_result() -> None:
    """A provider that takes nine characters gets nine, and the pair still matches."""
    model = ScriptedModel(["x"], profile=ModelProfile(tool_call_id_length=9))
    calls = tuple(Call(f"call_{number:032x}", "a", "{}") for number in range(3))
    results = tuple(Result(call.call_id, "a", "r") for call in calls)
    response, request = to_messages((Response(calls), Request(results)), model, {})
    asked = [part.tool_call_id for part in response.parts if isinstance(part, ToolCallPart)]
    answered = [part.tool_call_id for part in request.parts if isinstance(part, ToolReturnPart)]
    assert asked == answered
    assert len(set(asked)) == 3
    assert {len(call_id) for call_id in asked} == {9}


def test_a_providers_own_call_id_stays_here() -> None:
    """It is extra data: only the other details go back to the provider."""
    provider = ProviderData(name="scripted", id="fc_1", details={"call_id": "p1", "thought_signature": "s"})
    (message,) = to_messages((Response((Call("c", "a", "{}", provider),)),), ScriptedModel(["x"]), {})
    part = message.parts[0]
    assert isinstance(part, ToolCallPart)
    assert (part.tool_call_id, part.id, part.provider_details) == ("c", "fc_1", {"thought_signature": "s"})


def test_words_stay_words() -> None:
    """A plain request is a plain prompt."""
    (message,) = to_messages((Request((UserText("hi"),)),), ScriptedModel(["x"]), {})
    assert isinstance(message, ModelRequest)
    assert [part.part_kind for part in message.parts] == ["user-prompt"]


# -- files in results -------------------------------------------------------------------------------------------

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
JPEG, GIF, WEBP = b"\xff\xd8\xff\xe0jpeg", b"GIF89agif", b"RIFF\x10\x00\x00\x00WEBPVP8 "


def shot(*files: UserFile, text: str = "a cat") -> tuple[Request | Response, ...]:
    """A conversation in which a tool returned files."""
    return (
        Request((UserText("go"),)),
        Response((Call("c1", "shot", "{}"),)),
        Request((Result("c1", "shot", text, files=files),)),
    )


def sent(model: Model[Any], blobs: dict[str, bytes], *files: UserFile) -> object:
    """The content of the result as it goes to pydantic-ai."""
    view = shot(*files)
    (_, _, request) = to_messages(view, model, {file.blob: blobs[file.blob] for file in accepted_files(view, model)})
    (part,) = request.parts
    assert isinstance(part, ToolReturnPart)
    return part.content


@pytest.mark.parametrize(
    ("data", "media_type"), [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp")]
)
@pytest.mark.parametrize("declared", ["image/png", "image/x-odd", ""])
def test_images_of_a_result_follow_its_text_as_what_they_are(data: bytes, media_type: str, declared: str) -> None:
    """The type is that of the bytes, whatever the server called them: providers refuse what does not match."""
    content = sent(ScriptedModel(["x"]), {"b": data}, UserFile("b", declared, len(data)))
    assert content == ["a cat", BinaryContent(data, media_type=media_type)]


@pytest.mark.parametrize(
    "data", [b"", b"png", b"<svg/>", b"RIFF\x10\x00\x00\x00WAVE", b"BM" + b"x" * 20, PNG.ljust(IMAGE_BYTES + 1)]
)
def test_what_is_no_image_that_every_provider_takes_is_a_note(data: bytes) -> None:
    """One of them would make the provider refuse this request and every later one of the thread."""
    size = min(len(data), 9)
    content = sent(ScriptedModel(["x"]), {"b": data}, UserFile("b", "image/png", size))
    why = TOO_LARGE if len(data) > IMAGE_BYTES else CANNOT_READ
    assert content == f"a cat\n\n[file: image/png, {size} bytes; {why}]"


@pytest.mark.parametrize(
    "file",
    [
        UserFile("b", "application/pdf", 9),
        UserFile("b", "audio/wav", 9),
        UserFile("b", "odd", 9),
        UserFile("b", "image/png", IMAGE_BYTES + 1),
    ],
)
def test_b54_only_images_of_a_size_that_is_taken_are_loaded(file: UserFile) -> None:
    """The others become a note without their bytes being read."""
    assert accepted_files(shot(file), ScriptedModel(["x"])) == []
    content = sent(ScriptedModel(["x"]), {}, file)
    assert content == f"a cat\n\n[file: {file.media_type}, {file.size_bytes} bytes; {CANNOT_READ}]"


def test_b54_a_model_without_images_gets_a_note_for_each() -> None:
    """No image of a tool goes to a model that cannot read it, and none is loaded; the text stays."""
    model = ScriptedModel(["x"], profile=ModelProfile(supports_image_input=False))
    files = (UserFile("a", "image/png", 5), UserFile("b", "", 6))
    assert accepted_files(shot(*files), model) == []
    assert sent(model, {}, *files) == (
        f"a cat\n\n[file: image/png, 5 bytes; {CANNOT_READ}]\n\n[file: unknown type, 6 bytes; {CANNOT_READ}]"
    )


def test_a_file_that_is_not_stored_is_a_note_and_the_others_are_shown() -> None:
    """In a result and of the user: the thread goes on without it."""
    model = ScriptedModel(["x"])
    there, gone = UserFile("there", "image/png", len(PNG)), UserFile("gone", "image/png", 7, "cat.png")
    view = (Request((UserText("look"), gone)), *shot(gone, there)[1:])
    assert [file.blob for file in accepted_files(view, model)] == ["gone", "gone", "there"]
    (asked, _, answered) = to_messages(view, model, {"there": PNG})
    assert [part.content for part in asked.parts if isinstance(part, UserPromptPart)] == [
        "look",
        f"[file: cat.png, image/png, 7 bytes; {MISSING}]",
    ]
    assert [part.content for part in answered.parts if isinstance(part, ToolReturnPart)] == [
        [f"a cat\n\n[file: image/png, 7 bytes; {MISSING}]", BinaryContent(PNG, media_type="image/png")]
    ]


def chat(client: httpx2.AsyncClient) -> Model[Any]:
    """OpenAI's chat completions."""
    return OpenAIChatModel("x", provider=OpenAIProvider(base_url="http://h/v1", api_key="k", http_client=client))


def responses(client: httpx2.AsyncClient) -> Model[Any]:
    """OpenAI's responses."""
    return OpenAIResponsesModel("x", provider=OpenAIProvider(base_url="http://h/v1", api_key="k", http_client=client))


def anthropic(client: httpx2.AsyncClient) -> Model[Any]:
    """Anthropic's messages."""
    return AnthropicModel("claude-x", provider=AnthropicProvider(api_key="k", http_client=client))


@pytest.mark.parametrize("make", [chat, responses, anthropic])
async def test_an_image_of_a_result_reaches_each_provider_the_same_way_every_time(
    make: Callable[[httpx2.AsyncClient], Model[Any]],
) -> None:
    """The real clients put text and bytes on the wire, the text first; the same conversation is the same bytes."""
    bodies: list[bytes] = []

    def refuse(request: httpx2.Request) -> httpx2.Response:
        bodies.append(request.content)
        return httpx2.Response(400, json={"error": {"message": "no"}})

    for _ in range(2):
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(refuse)) as client:
            model = make(client)
            with pytest.raises(ModelHTTPError):
                await model_request(model, to_messages(shot(UserFile("b", "image/jpeg", 70)), model, {"b": PNG}))
    first, second = bodies
    assert first == second
    said = json.dumps(json.loads(first))
    assert 0 < said.index("a cat") < said.index(base64.b64encode(PNG).decode())
    assert "image/png" in said
    assert "image/jpeg" not in said


_two_processes = """
from activities.model_messages import request_parameters
from perdure.agent import Agent
from perdure.tools import Tool
names = ["delta", "alpha", "echo", "bravo", "golf", "foxtrot", "hotel", "charlie"]
schema = {"type": "object", "properties": {}}
agent = Agent("a", model="x", tools=[Tool(name, "", schema, kind="client") for name in names])
print([tool.name for tool in request_parameters("", agent.tools.values()).function_tools])
"""


@pytest.mark.slow
def test_b39_tools_keep_their_order_in_every_process() -> None:
    """B39: the order of eight tools is that of their declaration, whatever the hash seed."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", _two_processes],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        ).stdout
        for seed in ("1", "2")
    }
    names = ["delta", "alpha", "echo", "bravo", "golf", "foxtrot", "hotel", "charlie"]
    assert printed == {f"{names}\n"}
