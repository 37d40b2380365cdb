"""The turn buffer: chunks become parts, the same for everybody who puts them together."""

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from perdure.messages import FilePart, Part, ReasoningPart, TextPart, ToolCallPart
from perdure.turn_buffer import Chunk, TurnBuffer, sealed_parts, trim_reasoning
from tests.properties import hostile_text

TEXT, THOUGHT, CALL = TextPart(text="a"), ReasoningPart(text="b", signature="s"), ToolCallPart(call_id="c", tool="t")


@given(hostile_text.filter(lambda text: bool(text.strip())), st.lists(st.integers(0, 300), max_size=8))
def test_pieces_of_one_text_are_joined(text: str, cuts: list[int]) -> None:
    """However a text is cut into chunks, one part comes out, to the last half of a character."""
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[start:end] for start, end in pairwise(places)]
    buffer = TurnBuffer([Chunk(index=0, part=TextPart()), *(Chunk(index=0, delta=piece) for piece in pieces)])
    assert buffer.parts == (TextPart(text=text),)


@given(st.lists(st.sampled_from("abc"), max_size=12))
def test_parts_stand_in_the_order_of_their_indexes(letters: list[str]) -> None:
    """Parts may stream interleaved."""
    chunks = [Chunk(index=ord(letter), delta=letter) for letter in letters]
    texts = [part.text for part in TurnBuffer(chunks).parts if isinstance(part, TextPart)]
    assert texts == sorted({"".join(other for other in letters if other == letter) for letter in letters})


def test_a_delta_without_an_opening_is_text() -> None:
    """Streams that send words only need no opening chunk."""
    assert TurnBuffer([Chunk(index=3, delta="hi")]).parts == (TextPart(text="hi"),)


def test_thoughts_and_arguments_are_joined_too() -> None:
    """A delta adds to whatever its part is made of."""
    buffer = TurnBuffer([Chunk(index=0, part=THOUGHT), Chunk(index=0, delta="x")])
    buffer.add(Chunk(index=1, part=CALL.with_(arguments='{"a"'), delta=":1}"))
    assert buffer.parts == (THOUGHT.with_(text="bx"), CALL.with_(arguments='{"a":1}'))


def test_a_new_opening_replaces_the_part() -> None:
    """A call that is complete is sent again as a whole."""
    buffer = TurnBuffer([Chunk(index=0, part=TextPart(text="old")), Chunk(index=0, delta="er")])
    buffer.add(Chunk(index=0, part=CALL))
    assert buffer.parts == (CALL,)


def test_blank_texts_are_left_out_and_blobs_are_not_blank() -> None:
    """No provider takes blank text back; a text whose words are in a blob is not blank."""
    blob = TextPart(blob="b")
    buffer = TurnBuffer([Chunk(index=0, delta=" \n"), Chunk(index=1, part=blob), Chunk(index=2, part=TextPart())])
    assert buffer.parts == (blob,)


@given(st.lists(st.builds(Chunk, index=st.integers(0, 3), delta=st.sampled_from(["", "a", " b"])), max_size=10))
def test_the_chunks_of_a_buffer_make_the_same_buffer(chunks: list[Chunk]) -> None:
    """One chunk for each part replaces whatever a reader had of it."""
    buffer = TurnBuffer(chunks)
    assert TurnBuffer([*chunks, *buffer.chunks()]).parts == buffer.parts
    assert TurnBuffer(buffer.chunks()).parts == buffer.parts


def test_a_cleared_buffer_is_empty() -> None:
    """Nothing of a discarded attempt is left."""
    buffer = TurnBuffer([Chunk(index=0, delta="a")])
    assert buffer
    buffer.clear()
    assert not buffer
    assert buffer.parts == ()
    assert not TurnBuffer()


def test_trailing_reasoning_is_trimmed_and_nothing_else() -> None:
    """No committed step ends on a thought; thoughts before other parts stay."""
    assert trim_reasoning((THOUGHT, TEXT, THOUGHT, THOUGHT)) == (THOUGHT, TEXT)
    assert trim_reasoning((TEXT,)) == (TEXT,)
    assert trim_reasoning((THOUGHT,)) == ()
    assert trim_reasoning(()) == ()


def test_b20_of_a_stopped_step_stay_texts_and_whole_signed_thoughts() -> None:
    """A thought that was cut off, or that its provider did not sign, must not go back; calls were never durable."""
    unsigned = ReasoningPart(text="half a th")
    file = FilePart(media_type="image/png", blob="b")
    assert sealed_parts((THOUGHT, TEXT, unsigned, CALL, file)) == (THOUGHT, TEXT)
    assert sealed_parts((TEXT, THOUGHT)) == (TEXT,)
    assert sealed_parts((THOUGHT, CALL)) == ()


PARTS: st.SearchStrategy[list[Part]] = st.lists(
    st.sampled_from([TEXT, THOUGHT, ReasoningPart(text="u"), CALL]), max_size=8
)


@given(PARTS)
def test_what_stays_of_a_step_is_a_part_of_it(parts: list[Part]) -> None:
    """Sealing and trimming only leave out; what they leave ends on no thought, and doing it again changes nothing."""
    for kept in (sealed_parts(tuple(parts)), trim_reasoning(tuple(parts))):
        rest = iter(parts)
        assert all(any(part is other for other in rest) for part in kept)
        assert not (kept and isinstance(kept[-1], ReasoningPart))
        assert trim_reasoning(kept) == kept


def test_the_answer_grows_chunk_by_chunk() -> None:
    """At every moment a reader sees a beginning of the whole answer."""
    words = ["one ", "two ", "three"]
    buffer = TurnBuffer()
    for chunk, so_far in zip((Chunk(index=0, delta=word) for word in words), accumulate(words), strict=True):
        buffer.add(chunk)
        assert buffer.parts == (TextPart(text=so_far),)
