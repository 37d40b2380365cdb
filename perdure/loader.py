"""Finds what `module:attribute` names, as uvicorn users expect it: agents, and the codec of Temporal's payloads."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Final, cast

from temporalio.converter import PayloadCodec

from perdure.agent import Agent, Agents
from perdure.errors import ConfigurationError, PerdureError, UsageError

DEMO: Final = "perdure.demo.agent:agents"
"""The agents of a worker that is given none; they need no key."""


def load_agents(target: str = DEMO) -> Agents:
    """The agents at `module:attribute`: an Agent, several of them, or a function without arguments that makes them.

    Modules are looked for in the current folder first.

    Raises:
        UsageError: if there is no such module or attribute, or it holds no agents.
        ConfigurationError: if the module cannot be imported.
    """
    return _as_agents(target, _made(target, _found(target, "agents", "my_agents:weather"), (Agent, Agents)))


def load_codec(target: str) -> PayloadCodec:
    """The codec at `module:attribute`: a PayloadCodec, or a class or a function without arguments that makes one.

    Raises:
        UsageError: if there is no such module or attribute, or it holds no codec.
        ConfigurationError: if the module cannot be imported.
    """
    codec = _made(target, _found(target, "a codec", "my_keys:codec"), (PayloadCodec,))
    if not isinstance(codec, PayloadCodec):
        raise UsageError(f"{target!r} is of type {type(codec).__name__}, not a temporalio.converter.PayloadCodec.")
    return codec


def _found(target: str, what: str, example: str) -> object:
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(f"{target!r} does not name {what}: write module:attribute, for instance {example}.")
    found: object = _import(module_name, attribute)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise UsageError(f"There is no {attribute!r} in module {module_name!r} ({_place(module_name)}).")
        found = getattr(found, name)
    return found


def _made(target: str, found: object, kinds: tuple[type, ...]) -> object:
    """What was found, or what it makes if it is no such thing itself."""
    return _call(target, found) if callable(found) and not isinstance(found, kinds) else found


def _import(name: str, attribute: str) -> ModuleType:
    if not all(map(str.isidentifier, name.split("."))):
        raise UsageError(f"{name!r} is no name of a module.{_hint(name, attribute)}")
    # A console script has its own folder on the path, not the user's.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            where = f"here ({os.getcwd()}) or among the installed ones"
            raise UsageError(f"There is no module {name!r} {where}.{_hint(name, attribute)}") from error
        raise _broken(name, error) from error
    except Exception as error:  # it is the user's code, which may raise anything
        raise _broken(name, error) from error


def _hint(name: str, attribute: str) -> str:
    """What to write instead, if what was written is the way to a file."""
    steps = name.replace(os.sep, "/").removesuffix(".py").removeprefix("./").split("/")
    meant = ".".join(steps)
    if meant == name or not all(map(str.isidentifier, steps)):
        return " Modules are looked for from the current folder on." if len(steps) > 1 else ""
    return f" Write {meant}:{attribute}: it is the module that counts, not its file."


def _call(target: str, factory: object) -> object:
    try:
        return factory()  # type: ignore[operator]  # the caller has checked that it is callable
    except Exception as error:  # it is the user's code, which may raise anything
        raise _broken(target, error) from error


def _as_agents(target: str, found: object) -> Agents:
    kind = type(found).__name__
    if isinstance(found, Agents):
        return found
    if isinstance(found, Agent):
        return Agents([found])
    members = [*cast("Sequence[object]", found)] if isinstance(found, Sequence) and not isinstance(found, str) else []
    agents = [member for member in members if isinstance(member, Agent)]
    if not agents or len(agents) != len(members):
        raise UsageError(f"{target!r} is of type {kind}, not an Agent or a list of them.")
    return Agents(agents)


def _broken(name: str, error: Exception) -> PerdureError:
    if isinstance(error, SyntaxError):
        return ConfigurationError(f"{name!r} cannot be imported: {error.msg} ({error.filename}, line {error.lineno}).")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    what = str(error) if isinstance(error, PerdureError) else f"{type(error).__name__}: {error}"
    return ConfigurationError(f"{name!r} cannot be imported: {what} ({frame.filename}, line {frame.lineno}).")


def _place(module_name: str) -> str:
    return sys.modules[module_name].__file__ or "built in"
