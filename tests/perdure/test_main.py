"""The command before its parts are there."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

import pytest

from perdure.__main__ import main


class Interrupted(MetaPathFinder):
    """An import in which somebody presses Ctrl-C."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Ends the import of the command line, and passes all others on."""
        if fullname == "perdure.cli.main":
            raise KeyboardInterrupt


def test_ctrl_c_while_the_command_is_imported_is_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """130, as for every other Ctrl-C, and no traceback."""
    monkeypatch.delitem(sys.modules, "perdure.cli.main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
