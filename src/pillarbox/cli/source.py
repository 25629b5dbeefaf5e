"""`pillarbox source`: who carries the events: relays, or the reader of a replication slot, such as Debezium."""

import asyncio
from typing import Annotated

import typer

from pillarbox.admin.wording import command, counted
from pillarbox.cli.options import DryRun, Json, Yes, with_settings
from pillarbox.cli.output import confirmed, print_json, print_line
from pillarbox.ports import Stats
from pillarbox.settings import Settings
from pillarbox.wiring import open_source

app = typer.Typer(
    help="Who carries the events: relays, or the reader of a replication slot.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The slot's name.")]


@app.command()
@with_settings("database")
def slot(*, name: Name, yes: Yes = False, dry_run: DryRun = False, settings: Settings, json: Json = False) -> None:
    """Let the reader of a replication slot carry the events.

    Such as Debezium: it makes the slot. From now on no relay publishes; `pillarbox relay watch` keeps status and
    retention by what the reader confirms. Also when that slot was made anew. PostgreSQL only.
    """
    asyncio.run(_hand_over(settings, name, yes=yes, dry_run=dry_run, json=json))


async def _hand_over(settings: Settings, name: str, *, yes: bool, dry_run: bool, json: bool) -> None:
    """Count, ask, act, say."""
    async with open_source(settings) as admin:
        await admin.check()
        stats = await admin.stats()
        what = (
            f"the reader of the replication slot {name} {'would' if dry_run else 'will'} carry the events;"
            f" {_pending(stats)} pending, and will count as published once it has confirmed the present end of the WAL:"
            " what was committed before the slot was made is not carried by it"
        )
        goes = confirmed(what, yes=yes, dry_run=dry_run)
        if goes:
            await admin.watch_slot(name)
    if json:
        print_json({"slot": name, "pending": stats.pending, "changed": goes, "dry_run": dry_run})
    elif goes:
        print_line(f"next: {command('relay watch', settings)}")


def _pending(stats: Stats) -> str:
    verb = "is" if stats.pending_exact and stats.pending == 1 else "are"
    return f"{'' if stats.pending_exact else 'more than '}{counted(stats.pending, 'event')} {verb}"


@app.command()
@with_settings("database")
def log(*, yes: Yes = False, dry_run: DryRun = False, settings: Settings, json: Json = False) -> None:
    """Let relays carry the events again.

    From where the slot's reader was: what it has not confirmed is published, and may come twice. Stop the connector
    first.
    """
    asyncio.run(_take_back(settings, yes=yes, dry_run=dry_run, json=json))


async def _take_back(settings: Settings, *, yes: bool, dry_run: bool, json: bool) -> None:
    """Count, ask, act, say."""
    async with open_source(settings) as admin:
        await admin.check()
        stats = await admin.stats()
        would = "would" if dry_run else "will"
        what = f"relays {would} carry the events; {_pending(stats)} pending, and theirs to publish"
        goes = confirmed(what, yes=yes, dry_run=dry_run)
        if goes:
            await admin.unwatch()
    if json:
        print_json({"slot": None, "pending": stats.pending, "changed": goes, "dry_run": dry_run})
    elif goes:
        print_line(f"next: {command('relay run', settings, broker=True)}")
