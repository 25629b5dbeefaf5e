"""`pillarbox demo`: the whole way on this machine, with kills, judged at the end."""

from pathlib import Path
from typing import Annotated

import typer

from pillarbox.cli.options import Json, empty_directory
from pillarbox.demo import DEFAULT_EVENTS, run_demo


def demo(
    events: Annotated[
        int, typer.Option("--events", metavar="N", min=1, help="How many events to commit.")
    ] = DEFAULT_EVENTS,
    seed: Annotated[
        int | None,
        typer.Option("--seed", metavar="S", show_default="another one each time", help="Repeat a run's choices."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", show_default="thrown away", help="Keep the files, to look around."),
    ] = None,
    json: Json = False,
) -> None:
    """Watch events survive kill -9.

    A shop, a relay, a broker and a consumer on this machine, judged at the end. Exits with 1 if a promise was broken.
    """
    raise typer.Exit(run_demo(events, seed, empty_directory(keep), json))
