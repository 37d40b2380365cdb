"""The table of settings says what the settings are."""

import re
from pathlib import Path

from perdure.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "run-in-production.md"
_ROW = re.compile(r"^\| `PERDURE_(\w+)` \| (?:`([^`]*)`)? *\| \S", re.MULTILINE)


def shown(default: object) -> str:
    """A default as one would set it."""
    match default:
        case None:
            return ""
        case bool():
            return str(default).lower()
        case _:
            return str(default)


def test_every_setting_is_documented_with_its_default() -> None:
    """None is missing, none is made up, and each default is the one in force."""
    documented = {name.lower(): default for name, default in _ROW.findall(PAGE.read_text(encoding="utf-8"))}
    assert documented == {name: shown(field.default) for name, field in Settings.model_fields.items()}
