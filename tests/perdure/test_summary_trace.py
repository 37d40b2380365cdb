"""What a trace keeps of a conversation, and what a summariser is shown of it."""

from perdure.messages import ContextPart, EventPart, FilePart, FileRef, Part
from perdure.records import Path, Summary, SummaryItem
from perdure.summary_prompt import TEXT_CHARS, pieces, prompt
from perdure.summary_text import CUT_OFF, Facts, composed
from perdure.summary_trace import EARLIER, OLDER, trace
from perdure.view import view
from tests.compaction.paths import THREAD, answer, call, message, path, result, text, thought, user
from tests.perdure.view_rules import violations

IMAGE = FilePart(media_type="image/png", blob="b", size_bytes=9, name="a.png")
TALK = path(
    user("U1", "one", IMAGE),
    answer("A1", thought("hm"), text("let me see"), call("c1"), result("c1", "line\nbreak " * 50), text("so", 1)),
    message("E", "event", (EventPart(event_id="e", origin_call_id="c", origin_tool="watch", content="rain"),)),
)


def roles(items: tuple[SummaryItem, ...]) -> list[str]:
    """Whose they are."""
    return [item.role for item in items]


def test_words_stay_and_a_call_is_one_line_of_the_users_side() -> None:
    """The model would imitate lines that it seems to have written, so they are not on its side."""
    items = trace(TALK, 10_000)
    assert roles(items) == ["user", "user", "assistant", "user", "assistant", "user"]
    texts = [item.text for item in items]
    assert texts[0] == "one"
    assert texts[1] == "[file: a.png, image/png, 9 bytes; sent earlier]"
    assert texts[2] == "let me see"
    assert texts[3].startswith('[tool call look_up({"key":1}), ok: line break line break')
    assert "\n" not in texts[3]
    assert texts[4:] == ["so", "[event of watch: rain]"]
    assert all("tool call" not in item.text for item in items if item.role == "assistant")


def test_a_trace_is_a_valid_view() -> None:
    """As the model reads it, no rule is broken: there is no call and no result in it."""
    summary = Summary(id="s", thread_id=THREAD, message_id="E", parts=1, text="f", items=trace(TALK, 10_000))
    assert violations(view(Path(summary=summary, messages=(user("U2", "on"),)))) == []


def test_a_trace_on_top_of_a_trace_goes_on_from_it() -> None:
    """B27: the items of the first one come once, without its facts, which are made anew."""
    first = trace(TALK, 10_000)
    facts = SummaryItem(role="user", text="Known exactly: old")
    earlier = Summary(id="s", thread_id=THREAD, message_id="E", parts=1, text=facts.text, items=(*first, facts))
    second = trace(Path(summary=earlier, messages=(user("U2", "two"),)), 10_000)
    assert second == (*first, SummaryItem(role="user", text="two"))


def test_a_trace_on_top_of_a_summary_keeps_its_words() -> None:
    """When an agent's strategy was changed, what the summary says is not forgotten."""
    earlier = Summary(id="s", thread_id=THREAD, message_id="E", parts=1, text=composed("F1", Facts(messages=3)))
    assert trace(Path(summary=earlier), 1_000) == (SummaryItem(role="user", text=f"{EARLIER}\n\nF1"),)


def test_a_trace_is_bounded() -> None:
    """Long words are cut off, and the oldest give way to one note, however often that happens."""
    many = path(*(user(f"U{number}", f"{number} " + "x" * 500) for number in range(100)))
    items = trace(many, 2_000)
    assert items[0].text == OLDER
    assert items[-1].text.startswith("99 ")
    assert sum(len(item.text) for item in items[1:]) <= 2_000
    long = trace(path(user("U", "y" * 50_000)), 2_000)
    assert long[0].text.endswith(CUT_OFF)
    facts = SummaryItem(role="user", text="facts")
    earlier = Summary(id="s", thread_id=THREAD, message_id="U99", parts=1, text="facts", items=(*items, facts))
    again = trace(Path(summary=earlier, messages=many.messages), 2_000)
    assert [item.text for item in again].count(OLDER) == 1


def test_the_transcript_has_everything_but_thoughts_and_context() -> None:
    """Words, calls, results and events are there in order; files are notes; thoughts and context are left out."""
    kept: tuple[Part, ...] = (ContextPart(source="s", text="secret"), *TALK.messages[1].parts)
    shown = path(TALK.messages[0], TALK.messages[1].with_(parts=kept), TALK.messages[2])
    (piece,) = pieces(shown, 100_000)
    lines = piece.split("\n")
    assert lines[:2] == ["User: one", "[file: a.png, image/png, 9 bytes; not shown]"]
    assert lines[2] == "Assistant: let me see"
    assert lines[3] == 'Tool call look_up: {"key":1}'
    assert lines[4] == "Tool result, ok: line"
    assert lines[-2:] == ["Assistant: so", "Event of watch: rain"]
    assert "hm" not in piece
    assert "secret" not in piece


def test_images_of_results_are_notes() -> None:
    """B54: no file goes to the summariser."""
    shot = result("c1", "here").with_(files=(FileRef(media_type="image/png", blob="b", size_bytes=800_000),))
    (piece,) = pieces(path(answer("A", call("c1"), shot)), 100_000)
    assert piece.endswith("Tool result, ok: here [file: image/png, 800000 bytes; not shown]")


def test_pieces_have_no_more_characters_than_they_may() -> None:
    """Each entry is in one piece, in order; one that is too long for a piece keeps its beginning and its end."""
    talk = path(*(user(f"U{number}", f"<{number}>" + "x" * 80) for number in range(50)))
    found = pieces(talk, 300)
    assert all(len(piece) <= 300 for piece in found)
    assert [piece.count("<") for piece in found] == [3] * 16 + [2]
    assert "".join(found).count("<49>") == 1
    (long,) = pieces(path(user("U", "begin" + "x" * TEXT_CHARS * 100 + "end")), 300)
    assert len(long) <= 300
    assert "begin" in long
    assert "end" in long
    assert "characters left out" in long


def test_hostile_text_is_made_fit_to_be_sent() -> None:
    """NUL stays, halves of pairs are replaced: the request can be encoded."""
    (piece,) = pieces(path(user("U", "a\x00b\ud800"), answer("A", call("c"), result("c", "\udfff"))), 1_000)
    assert "a\x00b" in piece
    piece.encode("utf-8")


def test_the_earlier_summary_comes_once_and_first() -> None:
    """B27: what the summariser reads is the summary so far and what came since."""
    words = prompt("BEFORE", "SINCE", 600)
    assert words.index("BEFORE") < words.index("SINCE")
    assert words.count("BEFORE") == 1
    assert "at most 100 words" in words
    assert "summary_of" not in prompt("", "SINCE", 600)
