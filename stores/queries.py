"""The statements of `queries.sql` by name, so that SQL is read and reviewed as SQL."""

import re
from pathlib import Path


def parse(text: str) -> dict[str, str]:
    """Split a file into its named blocks: each begins with a line `-- name: NAME` and ends before the next."""
    _, *blocks = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    queries = dict(zip(blocks[::2], (body.strip() for body in blocks[1::2]), strict=True))
    if len(queries) * 2 != len(blocks):
        raise ValueError("bug: two statements have the same name")
    return queries


QUERIES = parse((Path(__file__).parent / "queries.sql").read_text())
