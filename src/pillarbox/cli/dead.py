"""`pillarbox dead`: the events that were given up, on either side; try them again or forget them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from pillarbox.admin.admin import COUNTED, Admin
from pillarbox.cli import selection
from pillarbox.cli.events import find
from pillarbox.cli.options import Config, Database, DryRun, Json, Set, Yes, admin_of, load
from pillarbox.cli.output import (
    confirmed,
    nothing_matched,
    print_json,
    print_line,
    print_record,
    print_records,
    record_json,
)
from pillarbox.ports import Query
from pillarbox.settings import Settings

app = typer.Typer(help="The events that were given up.", no_args_is_help=True, rich_markup_mode=None)
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The events' ids.", show_default=False)]
All = Annotated[bool, typer.Option("--all", show_default="off", help="Every dead event that the other flags allow.")]


@app.command("list")
def list_(
    ctx: typer.Context,
    topic: selection.OfTopic = None,
    type: selection.Type = None,
    aggregate: selection.Aggregate = None,
    inbox: selection.Inbox = False,
    consumer: selection.Consumer = None,
    limit: selection.Limit = 100,
    database: Database = None,
    config: Config = None,
    set: Set = None,
    json: Json = False,
) -> None:
    """List dead events.

    Exits with 4 if there are none.
    """
    query = selection.select(
        status=["dead"], topic=topic, type=type, aggregate=aggregate, inbox=inbox, consumer=consumer, limit=limit
    )
    records = asyncio.run(find(load(ctx, config, set=set, database=database), query))
    if json:
        print_json([record_json(record) for record in records])
    elif records:
        print_records(records)
    if not records:
        raise nothing_matched("dead events")


@app.command()
def show(
    ctx: typer.Context,
    event_id: Annotated[str, typer.Argument(metavar="ID", help="The event's id.")],
    inbox: selection.Inbox = False,
    database: Database = None,
    config: Config = None,
    set: Set = None,
    json: Json = False,
) -> None:
    """Show one dead event, with why it died.

    Exits with 4 if none of that id is dead.
    """
    query = selection.select(ids=[event_id], status=["dead"], inbox=inbox)
    records = asyncio.run(find(load(ctx, config, set=set, database=database), query))
    if not records:
        raise nothing_matched(f"dead event has the id {event_id}")
    for record in records:
        if json:
            print_json(record_json(record))
        else:
            print_record(record)


@app.command()
def retry(
    ctx: typer.Context,
    ids: Ids = None,
    all: All = False,
    topic: selection.OfTopic = None,
    type: selection.Type = None,
    aggregate: selection.Aggregate = None,
    inbox: selection.Inbox = False,
    consumer: selection.Consumer = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    database: Database = None,
    config: Config = None,
    set: Set = None,
    json: Json = False,
) -> None:
    """Give dead events their tries back.

    Their followers follow in order. Says how many first, and asks unless ids are named.
    """
    query = _chosen(ids, all, topic, type, aggregate, inbox, consumer)
    settings = load(ctx, config, set=set, database=database)
    asyncio.run(_act("retried", Admin.retry, settings, query, yes=yes or bool(ids), dry_run=dry_run, json=json))


@app.command()
def drop(
    ctx: typer.Context,
    ids: Ids = None,
    all: All = False,
    topic: selection.OfTopic = None,
    type: selection.Type = None,
    aggregate: selection.Aggregate = None,
    inbox: selection.Inbox = False,
    consumer: selection.Consumer = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    database: Database = None,
    config: Config = None,
    set: Set = None,
    json: Json = False,
) -> None:
    """Forget dead events for good.

    Their followers go on. Says how many first, and asks.
    """
    query = _chosen(ids, all, topic, type, aggregate, inbox, consumer)
    settings = load(ctx, config, set=set, database=database)
    asyncio.run(_act("dropped", Admin.drop, settings, query, yes=yes, dry_run=dry_run, json=json))


def _chosen(
    ids: list[str] | None,
    all: bool,
    topic: str | None,
    type: str | None,
    aggregate: str | None,
    inbox: bool,
    consumer: str | None,
) -> Query:
    if not (ids or all or topic or type or aggregate or consumer):
        raise typer.BadParameter("name events by their ids, narrow them down, or say --all", param_hint="'[ID]...'")
    return selection.select(
        ids=ids,
        status=["dead"],
        topic=topic,
        type=type,
        aggregate=aggregate,
        inbox=inbox,
        consumer=consumer,
        oldest_first=True,
        limit=COUNTED,
    )


async def _act(
    done: str,
    act: Callable[[Admin, Query], Awaitable[int]],
    settings: Settings,
    query: Query,
    *,
    yes: bool,
    dry_run: bool,
    json: bool,
) -> None:
    """Count, ask, act, say."""
    async with admin_of(settings) as admin:
        count = await admin.count(query)
        if not count:
            raise nothing_matched("dead events match")
        shown = (
            f"{'more than ' if count > COUNTED else ''}{min(count, COUNTED):,} dead event{'' if count == 1 else 's'}"
        )
        would = "would be" if dry_run else "will be"
        changed = await act(admin, query) if confirmed(f"{shown} {would} {done}", yes=yes, dry_run=dry_run) else 0
    if json:
        print_json({done: changed, "matched": count, "dry_run": dry_run})
    elif not dry_run:
        print_line(f"{done} {changed:,} event{'' if changed == 1 else 's'}")
