"""`pillarbox bench`: how fast it is on the user's own database and broker."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pillarbox import __version__
from pillarbox.admin.wording import counted, sized
from pillarbox.bench.load import LARGEST, SMALLEST, Load
from pillarbox.bench.options import MEASUREMENTS, Options
from pillarbox.bench.plot import Bar
from pillarbox.bench.plot import plot as draw
from pillarbox.bench.rows import Row, written
from pillarbox.bench.run import Bench
from pillarbox.cli.options import Json, Yes, check_ends, with_settings
from pillarbox.cli.output import confirmed, print_json, print_table, say
from pillarbox.cli.progress import bar
from pillarbox.settings import Settings


@with_settings("database", "broker")
def bench(
    *,
    events: Annotated[
        int,
        typer.Option("--events", metavar="N", min=10, max=10_000_000, help="How many events an outbox is filled with."),
    ] = 100_000,
    payload: Annotated[
        int, typer.Option("--payload", metavar="BYTES", min=SMALLEST, max=LARGEST, help="How large each event is.")
    ] = 310,
    aggregates: Annotated[
        int, typer.Option("--aggregates", metavar="N", min=1, max=100_000_000, help="How many aggregates they are of.")
    ] = 1000,
    relays: Annotated[
        int, typer.Option("--relays", metavar="N", min=1, max=32, help="How many relays drain together.")
    ] = 1,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, max=3600, help="How long writers write at a time.")
    ] = 5.0,
    only: Annotated[
        str, typer.Option("--only", metavar="NAMES", help="Which measurements, with commas between.")
    ] = ",".join(MEASUREMENTS),
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", show_default="none", help="Write a plot into this file (SVG)."),
    ] = None,
    yes: Yes = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Measure how fast it is here: your database, your broker, this machine.

    It works in a schema (or a file) and in topics of its own, which it removes at the end, also when interrupted; your
    outbox is not touched. Says how many events it will write first, and asks.
    """
    options = Options(Load(payload, aggregates), events, relays, seconds, _names(only))
    check_ends(settings)
    run = Bench(settings, options)
    _check(plot)
    confirmed(_told(run), yes=yes, dry_run=False)
    with bar("measuring", "measurement") as shown:
        found = run.go(shown.at)
    if plot is not None:
        bars = [Bar(one.name, one.value, one.unit, one.reference) for one in found]
        plot.write_text(draw(f"Pillarbox {__version__}, {run.way}", bars))
    if json:
        print_json(_as_json(run, found))
        return
    cells = [
        (f.name, f.unit, written(f.value), written(f.reference), written(f.ratio), f.beside if f.reference else "")
        for f in found
    ]
    print_table(("MEASURED", "UNIT", "HERE", "REFERENCE", "RATIO", "THE REFERENCE IS"), cells)
    for note in run.notes:
        say(note)


def _names(only: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in only.split(",") if word.strip()))


def _told(run: Bench) -> str:
    """Say what is about to happen, and where."""
    most = counted(run.options.most_events(), "event")
    sends = "" if run.consumes else "; all but a few are sent to that endpoint"
    return (
        f"This writes up to {most} of {sized(run.options.load.payload)}, in {run.place.title}, and through the topics"
        f" {' and '.join(run.topics)}, which are made for it and removed at the end{sends}."
    )


def _check(plot: Path | None) -> None:
    """Refuse a file that cannot be written, before anything is measured."""
    if plot is not None and (plot.is_dir() or not plot.absolute().parent.is_dir()):
        raise typer.BadParameter(
            f"{plot} cannot be written: name a file in a directory that is there", param_hint="'--plot'"
        )


def _as_json(run: Bench, rows: Sequence[Row]) -> dict[str, Any]:
    options = run.options
    return {
        "version": __version__,
        "way": run.way,
        "events": options.events,
        "payload_bytes": options.load.payload,
        "aggregates": options.load.aggregates,
        "relays": options.relays,
        "seconds": options.seconds,
        "machine": f"{platform.system()} {platform.release()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "rows": {row.key: row.as_dict() for row in rows},
        "notes": run.notes,
    }
