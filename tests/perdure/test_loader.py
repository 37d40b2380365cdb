"""`module:attribute`: what it may name, and one clear line for what it may not."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.agent import Agent, Agents
from perdure.errors import ConfigurationError, UsageError
from perdure.loader import DEMO, load_agents, load_codec

PRELUDE = "from perdure.agent import Agent, Agents\none, two = Agent('one', model='m'), Agent('two', model='m')\n"
Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module into the current folder and returns its name, a new one each time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"agents_{tmp_path.name}".replace("-", "_")

    def write_module(source: str) -> str:
        (tmp_path / f"{name}.py").write_text(PRELUDE + source)
        return name

    return write_module


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("found = one", ["one"]),
        ("found = [two, one]", ["two", "one"]),
        ("found = (one,)", ["one"]),
        ("found = Agents([one, two])", ["one", "two"]),
        ("def found(): return [one]", ["one"]),
        ("class found:\n    def __new__(cls): return one", ["one"]),
    ],
)
def test_what_names_agents(write: Write, source: str, names: list[str]) -> None:
    """An agent, several in their order, and a function without arguments that makes them are all taken."""
    assert list(load_agents(f"{write(source)}:found")) == names


def test_the_attribute_may_have_dots(write: Write) -> None:
    """An attribute of an attribute is found."""
    assert list(load_agents(f"{write('class Team: lead = two')}:Team.lead")) == ["two"]


def test_the_demo_needs_nothing() -> None:
    """The built-in agents load without a key, and the first is `demo`."""
    agents = load_agents(DEMO)
    assert isinstance(agents, Agents)
    assert isinstance(agents.default, Agent)
    assert agents.default.name == "demo"


@pytest.mark.parametrize("target", ["", "agents", ":agent", "agents:"])
def test_a_target_without_module_or_attribute(target: str) -> None:
    """Anything but module:attribute is refused with the form that is wanted."""
    with pytest.raises(UsageError, match="write module:attribute"):
        load_agents(target)


def test_an_unknown_module(write: Write) -> None:
    """A module that does not exist is named together with the folder that was looked in."""
    write("")
    with pytest.raises(UsageError, match=rf"There is no module 'no_such_module' here \({Path.cwd()}\)"):
        load_agents("no_such_module:agent")


@pytest.mark.parametrize("load", [load_agents, load_codec])
@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("./{name}:one", "'./{name}' is no name of a module. Write {name}:one: it is the module that counts"),
        ("./{name}.py:one", "Write {name}:one:"),
        (
            "{name}.py:one",
            "There is no module '{name}.py' here ({folder}) or among the installed ones. Write {name}:one:",
        ),
        ("team/{name}.py:a.b", "Write team.{name}:a.b:"),
        (
            "/abs/{name}.py:one",
            "'/abs/{name}.py' is no name of a module. Modules are looked for from the current folder on.",
        ),
        ("../{name}:one", "Modules are looked for from the current folder on."),
        ("my-agents:one", "'my-agents' is no name of a module."),
        ("my agents:one", "'my agents' is no name of a module."),
        ("..:one", "'..' is no name of a module."),
    ],
)
def test_a_path_in_place_of_a_module(write: Write, load: Callable[[str], object], written: str, says: str) -> None:
    """Is told from a module, with what to write instead if that follows from it."""
    places = {"name": write(""), "folder": Path.cwd()}
    with pytest.raises(UsageError, match=re.escape(says.format(**places))):
        load(written.format(**places))


def test_a_package_may_hold_a_module_of_any_name(write: Write, tmp_path: Path) -> None:
    """One that is called `py` is no file's ending."""
    package = tmp_path / f"package_{tmp_path.name}".replace("-", "_")
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "py.py").write_text(PRELUDE)
    assert list(load_agents(f"{package.name}.py:one")) == ["one"]


def test_an_unknown_attribute(write: Write) -> None:
    """An attribute that does not exist is named together with the module's file."""
    name = write("")
    with pytest.raises(UsageError, match=rf"There is no 'three' in module '{name}' \(.*{name}\.py\)"):
        load_agents(f"{name}:three")


@pytest.mark.parametrize("source", ["found = 3", "found = 'one'", "found = [one, 3]", "found = []", "found = None"])
def test_an_attribute_that_is_no_agent(write: Write, source: str) -> None:
    """A value of another type is refused with its type."""
    with pytest.raises(UsageError, match="not an Agent or a list of them"):
        load_agents(f"{write(source)}:found")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_package", r"ModuleNotFoundError: No module named 'no_such_package' \(.*line 3\)"),
        ("raise RuntimeError('boom')", r"RuntimeError: boom \(.*line 3\)"),
        ("found = (", r"was never closed \(.*line 3\)"),
        ("found = Agents([one, one])", r"Two agents are named 'one'; rename one\."),
        ("def found(): raise KeyError('x')", r"KeyError: 'x' \(.*line 3\)"),
    ],
)
def test_a_module_that_cannot_be_imported(write: Write, source: str, said: str) -> None:
    """Whatever the user's code raises becomes one sentence with the place in that code."""
    with pytest.raises(ConfigurationError, match=rf"cannot be imported: .*{said}"):
        load_agents(f"{write(source)}:found")


CODEC = """
from temporalio.converter import PayloadCodec
class Codec(PayloadCodec):
    async def encode(self, payloads): return list(payloads)
    async def decode(self, payloads): return list(payloads)
codec = Codec()
def make(): return codec
number = 7
"""


@pytest.mark.parametrize("attribute", ["codec", "Codec", "make"])
def test_what_names_a_codec(write: Write, attribute: str) -> None:
    """A codec, its class, and a function without arguments that makes it are all taken."""
    assert type(load_codec(f"{write(CODEC)}:{attribute}")).__name__ == "Codec"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("{name}:number", "is of type int, not a temporalio.converter.PayloadCodec"),
        ("{name}:missing", "There is no 'missing'"),
        ("{name}", "does not name a codec"),
        ("no_such_module:codec", "There is no module 'no_such_module'"),
    ],
)
def test_what_names_no_codec(write: Write, target: str, says: str) -> None:
    """Nothing is sent in the clear because of a typing mistake: it is an error that says what is wrong."""
    with pytest.raises(UsageError, match=re.escape(says)):
        load_codec(target.format(name=write(CODEC)))
