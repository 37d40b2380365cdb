"""The check that tests of the view rely on: each rule has a view that breaks it."""

import pytest

from perdure.view import Call, ModelText, Reasoning, Request, Response, Result, UserFile, UserText
from tests.perdure.view_rules import violations

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
