"""What holds for the view of any conversation whatever."""

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.approval import ApprovalRequest, Decision
from perdure.messages import EventPart, Part, Role, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.records import Path
from perdure.view import NO_WORDS, Request, UserText, clean, view
from tests.perdure.view_paths import call, messages, path, result, texts, thoughts_of, user
from tests.perdure.view_rules import items, shown_files, violations


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
