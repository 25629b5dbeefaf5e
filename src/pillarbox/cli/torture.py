"""`pillarbox torture`: the promise, tried on the user's own database and broker."""

from pathlib import Path
from typing import Annotated

import typer

from pillarbox.cli.options import Json
from pillarbox.torture import run_torture
from pillarbox.torture.directory import unusable
from pillarbox.torture.faults import GROUPS, groups_of


def torture(
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", show_default="a file of its own", help="Where the outbox is made."),
    ] = None,
    broker: Annotated[
        str | None,
        typer.Option("--broker", metavar="URL", show_default="a file of its own", help="Where events go."),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", metavar="N", min=0.1, help="How long faults strike.")] = 1.0,
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
    raise typer.Exit(run_torture(database, broker, minutes, seed, _groups(faults), _empty(keep), json))


def _groups(faults: str) -> list[str]:
    try:
        return groups_of(faults)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--faults'") from error


def _empty(keep: Path | None) -> Path | None:
    if keep is not None and (problem := unusable(keep)):
        raise typer.BadParameter(problem, param_hint="'--keep'")
    return keep
