"""Messages of tool servers: all the ways in which real ones write them, and those that are refused."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given

from perdure.errors import UsageError
from perdure.rap.callback import (
    Callback,
    ChoiceCallback,
    EventCallback,
    Image,
    OAuthCallback,
    ResultCallback,
    ViewCallback,
    read_callback,
)
from tests.fakes.rap_tools import PIXEL
from tests.properties import json_values

RESULT: dict[str, Any] = {"type": "tool_result", "group_id": "t", "id": "c"}
EVENT: dict[str, Any] = {"type": "subscription_event", "group_id": "t", "tool_call_id": "c", "text": "up"}
OAUTH: dict[str, Any] = {"type": "oauth", "group_id": "t", "id": "c", "auth_url": "https://login.example/a?state=1"}
CHOICE: dict[str, Any] = {
    "type": "user_choice",
    "group_id": "t",
    "id": "c",
    "prompt": "Allow?",
    "choices": ["Yes", "No"],
    "response_url": "http://127.0.0.1:3001/user_choice_response",
}
VIEW: dict[str, Any] = {"type": "view_update", "group_id": "t", "view_type": "diff", "content": {"files": []}}
ALL = [RESULT, EVENT, OAUTH, CHOICE, VIEW]


def read(message: Any) -> Callback:
    """What is made of a message."""
    return read_callback(json.dumps(message).encode())


def result(**fields: Any) -> ResultCallback:
    """What is made of a result with these fields."""
    callback = read({**RESULT, **fields})
    assert isinstance(callback, ResultCallback)
    return callback


def test_an_observed_message_is_read() -> None:
    """As a Node server sent it."""
    body = (
        b'{"type":"tool_result","group_id":"thread_xyz","id":"call_abc123","call_id":null,'
        b'"text":"Current time in Europe/London: Monday"}'
    )
    callback = read_callback(body)
    assert isinstance(callback, ResultCallback)
    assert (callback.words, callback.images, callback.outcome) == ("Current time in Europe/London: Monday", (), "ok")
    assert callback.is_about("thread_xyz", "call_abc123")


@pytest.mark.parametrize("call_id", [None, "second", 7])
def test_the_second_id_is_not_needed(call_id: object) -> None:
    """Absent, null or echoed: ours are unique without it."""
    assert result(call_id=call_id) == result()


def test_what_may_be_left_out_may_be_null_too() -> None:
    """And fields that nobody knows are ignored."""
    nulls = {"text": None, "content": None, "display_as": None, "subscription": None}
    assert result(**nulls, trace={"id": 1}) == result()
    assert result().words == ""
    event = read({**EVENT, "associative": None, "final": None})
    assert event == read(EVENT) == read({**EVENT, "associative": False})
    assert isinstance(event, EventCallback)
    assert (event.associative, event.final) == (False, False)
    assert read({**CHOICE, "default": None}) == read(CHOICE)


def test_content_is_read_in_order_and_beats_the_text() -> None:
    """Texts on lines of their own, images after them."""
    data = base64.b64encode(PIXEL).decode()
    image = {"type": "image", "data": data, "mediaType": "image/png"}
    callback = result(text="no", content=[{"type": "text", "text": "a"}, image, {"type": "text", "text": "b"}])
    assert callback.words == "a\nb"
    assert callback.images == (Image("image/png", PIXEL),)


@pytest.mark.parametrize("content", [[], [{"type": "video", "frames": 3}]])
def test_content_that_says_nothing_gives_way_to_the_text(content: list[Any]) -> None:
    """Empty, or of kinds that are not known: those are skipped."""
    assert result(text="said", content=content).words == "said"


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes])
@pytest.mark.parametrize("padded", [True, False])
def test_base64_is_read_however_it_is_written(encode: Any, padded: bool) -> None:
    """Of either alphabet, in lines, with or without padding."""
    pixels = bytes(range(251, 256)) * 40
    data = encode(pixels).decode()
    callback = result(
        content=[{"type": "image", "data": data if padded else data.rstrip("=\n"), "mediaType": "image/png"}]
    )
    assert callback.images[0].data == pixels


@pytest.mark.parametrize("text", ["Error: no such zone", "MCP tool error: timeout", "Error:"])
def test_a_text_that_begins_like_an_error_is_one(text: str) -> None:
    """And opens no subscription, whatever it says of that; other results do."""
    assert result(text=text, subscription=True).outcome == "error"
    assert not result(text=text, subscription=True).opens_subscription
    assert result(text="Errors: none", subscription=True).opens_subscription
    assert not result(text="Errors: none").opens_subscription


def test_an_unknown_display_does_not_refuse_a_result() -> None:
    """It is for people alone, who see something else instead."""
    display = [{"type": "hologram", "content": 1}, "odd", {"type": "text", "content": "seen"}]
    callback = result(text="said", display_as=display)
    assert callback.words == "said"
    assert callback.display == '[{"type":"hologram","content":1},{"type":"text","content":"seen"},' + (
        '{"type":"text","content":"said"}]'
    )
    assert result(text="said").display is None


def test_every_kind_has_what_is_needed_to_act() -> None:
    """A choice without a default means the first one; a view's content is passed on as it came."""
    assert read({**EVENT, "associative": True, "final": True}) == EventCallback(
        group_id="t", tool_call_id="c", text="up", associative=True, final=True
    )
    oauth, choice, view = read(OAUTH), read({**CHOICE, "default": 1}), read({**VIEW, "content": {"b": 1, "a": [None]}})
    assert isinstance(oauth, OAuthCallback)
    assert oauth.auth_url == "https://login.example/a?state=1"
    assert isinstance(choice, ChoiceCallback)
    assert (choice.prompt, choice.choices, choice.default) == ("Allow?", ("Yes", "No"), 1)
    assert isinstance(view, ViewCallback)
    assert view.json_text == '{"b":1,"a":[null]}'
    assert isinstance(read({**VIEW, "content": None}), ViewCallback), "an empty content clears a view"


@pytest.mark.parametrize("message", ALL, ids=lambda message: message["type"])
def test_a_callback_speaks_of_one_call(message: dict[str, Any]) -> None:
    """That of the URL it came to; a view only has to be of the same thread."""
    callback = read(message)
    assert callback.is_about("t", "c")
    assert not callback.is_about("other", "c")
    assert callback.is_about("t", "other") is (message is VIEW)


@pytest.mark.parametrize(
    ("message", "field"), [(m, f) for m in ALL for f in m if f not in ("type", "default")], ids=lambda p: str(p)[:30]
)
@pytest.mark.parametrize("value", [..., None, 7, [], {}])
def test_a_message_without_what_is_needed_names_the_field(message: dict[str, Any], field: str, value: object) -> None:
    """Absent, null or of another type; a view may show anything."""
    changed = {name: (value if name == field else other) for name, other in message.items()}
    body = {name: value for name, value in changed.items() if value is not ...}
    if field == "content" and value is not ...:
        assert read(body)
        return
    with pytest.raises(UsageError, match=f"This is no valid {message['type']}: `{field}`"):
        read(body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe{}", "is not JSON in UTF-8"),
        (b'{"type":"tool_result","group_id":"t","id":"c","text":NaN}', "NaN is not JSON"),
        (b'{"type":"user_choice","default":1e999}', "too large"),
        (b'{"type":' + b"9" * 10_000 + b"}", "is not JSON"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"type":"view_update","content":' + b"[" * 150 + b"]" * 150 + b"}", "nested too deeply"),
        (b"[]", "must be a JSON object"),
        (b'"tool_result"', "must be a JSON object"),
        (b"{}", "must be one of tool_result, .*; it is none"),
        (b'{"type":"tool_results"}', "it is tool_results"),
        (b'{"type":["tool_result"]}', "must be one of"),
    ],
)
def test_what_is_no_message_is_refused_with_one_sentence(body: bytes, reason: str) -> None:
    """Whatever is posted, whoever wrote the server reads what is wrong with it."""
    with pytest.raises(UsageError, match=reason) as refusal:
        read_callback(body)
    assert len(str(refusal.value)) < 400
    str(refusal.value).encode()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({**RESULT, "subscription": "yes"}, "`subscription`"),
        ({**RESULT, "content": "text"}, "`content`: must be a list"),
        ({**RESULT, "content": ["text"]}, "each item must be an object with a `type`"),
        ({**RESULT, "content": [{"type": "text"}]}, "needs `text`"),
        ({**RESULT, "content": [{"type": "image", "data": "aGk="}]}, "needs `data` and `mediaType`"),
        ({**RESULT, "content": [{"type": "image", "data": "%%", "mediaType": "i/p"}]}, "must be base64"),
        ({**RESULT, "content": [{"type": "image", "data": "é", "mediaType": "i/p"}]}, "must be base64"),
        ({**RESULT, "id": "\ud800"}, "`id`"),
        ({**RESULT, "id": ""}, "`id`"),
        ({**EVENT, "final": 1}, "`final`"),
        ({**OAUTH, "auth_url": "http://login.example/"}, "`auth_url`: must be an absolute https address"),
        ({**OAUTH, "auth_url": "javascript:alert(1)"}, "must be an absolute https address"),
        ({**OAUTH, "auth_url": "https:///nowhere"}, "must be an absolute https address"),
        ({**OAUTH, "auth_url": "https://a b/"}, "must be an absolute https address"),
        ({**OAUTH, "auth_url": "https://a/\x1b[31m"}, "must be an absolute https address"),
        ({**OAUTH, "auth_url": "https://a:99999999/"}, "must be an absolute https address"),
        ({**CHOICE, "response_url": "file:///etc/passwd"}, "must be an absolute http or https address"),
        ({**CHOICE, "choices": []}, "`choices`"),
        ({**CHOICE, "choices": ["Yes", 2]}, "`choices.1`: must be text"),
        ({**CHOICE, "default": 2}, "`default` must be one of the choices, 0 to 1"),
        ({**CHOICE, "default": -1}, "`default` must be one of the choices"),
        ({**CHOICE, "default": True}, "`default`"),
        ({**CHOICE, "default": "0"}, "`default`"),
        ({**VIEW, "view_type": "a\x00b"}, "`view_type`"),
    ],
)
def test_a_message_that_cannot_be_acted_on_is_refused(message: dict[str, Any], reason: str) -> None:
    """A default that is no choice too: another in its place could consent to what nobody has agreed to."""
    with pytest.raises(UsageError, match="This is no valid") as refusal:
        read(message)
    assert reason in str(refusal.value)


def test_half_a_surrogate_pair_and_nul_are_words_too() -> None:
    """They come out as they went in."""
    assert result(text="a\ud800\x00b").words == "a\ud800\x00b"


def test_the_last_of_two_equal_keys_counts() -> None:
    """As JavaScript has it; there is no way to be about two calls."""
    callback = read_callback(b'{"type":"tool_result","group_id":"t","id":"a","id":"b"}')
    assert callback.is_about("t", "b")
    assert not callback.is_about("t", "a")


def test_a_byte_order_mark_is_no_part_of_the_message() -> None:
    """Some servers write one."""
    assert read_callback(b"\xef\xbb\xbf" + json.dumps(RESULT).encode()) == read(RESULT)


@given(json_values)
def test_whatever_is_posted_is_read_or_refused(value: object) -> None:
    """Nothing but UsageError leaves, whichever field holds it."""
    for message in ALL:
        for field in [*message, "text", "content", "display_as", "default"]:
            try:
                callback = read({**message, field: value})
            except UsageError:
                continue
            assert isinstance(callback.is_about("t", "c"), bool)
            if isinstance(callback, ResultCallback):
                assert isinstance(callback.words + (callback.display or ""), str)
