"""The runtime folders: beside `perdure` in a checkout, inside it in an installed wheel.

`workflows`, `activities`, `stores` and `worker.py` are top-level names. A wheel owns only the name `perdure` and keeps
them as its data, in `perdure/_runtime/`. Processes that run Perdure put the folder that holds them on the path.
"""

import sys
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).parent
_RUNTIME: Final = _PACKAGE / "_runtime"


def put_runtime_on_path() -> None:
    """Make the runtime folders importable. Safe to repeat.

    They go first, because the current folder may hold folders of these names too, and so may other projects. A process
    that needs one of those as well is not one that can run Perdure: give it its own environment.
    """
    folder = str(_RUNTIME if _RUNTIME.is_dir() else _PACKAGE.parent)
    if sys.path[0] != folder:
        sys.path.insert(0, folder)
