"""The torture kit: writers, relays, consumers and faults, and a checker that judges what they left behind."""

from collections.abc import Collection
from pathlib import Path


def run_torture(
    database: str | None, broker: str | None, minutes: float, seed: int | None, groups: Collection[str],
    keep: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Torture on somebody's servers, or on files of its own; give the exit code: 0 if every promise was kept."""
    from pillarbox.torture.program import (
        run,
    )  # the command line imports this package to show its help; that stays cheap

    return run(database, broker, minutes, seed, groups, keep, as_json)
