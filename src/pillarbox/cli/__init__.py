"""The command line: it prints and decides nothing. This file works without the extra that the rest of it needs."""

import sys

from pillarbox.errors import MissingExtra


def main() -> None:
    """Run the command that was typed."""
    try:
        from pillarbox.cli.app import run
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print(f"pillarbox: {MissingExtra('cli', 'the command line')}", file=sys.stderr)
        sys.exit(1)
    run()
