"""Puts the runtime folders into the wheel, under `perdure/_runtime/`.

`workflows`, `stores`, `gateway` and `worker` are top-level names of other projects too, so the wheel owns no such name
but `perdure`. An editable install uses the checkout itself, where a copy would only get old.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RUNTIME = ("workflows", "activities", "stores", "gateway", "worker.py")


class RuntimeFolders(BuildHookInterface[Any]):
    """Found by hatchling through pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is built; `version` is `standard` or `editable`."""
        if version == "standard":
            build_data["force_include"].update({name: f"perdure/_runtime/{name}" for name in RUNTIME})
