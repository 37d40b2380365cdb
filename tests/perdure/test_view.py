"""The view: what a model reads of a conversation."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.approval import ApprovalRequest, Decision
from perdure.codec import MAX_LEVELS, loads_object
from perdure.messages import (
    EventPart,
    FilePart,
    FileRef,
    Message,
    Part,
    ReasoningPart,
    Role,
    Status,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.records import Path, Summary
from perdure.view import (
    EVENT_CHARS,
    EVENT_TOOL,
    NO_WORDS,
    ONLY_FILES,
    OPENING,
    UNANSWERED,
    Call,
    ModelText,
    Reasoning,
    Request,
    Response,
    Result,
    UserFile,
    UserText,
    clean,
    view,
)
from tests.perdure.view_rules import items, shown_files, violations


def path(*messages: tuple[Role, list[Part]], summary: str | None = None) -> Path:
    """A path of messages m0, m1, ..."""
    built = tuple(
        Message(id=f"m{number}", thread_id="t", role=role, parts=tuple(parts))
        for number, (role, parts) in enumerate(messages)
    )
    hung = Summary(id="s", thread_id="t", message_id="old", parts=1, text=summary) if summary is not None else None
    return Path(messages=built, summary=hung)


def user(text: str) -> tuple[Role, list[Part]]:
    """A message of the user."""
    return "user", [TextPart(text=text)]


def call(call_id: str, tool: str = "a", arguments: str = "{}", step: int = 0) -> ToolCallPart:
    """A call in a step."""
    return ToolCallPart(call_id=call_id, tool=tool, arguments=arguments, step=step)


def result(call_id: str, content: str, step: int = 0) -> ToolResultPart:
    """Its result."""
    return ToolResultPart(call_id=call_id, content=content, step=step)


# -- the check itself: each rule has a view that breaks it ------------------------------------------------------


C, R = Call("c", "a", "{}"), Result("c", "a", "r")


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ("V1", (Response((C,)),)),
        ("V1", (Response((C,)), Request((UserText("x"),)), Request((R,)))),
        ("V1", (Response((C, Call("d", "a", "{}"))), Request((Result("d", "a", "r"), R)))),
        ("V1", (Response((C,)), Request((R, R)))),
        ("V2", (Request((R,)),)),
        ("V3", (Response((Call("", "a", "{}"),)), Request((Result("", "a", "r"),)))),
        ("V3", (Response((C,)), Request((R,)), Response((C,)), Request((R,)))),
        ("V4", (Request((UserText(" \n"),)),)),
        ("V4", (Response((ModelText(""),)),)),
        ("V4", (Response((C,)), Request((Result("c", "a", " "),)))),
        ("V5", (Response((Call("c", "a", "[]"),)), Request((R,)))),
        ("V6", (Response((C,)), Request((UserText("x"), R)))),
        ("V7", (Response((Reasoning("hm", "s"),)),)),
        ("V7", (Response((Reasoning("changed", "s"), ModelText("x"))),)),
        ("V8", (Request((UserText("\ud800"),)),)),
        ("V8", (Response((C,)), Request((Result("c", "a", "r", files=(UserFile("b", "\ud800"),)),)))),
        ("V8", (Response((Call("c", "a", '{"x":"\\ud800"}'),)), Request((R,)))),
    ],
)
def test_the_check_finds_every_violation(rule: str, broken: tuple[Request | Response, ...]) -> None:
    """A view that breaks a rule is reported under this rule: without this the property below would prove nothing."""
    assert any(found.startswith(rule) for found in violations(broken, frozenset({("hm", "s")})))


def test_the_check_accepts_a_valid_view() -> None:
    """A view that keeps all rules is not reported."""
    valid = (
        Request((UserText("hi"),)),
        Response((Reasoning("hm", "s"), ModelText("let me see"), Call("c", "a", "{}"))),
        Request((Result("c", "a", "r"), UserText("and?"))),
        Response((ModelText("so"),)),
    )
    assert violations(valid, frozenset({("hm", "s")})) == []


# -- properties -------------------------------------------------------------------------------------------------

# Few ids, so that they clash and cross; odd characters, so that encoding matters.
texts = st.one_of(st.sampled_from(["", " ", "\n", "hi", "a\x00b", "\ud83d", "\ud83d\ude00", "é"]), st.text(max_size=5))
call_ids = st.sampled_from(["", "c1", "c2", "c3", "dup", "bad id", "\ud800", "x" * 70])
arguments = st.one_of(
    st.sampled_from(
        ["{}", "", "[]", "null", '{"a":', '{"a":NaN}', '{"a":1e999}', '{"a":"\\ud800"}', '{"\\udc00":[1]}']
    ),
    st.sampled_from(["[" * 2_000, '{"a":' * 150 + "1" + "}" * 150]),
    texts,
)
steps = st.integers(0, 2)
files = st.lists(
    st.builds(
        FileRef,
        media_type=st.sampled_from(["image/png", "image/jpeg", "application/pdf", "", "odd"]),
        blob=st.sampled_from(["b", "f"]),
        size_bytes=st.integers(0, 4_000),
    ),
    max_size=3,
).map(tuple)
parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextPart, text=texts, step=steps),
    st.builds(ReasoningPart, text=texts, signature=st.none() | st.sampled_from(["s1", "\ud800"]), step=steps),
    st.builds(ToolCallPart, call_id=call_ids, tool=texts, arguments=arguments, error=st.none() | texts, step=steps),
    st.builds(
        ToolResultPart,
        call_id=call_ids,
        content=texts,
        outcome=st.sampled_from(["ok", "error", "denied", "interrupted", "cancelled", "expired"]),
        blob=st.none() | st.just("b"),
        files=files,
        step=steps,
    ),
    st.builds(
        EventPart,
        event_id=st.sampled_from(["e1", "e2"]),
        origin_call_id=call_ids,
        content=texts,
        origin_tool=st.none() | texts,
        origin_arguments=st.none() | arguments,
    ),
    st.builds(
        FilePart, media_type=st.just("image/png"), blob=st.just("b"), size_bytes=st.integers(0, 4_000), name=texts
    ),
)
messages: st.SearchStrategy[tuple[Role, list[Part]]] = st.tuples(
    st.sampled_from(["user", "assistant", "event"]), st.lists(parts, max_size=7)
)


def thoughts_of(conversation: Path) -> frozenset[tuple[str, str | None]]:
    """Every thought with its signature, as it was stored."""
    found = (part for message in conversation.messages for part in message.parts if isinstance(part, ReasoningPart))
    return frozenset((part.text, part.signature) for part in found)


@given(st.lists(messages, max_size=6), st.none() | st.just("what was"))
@settings(max_examples=200)
def test_any_parts_give_a_valid_view(given_messages: list[tuple[Role, list[Part]]], summary: str | None) -> None:
    """Whatever is stored, valid or not, the rules V1 to V8 hold, and building it twice gives the same."""
    conversation = path(*given_messages, summary=summary)
    seen = view(conversation, limit=5_000)
    assert violations(seen, thoughts_of(conversation)) == []
    assert sum(file.size_bytes for file in shown_files(seen)) <= 5_000
    assert not seen or isinstance(seen[0], Request)
    assert view(conversation, limit=5_000) == seen


@given(st.lists(messages, max_size=6))
@settings(max_examples=100)
def test_words_of_the_user_are_never_lost(given_messages: list[tuple[Role, list[Part]]]) -> None:
    """Every text of a user message that has a visible word is in the view, in order; a silent message leaves a note."""
    conversation = path(*given_messages)
    said = [item.text for item in items(view(conversation)) if isinstance(item, UserText)]
    for message in conversation.messages:
        words = [part.text for part in message.parts if isinstance(part, TextPart) and part.text.strip()]
        if message.role == "user":
            for text in words:
                assert clean(text) in said
                said = said[said.index(clean(text)) + 1 :]
    blank = path(("user", [TextPart(text="  ")]), ("user", []))
    assert items(view(blank)) == [UserText(NO_WORDS), UserText(NO_WORDS)]


@given(st.lists(messages, max_size=6))
@settings(max_examples=200)
def test_each_request_begins_with_the_one_before(given_messages: list[tuple[Role, list[Part]]]) -> None:
    """Cut the path wherever a request could be made: the items seen there are the beginning of what is seen later."""
    conversation = path(*given_messages)
    whole = items(view(conversation))
    for earlier in request_points(conversation):
        seen = items(view(earlier))
        assert whole[: len(seen)] == seen


def request_points(conversation: Path) -> list[Path]:
    """Beginnings of the path at which a step could start: none of them is within a step or before a result."""
    points: list[Path] = []
    for number, message in enumerate(conversation.messages):
        before: Part | None = None
        for position, part in enumerate(message.parts):
            if isinstance(part, ToolResultPart):
                continue
            between = isinstance(part, EventPart) or before is None or before.step != part.step
            before = part
            beside_result = message.role != "assistant" and any(isinstance(p, ToolResultPart) for p in message.parts)
            if beside_result or (position and message.role != "assistant") or not between:
                continue
            kept = (message.with_(parts=message.parts[:position]),) if position else ()
            points.append(Path(messages=conversation.messages[:number] + kept))
    return points


def test_the_prefix_check_finds_a_changed_beginning() -> None:
    """The control: a result that came after something else had followed would change an earlier request."""
    asked = path(user("go"), ("assistant", [call("c1")]), user("stop"))
    late = path(user("go"), ("assistant", [call("c1"), result("c1", "late")]), user("stop"))
    assert items(view(late))[: len(items(view(asked)))] != items(view(asked))


approvals = st.builds(ApprovalRequest, prompt=texts, expires_s=st.none() | st.just(60.0))
decisions = st.builds(
    Decision,
    approved=st.none() | st.booleans(),
    resolution=st.none() | st.sampled_from(["cancelled", "expired"]),
    reason=st.none() | texts,
)


@given(st.lists(messages, max_size=6), st.none() | approvals, st.none() | decisions)
@settings(max_examples=100)
def test_what_people_decide_and_note_never_reaches_the_model(
    given_messages: list[tuple[Role, list[Part]]], approval: ApprovalRequest | None, decision: Decision | None
) -> None:
    """So what is decided later changes no byte of an earlier request: the view is the same with and without it."""
    conversation = path(*given_messages)

    def asked(part: Part) -> Part:
        return part.with_(approval=approval, decision=decision) if isinstance(part, ToolCallPart) else part

    noted = tuple(
        message.with_(
            parts=tuple(map(asked, message.parts)),
            metadata={"rating": "secret"},
            source_id="secret",
            status=Status(state="requires_action", detail="secret"),
        )
        for message in conversation.messages
    )
    assert view(conversation.with_(messages=noted)) == view(conversation)


# -- single behaviours ------------------------------------------------------------------------------------------


def test_b06_a_group_answered_in_part_is_closed_when_the_user_speaks() -> None:
    """B06: results in call order, the missing ones as cancelled, the user's words after them."""
    seen = view(
        path(
            user("go"),
            ("assistant", [call("c1", "a"), call("c2", "b"), call("c3", "c"), result("c2", "two")]),
            user("stop, do X"),
        )
    )
    assert seen[-1] == Request(
        (
            Result("c1", "a", UNANSWERED, "cancelled"),
            Result("c2", "b", "two"),
            Result("c3", "c", UNANSWERED, "cancelled"),
            UserText("stop, do X"),
        )
    )


@pytest.mark.parametrize(
    "decision", [None, Decision(approved=True), Decision(approved=False), Decision(resolution="cancelled")]
)
def test_b17_a_turn_that_was_left_while_it_waited_reads_as_cancelled(decision: Decision | None) -> None:
    """B17, R6: a paused message with later ones, or one from outside whose calls have no result, is a valid view."""
    asked = call("c1", "send").with_(approval=ApprovalRequest(prompt="secret"), decision=decision)
    seen = view(path(user("go"), ("assistant", [TextPart(text="I will"), asked]), user("actually wait")))
    assert violations(seen) == []
    assert seen[1:] == (
        Response((ModelText("I will"), Call("c1", "send", "{}"))),
        Request((Result("c1", "send", UNANSWERED, "cancelled"), UserText("actually wait"))),
    )


def test_b04_a_denied_call_reads_with_its_error() -> None:
    """B04: as its result, beside those of the calls that ran; without one it still says that it was denied."""
    denied = ToolResultPart(call_id="c2", outcome="denied", content='{"error":"no"}')
    turn: list[Part] = [call("c1", "send"), call("c2", "send"), call("c3", "send"), result("c1", "sent")]
    blank = denied.with_(call_id="c3", content="")
    assert view(path(user("go"), ("assistant", [*turn, denied, blank])))[-1] == Request(
        (
            Result("c1", "send", "sent"),
            Result("c2", "send", '{"error":"no"}', "denied"),
            Result("c3", "send", "The call was denied.", "denied"),
        )
    )


@pytest.mark.parametrize("ids", [("", ""), ("dup", "dup"), ("a", "a", ""), ("has space", "has space")])
def test_b10_blank_and_repeated_ids_become_distinct_and_results_pair_in_call_order(ids: tuple[str, ...]) -> None:
    """B10: every call has its own id and its own result; the ids are the same at every read."""
    turn: list[Part] = [call(call_id, "search", f'{{"q":{number}}}') for number, call_id in enumerate(ids)]
    turn += [result(call_id, str(number)) for number, call_id in enumerate(ids)]
    conversation = path(user("go"), ("assistant", turn), ("assistant", turn))
    seen = view(conversation)
    assert violations(seen) == []
    assert [item.text for item in items(seen) if isinstance(item, Result)] == [str(n) for n in range(len(ids))] * 2
    assert view(conversation) == seen


def test_b20_signed_thoughts_go_back_byte_for_byte_in_their_order() -> None:
    """B20 (c): thought, call, thought, call, as they came."""
    seen = view(
        path(
            user("go"),
            (
                "assistant",
                [
                    ReasoningPart(text="t1", signature="s1"),
                    call("c1"),
                    ReasoningPart(text="t2", signature="s2"),
                    call("c2"),
                    result("c1", "1"),
                    result("c2", "2"),
                ],
            ),
        )
    )
    assert seen[1] == Response(
        (Reasoning("t1", "s1"), Call("c1", "a", "{}"), Reasoning("t2", "s2"), Call("c2", "a", "{}"))
    )


def test_b20_no_response_ends_on_a_thought() -> None:
    """B20 (a), (b): a thought that nothing followed is left out, and a response of nothing else with it."""
    seen = view(path(user("go"), ("assistant", [ReasoningPart(text="abc")]), user("go on")))
    assert seen == (Request((UserText("go"), UserText("go on"))),)


def test_b31_a_call_that_must_not_run_is_answered_with_its_error() -> None:
    """B31: arguments that were cut off go back as an empty object; the error says so and quotes what came."""
    cut = call("c1", "write", '{"path":"a.txt"').with_(error="It was cut off.")
    seen = view(path(user("go"), ("assistant", [cut])))
    assert seen[1] == Response((Call("c1", "write", "{}"),))
    answer = seen[2].items[0]
    assert isinstance(answer, Result)
    assert answer.outcome == "error"
    assert answer.text.startswith("It was cut off.")
    assert '{"path":"a.txt"' in answer.text


def test_b32_argument_text_keeps_its_bytes() -> None:
    """B32: key order and number forms of the arguments are the model's."""
    written = '{"path": "a", "content":"z","b":1e2, "a":1.0}'
    seen = view(path(user("go"), ("assistant", [call("c1", "a", written)])))
    assert seen[1] == Response((Call("c1", "a", written),))


@pytest.mark.parametrize("place", range(4))
def test_b34_an_orphan_result_goes_and_the_words_beside_it_stay(place: int) -> None:
    """B34: wherever an orphan stands, only the orphan is left out."""
    rows: list[tuple[Role, list[Part]]] = [("assistant", [TextPart(text="hi")]), user("a"), user("b")]
    rows.insert(place, ("user", [result("zz", "stale"), TextPart(text="please continue")]))
    seen = view(path(*rows))
    assert violations(seen) == []
    assert UserText("please continue") in items(seen)
    assert not any(isinstance(item, Result) for item in items(seen))


def test_b34_repeated_and_foreign_results_beside_words() -> None:
    """B34: of two results for a call the first counts, a foreign one goes, the text stays."""
    seen = view(
        path(
            user("go"),
            ("assistant", [call("c1")]),
            ("user", [result("c1", "1"), result("c1", "dup"), result("zz", "x"), TextPart(text="t")]),
        )
    )
    assert seen[-1] == Request((Result("c1", "a", "1"), UserText("t")))


def test_b39_five_turns_extend_each_other() -> None:
    """B39: over five turns with 20 KB results no request changes what an earlier one said."""
    rows: list[tuple[Role, list[Part]]] = []
    requests: list[list[object]] = []
    for number in range(5):
        rows.append(user(f"q{number}"))
        requests.append(items(view(path(*rows))))
        called: list[Part] = [call(f"c{number}"), result(f"c{number}", "r" * 20_000)]
        requests.append(items(view(path(*rows, ("assistant", called)))))
        rows.append(("assistant", [*called, TextPart(text="done", step=1)]))
    for earlier, later in pairwise(requests):
        assert later[: len(earlier)] == earlier


@pytest.mark.parametrize("step", [0, 1])
def test_b45_a_turn_reads_in_the_order_in_which_it_happened(step: int) -> None:
    """B45: words, calls, results, words, whatever step the last words are counted under."""
    turn: list[Part] = [TextPart(text="let me look"), call("c1"), call("c2"), result("c1", "1"), result("c2", "2")]
    seen = view(path(user("go"), ("assistant", [*turn, TextPart(text="sum", step=step)])))
    assert items(seen[1:]) == [
        ModelText("let me look"),
        Call("c1", "a", "{}"),
        Call("c2", "a", "{}"),
        Result("c1", "a", "1"),
        Result("c2", "a", "2"),
        ModelText("sum"),
    ]


@pytest.mark.parametrize("length", range(1, 7))
def test_b47_a_thought_stays_with_what_it_led_to(length: int) -> None:
    """B47: wherever the conversation ends, a thought is there if and only if what follows it is."""
    turn: list[Part] = [
        ReasoningPart(text="r1", signature="s"),
        call("c1"),
        result("c1", "1"),
        ReasoningPart(text="r2", signature="s", step=1),
        TextPart(text="x", step=1),
    ]
    seen = items(view(path(user("go"), ("assistant", turn[: length - 1]))))
    assert (Reasoning("r1", "s") in seen) == (Call("c1", "a", "{}") in seen)
    assert (Reasoning("r2", "s") in seen) == (ModelText("x") in seen)


def test_b69_long_integers_keep_their_digits() -> None:
    """B69: 19 digits and 10**30 in arguments and results are not touched, even where strings had to be repaired."""
    number = 10**30 + 2512292042121000001
    odd = f'{{"id":{number},"text":"\\ud800"}}'
    seen = view(path(user("go"), ("assistant", [call("c1", "a", odd), result("c1", str(number))])))
    repaired = seen[1].items[0]
    assert isinstance(repaired, Call)
    assert str(number) in repaired.arguments
    assert seen[2].items[0] == Result("c1", "a", str(number))


def test_events_are_a_call_and_its_result() -> None:
    """An event reads as a call that the model never made, with the event as its result."""
    event = EventPart(event_id="e1", origin_call_id="c1", content="it rains")
    seen = view(path(user("watch"), ("assistant", [TextPart(text="ok")]), ("event", [event])))
    made = seen[2].items[0]
    assert isinstance(made, Call)
    assert (made.tool, made.arguments) == (EVENT_TOOL, '{"call_id":"c1","event_id":"e1"}')
    assert seen[3] == Request((Result(made.call_id, EVENT_TOOL, "it rains"),))


def origin_of(event: EventPart) -> object:
    """The arguments of the call that an event is shown as."""
    seen = view(path(user("go"), ("event", [event])))
    assert violations(seen) == []
    (made,) = seen[1].items
    assert isinstance(made, Call)
    return loads_object(made.arguments)


def test_an_event_names_the_call_that_it_goes_back_to() -> None:
    """Its tool, id and arguments, as they were stored with the event; what is no object is an empty one."""
    event = EventPart(
        event_id="e1", origin_call_id="c1", origin_tool="watch", origin_arguments='{"city":"Paris","n":1}'
    )
    named = {"original_tool_name": "watch", "original_tool_call_id": "c1"}
    assert origin_of(event) == {**named, "original_args": {"city": "Paris", "n": 1}}
    deep = '{"a":' * MAX_LEVELS + "1" + "}" * MAX_LEVELS
    for odd in (None, "", "[]", '{"a":', '{"a":NaN}', deep):
        assert origin_of(event.with_(origin_arguments=odd)) == {**named, "original_args": {}}
    fits = deep[5:-1]
    assert origin_of(event.with_(origin_arguments=fits)) == {**named, "original_args": loads_object(fits)}


def test_events_of_rows_without_an_origin_read_as_ever() -> None:
    """What was shown before origins were stored stays byte for byte, so that no prompt cache is lost."""
    seen = view(path(user("go"), ("event", [EventPart(event_id="e1", origin_call_id="c1")])))
    (made,) = seen[1].items
    assert isinstance(made, Call)
    assert made.arguments == '{"call_id":"c1","event_id":"e1"}'


SEED = call("s1", "spawn_thread", '{"instructions":"count","child_of":["r"]}')


def test_a_child_begins_with_the_call_that_made_it_and_its_result() -> None:
    """Behind the inherited beginning of the parent's turn: a response with the call, its result, then the event."""
    event = EventPart(event_id="e1", origin_call_id="c0", content="it rains", origin_tool="watch")
    seen = view(
        path(
            user("go"),
            ("assistant", [ReasoningPart(text="hm", signature="s"), TextPart(text="I will ask")]),
            ("event", [SEED, result("s1", "You are thread c1."), event]),
        )
    )
    assert violations(seen) == []
    made = seen[4].items[0]
    assert isinstance(made, Call)
    assert seen[1:] == (
        Response((Reasoning("hm", "s"), ModelText("I will ask"))),
        Response((Call("s1", "spawn_thread", SEED.arguments),)),
        Request((Result("s1", "spawn_thread", "You are thread c1."),)),
        Response((made,)),
        Request((Result(made.call_id, EVENT_TOOL, "it rains"),)),
    )


EVENT = EventPart(event_id="e1", origin_call_id="c0", content="it rains")


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        ([SEED], [("spawn_thread", UNANSWERED)]),
        ([result("s1", "stray")], []),
        ([SEED, EVENT], [("spawn_thread", UNANSWERED), (EVENT_TOOL, "it rains")]),
        ([SEED, result("s1", "1"), result("s1", "2")], [("spawn_thread", "1")]),
        ([SEED, SEED, result("s1", "1"), result("s1", "2")], [("spawn_thread", "1"), ("spawn_thread", "2")]),
        ([EVENT, SEED, result("s1", "1")], [(EVENT_TOOL, "it rains"), ("spawn_thread", "1")]),
        ([EVENT, EVENT, result("s1", "1")], [(EVENT_TOOL, "it rains"), (EVENT_TOOL, "it rains")]),
        ([SEED, result("zz", "1")], [("spawn_thread", UNANSWERED)]),
        ([ReasoningPart(text="hm"), SEED, result("s1", "1")], [("spawn_thread", "1")]),
    ],
    ids=[
        "no result",
        "no call",
        "no result, event",
        "two results",
        "twice",
        "event first",
        "events",
        "foreign",
        "thought",
    ],
)
def test_a_broken_beginning_of_a_child_is_repaired(parts: list[Part], shown: list[tuple[str, str]]) -> None:
    """Whatever is missing, doubled or out of order, each call has one result, and the words after it are heard."""
    seen = view(path(user("go"), ("event", parts), user("and now?")))
    assert violations(seen) == []
    assert [(item.tool, item.text) for item in items(seen) if isinstance(item, Result)] == shown
    assert items(seen)[-1] == UserText("and now?")


def test_a_child_and_its_parent_read_the_same_up_to_where_they_part() -> None:
    """What the child inherited is the beginning of what its parent goes on with, so one prompt cache serves both."""
    before: list[tuple[Role, list[Part]]] = [user("go")]
    spoken: list[Part] = [TextPart(text="I will ask")]
    parent = items(view(path(*before, ("assistant", [*spoken, call("s1", "spawn_thread"), result("s1", "started")]))))
    child = items(view(path(*before, ("assistant", spoken), ("event", [SEED, result("s1", "You are thread c1.")]))))
    assert parent[:2] == child[:2] == [UserText("go"), ModelText("I will ask")]


def image(blob: str, size_bytes: int = 40) -> FileRef:
    """An image in a result."""
    return FileRef(media_type="image/png", blob=blob, size_bytes=size_bytes)


def test_files_of_a_result_follow_its_text() -> None:
    """In their order, with their type and size; a result of files alone says so."""
    shot = ToolResultPart(call_id="c1", content="a cat", files=(image("f1"), image("f2")))
    seen = view(path(user("go"), ("assistant", [call("c1"), shot])))
    shown = (UserFile("f1", "image/png", 40), UserFile("f2", "image/png", 40))
    assert seen[2] == Request((Result("c1", "a", "a cat", "ok", shown),))
    silent = view(path(user("go"), ("assistant", [call("c1"), shot.with_(content=" ")])))
    assert silent[2] == Request((Result("c1", "a", ONLY_FILES, "ok", shown),))


def test_large_events_and_results_say_how_large_they_are() -> None:
    """What the model does not see in full is marked with the full size."""
    event = EventPart(event_id="e1", origin_call_id="c1", content="é" * 40_000, blob="b")
    clipped = ToolResultPart(call_id="c1", content="begin", size_bytes=5_000_000, blob="b")
    texts = [
        item.text
        for item in items(view(path(user("go"), ("assistant", [call("c1"), clipped]), ("event", [event]))))
        if isinstance(item, Result)
    ]
    assert texts[0] == (
        'begin\n\n[Cut off here; the whole result has 5000000 bytes. Read on with read_result(call_id="c1", offset=5).]'
    )
    assert "[Cut off here; the whole event has 80000 bytes. Read on with read_result(call_id=" in texts[1]
    assert texts[1].endswith(f"offset={2 * EVENT_CHARS}).]")
    assert len(texts[1]) < EVENT_CHARS + 200


def test_a_summary_comes_first_as_words_of_the_user_side() -> None:
    """What was compacted is read as a message, and what follows after it."""
    seen = view(path(user("and now?"), summary="They spoke of tea."))
    assert seen == (
        Request((UserText("Summary of the conversation so far:\n\nThey spoke of tea."), UserText("and now?"))),
    )


def test_a_conversation_never_opens_with_the_model() -> None:
    """Providers want the user first, so a greeting of the model gets a line before it."""
    assert view(path(("assistant", [TextPart(text="hi")])))[0] == Request((UserText(OPENING),))


def test_a_text_that_was_not_loaded_is_a_bug_and_never_silence() -> None:
    """A text in a blob that nobody resolved raises instead of leaving the user's words out."""
    with pytest.raises(ValueError, match="bug"):
        view(path(("user", [TextPart(text="", blob="b")])))


def test_surrogates_are_joined_or_replaced() -> None:
    """Two halves become their character, a lone half a replacement character."""
    assert clean("\ud83d\ude00") == "😀"
    assert clean("a\ud800b") == "a\ufffdb"
