"""What turns have cost, how words were to be answered, and what models were told besides: in exports and back."""

from typing import Any

import pytest

from perdure.codec import dumps
from perdure.errors import UsageError
from perdure.exported_usage import MAX_COUNT
from perdure.interchange import export_tree, read_import
from perdure.messages import ContextPart, Message, TextPart, ToolCallPart, ToolResultPart, TurnOptions, Usage
from perdure.records import TreeMessage
from tests.perdure.client_files import Json, assistant, message_of, read, text, user
from tests.perdure.exported_trees import tree_of

USAGE = Usage(requests=2, input_tokens=30, output_tokens=4, cached_tokens=20, nano_usd=5_000, unpriced=1)


def exported(message: Message) -> Json:
    """The message in the export of a tree of it alone."""
    item: Json = export_tree(tree_of([TreeMessage(message=message)], message.id), {})["messages"][0]["message"]
    return item


def back(shown: Json) -> Message:
    """What the message of an export becomes elsewhere."""
    return read({"parentId": None, "message": shown}).messages[0].message


def test_tokens_are_shown_where_clients_have_a_place_for_them() -> None:
    """As one step; calls, money and the cache are told beside it, and all of it comes back. Without any none is."""
    answer = Message(id="a", thread_id="t", role="assistant", parts=(TextPart(text="hi"),), usage=USAGE)
    shown = exported(answer)
    assert shown["metadata"]["steps"] == [{"usage": {"inputTokens": 30, "outputTokens": 4}}]
    assert shown["perdure"] == {
        "usage": {
            "requests": 2,
            "input_tokens": 30,
            "output_tokens": 4,
            "cached_tokens": 20,
            "nano_usd": 5000,
            "unpriced": 1,
        }
    }
    assert back(shown).usage == USAGE
    assert exported(answer.with_(usage=None))["metadata"]["steps"] == []
    assert back(exported(answer.with_(usage=None))).usage is None


def test_what_clients_say_of_tokens_is_read() -> None:
    """Step by step; what is no pair of numbers is left aside. Changed steps win over what we told beside them."""
    steps = [{"usage": {"inputTokens": 3, "outputTokens": 1}}, {"usage": {"inputTokens": 5, "outputTokens": 2}}]
    odd = [3, {}, {"usage": None}, {"usage": {"inputTokens": -1, "outputTokens": 1}}, {"usage": {"inputTokens": 1.5}}]
    told = message_of(read(assistant("a", None, text("hi"), metadata={"steps": [*steps, *odd]})), "a")
    assert told.usage == Usage(requests=2, input_tokens=8, output_tokens=3)
    assert message_of(read(assistant("a", None, text("hi"), metadata={"steps": odd})), "a").usage is None
    assert message_of(read(assistant("a", None, text("hi"), metadata={"steps": "x"})), "a").usage is None
    shown = exported(Message(id="a", thread_id="t", role="assistant", usage=USAGE))
    shown["metadata"]["steps"][0]["usage"]["inputTokens"] = 31
    assert back(shown).usage == Usage(requests=1, input_tokens=31, output_tokens=4)


def test_how_words_were_to_be_answered_is_carried_along() -> None:
    """The model and the settings, for whoever answers them once more elsewhere."""
    options = TurnOptions(model="openai:gpt-5", settings={"thinking": "high", "n": [1]})
    words = Message(id="u", thread_id="t", role="user", parts=(TextPart(text="hi"),), options=options)
    assert exported(words)["perdure"] == {"options": {"model": "openai:gpt-5", "settings": options.settings}}
    assert back(exported(words)) == words.with_(thread_id="")


def test_what_a_model_was_told_besides_is_no_content() -> None:
    """Clients would take it for something that was said. It comes back to its place among the parts, results included.

    The control: the words beside it are content.
    """
    parts = (
        ContextPart(source="memory", text="likes tea"),
        ToolCallPart(call_id="c", tool="look"),
        ToolCallPart(call_id="d", tool="look"),
        ToolResultPart(call_id="c", content="1", size_bytes=1),
        ToolResultPart(call_id="d", content="2", size_bytes=1),
        ContextPart(source="clock", text="noon", step=1),
        ContextPart(source="memory", text="likes tea", step=1),
        TextPart(text="Tea?", step=1),
    )
    answer = Message(id="a", thread_id="t", role="assistant", parts=parts)
    shown = exported(answer)
    assert [entry["type"] for entry in shown["content"]] == ["tool-call", "tool-call", "text"]
    assert "likes tea" not in dumps(shown["content"])
    assert shown["perdure"]["context"] == [
        {"position": 0, "kind": "context", "source": "memory", "text": "likes tea"},
        {"position": 5, "kind": "context", "source": "clock", "text": "noon", "step": 1},
        {"position": 6, "kind": "context", "source": "memory", "text": "likes tea", "step": 1},
    ]
    assert back(shown) == answer.with_(thread_id="")
    del shown["content"][2]
    assert back(shown).parts == parts[:-1], "also where content was taken out"


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"context": 3}, r"message\.perdure\.context must be a list"),
        ({"context": [{"kind": "context", "source": "s"}]}, r"context\[0\]\.position must be a number from 0"),
        ({"context": [{"position": -1}]}, r"context\[0\]\.position must be a number from 0"),
        ({"context": [{"position": 0, "kind": "text", "text": "x"}]}, r"context\[0\]\.kind must be `context`"),
        ({"context": [{"position": 0, "kind": "context"}]}, r"context\[0\] is not a part of ours: `context\.source`"),
        ({"usage": "much"}, r"message\.perdure\.usage must be an object"),
        ({"usage": {"nano_usd": -1}}, r"message\.perdure\.usage must be whole numbers"),
        ({"usage": {"requests": True}}, r"message\.perdure\.usage must be whole numbers"),
        ({"usage": {"requests": MAX_COUNT + 1}}, r"message\.perdure\.usage must be whole numbers"),
        ({"options": {"model": ""}}, r"message\.perdure\.options must be options of ours"),
        ({"options": {"settings": 3}}, r"message\.perdure\.options must be options of ours"),
    ],
)
def test_what_is_none_of_ours_is_refused_with_its_place(own: dict[str, Any], reason: str) -> None:
    """An import is taken whole or not at all."""
    item = assistant("a", None, text("hi"), perdure=own)
    with pytest.raises(UsageError, match=reason):
        read_import(dumps({"headId": None, "messages": [item]}).encode())


def test_only_turns_have_cost_something() -> None:
    """Tokens that a file tells of words of the user are not taken."""
    said = user("u", metadata={"steps": [{"usage": {"inputTokens": 3, "outputTokens": 1}}]})
    assert message_of(read(said), "u").usage is None
