"""The command `perdure`, which is `python -m perdure` too."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Its parts take a moment to import, and Ctrl-C may come in that moment."""
    try:
        from perdure.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
