"""The bounded memory of what was used last."""

from activities.recent import Recent


def test_what_was_not_used_for_the_longest_time_is_forgotten() -> None:
    """Reading counts as using, and so does writing again."""
    recent = Recent[str, int](max_kept=3)
    for number, key in enumerate("abc"):
        assert recent.put(key, number) == number
    assert recent.get("a") == 0
    recent.put("b", 5)
    recent.put("d", 3)
    assert [recent.get(key) for key in "abcd"] == [0, 5, None, 3]
