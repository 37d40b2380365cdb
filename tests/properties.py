"""How far property tests look: quick by default, far with HYPOTHESIS_PROFILE=deep. Import it where one is written.

It also holds the strategies that several of them share.
"""

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["few_words", "hostile_text", "json_values", "paired", "settings"]

# No deadline: these tests share their machine with servers, and a slow moment is not a failure.
settings.register_profile("quick", max_examples=60, stateful_step_count=40, deadline=None)
settings.register_profile(
    "deep",
    max_examples=3_000,
    stateful_step_count=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def paired(text: str) -> str:
    """The text with halves that stand together joined to their character, which is what JSON makes of them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


hostile_text: st.SearchStrategy[str] = st.one_of(
    st.text(),
    st.text(alphabet=st.characters(categories=["Cs", "Cc", "Lu", "So"])),
    st.sampled_from(["", " ", "\x00", "\ud83d", "\ude42\ud83d", "a\ud800b", "🙂", "\u2028", "\x1b[31m", "x" * 300]),
).map(paired)
"""Words as people, models and tools send them: NUL, halves of surrogate pairs, controls."""

few_words: st.SearchStrategy[str] = st.sampled_from(["hi", "ho", "\x00\ud83d"])
"""So few that the same ones come again."""

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | hostile_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile_text, inner, max_size=3),
    max_leaves=8,
)
"""Whatever JSON can hold."""
