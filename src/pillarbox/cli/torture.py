"""`pillarbox torture`: the promise, tried on the user's own database and broker."""

from pathlib import Path
from typing import Annotated

import typer

from pillarbox.cli.options import Json, empty_directory
from pillarbox.settings import Settings
from pillarbox.torture import run_torture
from pillarbox.torture.faults import GROUPS, groups_of
from pillarbox.wiring import check_kinds

LONGEST = 7 * 24 * 60.0
"""A week of minutes."""


def torture(
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", show_default="a file of its own", help="Where the outbox is made."),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="URL", show_default="a file of its own", help="Where events go."),
    ] = None,
    minutes: Annotated[
        float, typer.Option("--minutes", metavar="N", min=0.1, max=LONGEST, help="How long faults strike.")
    ] = 1.0,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="S", show_default="another one each time", help="Repeat a run's choices."),
    ] = None,
    faults: Annotated[
        str, typer.Option("--faults", metavar="KINDS", help="Which kinds of faults, with commas between; or none.")
    ] = ",".join(GROUPS),
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", show_default="thrown away", help="Keep evidence, logs and the plot."),
    ] = None,
    json: Json = False,
) -> None:
    """Kill relays and consumers at work, and judge whether every promise held.

    Eight writers, three relays and three consumers, in a schema and in topics of their own, which are removed at the
    end. What was committed is compared with what the broker has and what was applied, by the writers' own logs.
    Exits with 1 if a promise was broken.
    """
    check_kinds(Settings(database=database, broker=broker), "database", "broker")
    raise typer.Exit(run_torture(database, broker, minutes, seed, _groups(faults), empty_directory(keep), json))


def _groups(faults: str) -> list[str]:
    try:
        return groups_of(faults)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--faults'") from error
