"""Where the model reads what context providers say, and what a compaction has left."""

from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.messages import ContextPart, Part, Role, TextPart
from perdure.records import Summary, SummaryItem
from perdure.turn_context import ContextMessage, ProviderContext, TurnContext
from perdure.view import (
    OPENING,
    SHORTENED_HEADING,
    Call,
    ModelText,
    Request,
    Response,
    Result,
    UserText,
    last_turn,
    view,
)
from tests.perdure.view_paths import call, messages, path, result, thoughts_of, user
from tests.perdure.view_rules import items, violations

Speaker = Literal["user", "assistant"]


def told(*texts: str, source: str = "p", step: int = 0, role: Speaker = "user") -> ProviderContext:
    """What a provider says."""
    return ProviderContext(
        source=source, step=step, messages=tuple(ContextMessage(text=text, role=role) for text in texts)
    )


def kept(text: str, source: str = "p", step: int = 0, role: Speaker = "user") -> ContextPart:
    """The same, stored with the turn."""
    return ContextPart(source=source, text=text, step=step, role=role)


def answer(*parts: Part) -> tuple[Role, list[Part]]:
    """A message of the model."""
    return "assistant", list(parts)


def text(words: str, step: int = 0) -> TextPart:
    """Words of a step."""
    return TextPart(text=words, step=step)


def test_words_of_providers_stand_before_the_words_that_the_turn_answers() -> None:
    """After the conversation so far; of several providers one's follow the other's."""
    said = TurnContext(providers=(told("fact 1", "fact 2"), told("fact 3", source="q")))
    seen = view(path(user("hi"), answer(text("hello")), user("and?"), user("well?"), answer()), said)
    assert seen == (
        Request((UserText("hi"),)),
        Response((ModelText("hello"),)),
        Request(tuple(map(UserText, ("fact 1", "fact 2", "fact 3", "and?", "well?")))),
    )


def test_results_of_the_step_before_stay_first() -> None:
    """V6: a turn that was steered left results, which every provider wants directly after their calls."""
    said = TurnContext(providers=(told("fact"),))
    seen = view(path(user("hi"), answer(call("c1"), result("c1", "one")), user("stop that"), answer()), said)
    assert violations(seen) == []
    assert seen[-1] == Request((Result("c1", "a", "one"), UserText("fact"), UserText("stop that")))


def test_results_in_the_user_s_own_message_are_not_parted_from_their_calls() -> None:
    """B34: an imported message that holds results and words: what is said stands between the two."""
    mixed: tuple[Role, list[Part]] = ("user", [result("c1", "one"), TextPart(text="also do Z")])
    seen = view(path(user("hi"), answer(call("c1")), mixed, answer()), TurnContext(providers=(told("fact"),)))
    assert violations(seen) == []
    assert seen[-1] == Request((Result("c1", "a", "one"), UserText("fact"), UserText("also do Z")))


def test_what_is_said_before_a_later_call_stands_at_the_end_and_stays_there() -> None:
    """After the results of the step before; in the requests that follow, before what the model answered to it."""
    step_0 = (call("c1"), result("c1", "one"))
    step_1 = (call("c2", step=1), result("c2", "two", step=1))
    said = [told("now 0"), told("now 1", step=1), told("now 2", step=2)]
    first = view(path(user("hi"), answer()), TurnContext(providers=tuple(said[:1])))
    second = view(path(user("hi"), answer(*step_0)), TurnContext(providers=tuple(said[:2]), step=1))
    third = view(path(user("hi"), answer(*step_0, *step_1)), TurnContext(providers=tuple(said), step=2))
    assert second[-1] == Request((Result("c1", "a", "one"), UserText("now 1")))
    assert third[-1] == Request((Result("c2", "a", "two"), UserText("now 2")))
    assert items(second)[: len(items(first))] == items(first)
    assert items(third)[: len(items(second))] == items(second)


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_what_is_stored_is_read_in_the_same_place_ever_after(role: Speaker) -> None:
    """Each request begins with the one before it, over steps and turns, whoever the words are given to."""
    step_0: list[Part] = [kept("fact", role=role), call("c1"), result("c1", "one")]
    step_1: list[Part] = [kept("more", step=1, role=role), text("so", 1)]
    now = told("fact", role=role), told("more", step=1, role=role)
    requests = [
        view(path(user("hi"), answer()), TurnContext(providers=now[:1])),
        view(
            path(user("hi"), answer(*step_0)),
            TurnContext(providers=(now[0].with_(messages=()), now[1]), step=1),
        ),
        view(path(user("hi"), answer(*step_0, *step_1), user("and?"), answer())),
    ]
    for earlier, later in pairwise(requests):
        assert violations(later) == []
        assert isinstance(earlier[-1], Request)
        assert items(later)[: len(items(earlier))] == items(earlier)
    speaker = {"user": UserText, "assistant": ModelText}[role]
    first = [OPENING] if role == "assistant" else []
    assert items(requests[0]) == [*map(UserText, first), speaker("fact"), UserText("hi")]


def test_stored_and_new_words_keep_the_order_of_the_providers() -> None:
    """Of three providers only the second's words are stored: within the turn no request is changed by that."""
    said = [told("one", source="p"), told("two", source="q"), told("three", source="r")]
    first = view(path(user("hi"), answer()), TurnContext(providers=tuple(said)))
    said[1] = said[1].with_(messages=())
    turn = answer(kept("two", source="q"), call("c1"), result("c1", "x"))
    second = view(path(user("hi"), turn), TurnContext(providers=tuple(said), step=1))
    assert items(second)[: len(items(first))] == items(first)


def test_without_words_to_stand_before_it_is_the_user_s_side_that_speaks() -> None:
    """No request ends with the model, which some providers take for the beginning of its answer."""
    said = TurnContext(providers=(told("fact", role="assistant"),))
    assert view(path(user("hi"), answer(text("so")), answer()), said)[-1] == Request((UserText("fact"),))
    assert view(path(answer()), said) == (Request((UserText("fact"),)),)


def test_what_replaces_the_conversation_is_read_instead_of_all_before_the_turn() -> None:
    """Also of the summary; the turn's own words and steps are there, and stored words of earlier turns are not."""
    conversation = path(
        user("hi"), answer(kept("old"), text("hello")), user("and?"), answer(call("c1"), result("c1", "x")), summary="s"
    )
    replaced = ProviderContext(
        source="p", replace=(ContextMessage(text="They greeted."), ContextMessage(text="Hello!", role="assistant"))
    )
    seen = view(conversation, TurnContext(providers=(replaced, told("fact", source="q")), step=1))
    assert seen == (
        Request((UserText("They greeted."),)),
        Response((ModelText("Hello!"),)),
        Request((UserText("fact"), UserText("and?"))),
        Response((Call("c1", "a", "{}"),)),
        Request((Result("c1", "a", "x"),)),
    )
    nothing = TurnContext(providers=(ProviderContext(source="history", replace=()),))
    assert items(view(conversation, nothing))[0] == UserText("and?")


def test_the_last_turn_begins_with_all_words_since_the_answer_before_it() -> None:
    """Whatever turns they were meant for; without an answer at the end it is the words alone."""
    rows: list[tuple[Role, list[Part]]] = [user("1"), answer(), user("2"), ("event", []), answer()]
    assert [last_turn(path(*rows[:end]).messages) for end in range(6)] == [0, 0, 0, 2, 2, 2]


contexts = st.builds(
    TurnContext,
    providers=st.lists(
        st.builds(
            told,
            st.sampled_from(["", " ", "fact", "fact \ud800"]),
            source=st.sampled_from(["p", "q"]),
            step=st.integers(0, 3),
            role=st.sampled_from(["user", "assistant"]),
        ),
        max_size=4,
    ).map(tuple),
)
stored = st.builds(
    kept,
    st.sampled_from(["", "stored", "\ud800"]),
    source=st.sampled_from(["p", "q"]),
    step=st.integers(0, 3),
    role=st.sampled_from(["user", "assistant"]),
)


@given(st.lists(st.tuples(messages, st.lists(stored, max_size=3)), max_size=6), contexts)
@settings(max_examples=150)
def test_whatever_is_said_the_view_is_valid_and_loses_nothing(
    rows: list[tuple[tuple[Role, list[Part]], list[ContextPart]]], said: TurnContext
) -> None:
    """V1 to V8 hold, all that is said is there once, and all else is what it is without it."""
    both: list[tuple[Role, list[Part]]] = [(role, [*parts, *more]) for (role, parts), more in rows]
    conversation = path(*both)
    seen = view(conversation, said)
    assert violations(seen, thoughts_of(conversation)) == []
    assert not seen or isinstance(seen[0], Request)
    new = {(one.step, one.source): one.messages for one in said.providers}
    count = sum(message.text.startswith("fact") for now in new.values() for message in now)
    bare = path(*(row for row, _ in rows))
    said_now = [item for item in items(view(bare, said)) if is_said(item)]
    assert len(said_now) == count
    assert not_said(view(bare, said)) == not_said(view(bare))


def is_said(item: object) -> bool:
    """Whether a provider has said it."""
    return isinstance(item, UserText | ModelText) and item.text.startswith("fact")


def not_said(seen: tuple[Request | Response, ...]) -> list[object]:
    """What nobody but the conversation says. It opens in another way if the model's side is given the first words."""
    return [item for item in items(seen) if not is_said(item) and item != UserText(OPENING)]


def test_items_of_a_summary_are_read_in_order_after_a_heading() -> None:
    """Words of both sides, as they were; the newest messages follow as ever."""
    kept_items = (
        SummaryItem(role="user", text="hi"),
        SummaryItem(role="assistant", text="hello"),
        SummaryItem(role="assistant", text=" "),
        SummaryItem(role="user", text="odd \ud800"),
    )
    summary = Summary(id="s", thread_id="t", message_id="m", parts=1, text="", kind="trace", items=kept_items)
    seen = view(path(user("and now?")).with_(summary=summary))
    assert violations(seen) == []
    assert seen == (
        Request((UserText(SHORTENED_HEADING), UserText("hi"))),
        Response((ModelText("hello"),)),
        Request((UserText("odd \ufffd"), UserText("and now?"))),
    )


def test_b13_the_rest_of_a_turn_that_a_summary_cuts_is_a_valid_view() -> None:
    """B13: whatever part of the turn a summary ends at, an orphan result is left out and the user's words are there."""
    parts: list[Part] = [
        call("c1"),
        call("c2"),
        result("c1", "1"),
        result("c2", "2"),
        text("mid", 1),
        call("c3", step=2),
    ]
    rest: list[tuple[Role, list[Part]]] = [("user", [result("c3", "3"), TextPart(text="also do Z")]), answer()]
    for cut in range(len(parts) + 1):
        conversation = path(answer(*parts[cut:]), *rest, summary="what was")
        seen = view(conversation, TurnContext(providers=(told("fact"),)))
        assert violations(seen) == []
        assert items(seen)[-2:] == [UserText("fact"), UserText("also do Z")]
