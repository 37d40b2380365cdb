"""The runtime folders that travel inside the wheel.

`workflows`, `activities`, `stores` and `worker.py` are top-level names in a checkout. An installed wheel owns only the
name `perdure` and keeps them as its data, in `perdure/_runtime/`. Processes that run Perdure put that folder on the
path; a checkout has none, and nothing changes.
"""

import sys
from pathlib import Path
from typing import Final

_RUNTIME: Final = Path(__file__).parent / "_runtime"


def put_runtime_on_path() -> None:
    """Make the runtime folders importable. Safe to repeat.

    They go first, because other projects own packages called `workflows` and `stores` too. A process that needs one
    of those as well is not one that can run Perdure: give it its own environment.
    """
    if _RUNTIME.is_dir() and str(_RUNTIME) not in sys.path:
        sys.path.insert(0, str(_RUNTIME))
