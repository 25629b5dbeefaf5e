"""`pillarbox events`: look at events, one or many, now or as they come."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from pillarbox.admin import looking
from pillarbox.admin.admin import Admin
from pillarbox.cli import selection
from pillarbox.cli.found import list_found, show_found
from pillarbox.cli.options import Json, admin_of, with_settings
from pillarbox.cli.output import print_json, print_line, record_json
from pillarbox.ports import Query, Record
from pillarbox.settings import Settings

app = typer.Typer(help="Look at events.", no_args_is_help=True, rich_markup_mode=None)
POLL_SECONDS = 0.5
All = Annotated[
    bool,
    typer.Option("--all", show_default="off", help="Look at every event, however long it takes."),
]


@app.command("list")
@with_settings("database")
def list_(
    *,
    status: selection.Statuses = None,
    topic: selection.OfTopic = None,
    type: selection.Type = None,
    aggregate: selection.Aggregate = None,
    since: selection.Since = None,
    until: selection.Until = None,
    inbox: selection.Inbox = False,
    consumer: selection.Consumer = None,
    oldest_first: Annotated[
        bool, typer.Option("--oldest-first", show_default="newest first", help="Begin with the oldest.")
    ] = False,
    limit: selection.Limit = 100,
    all: All = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """List events, the newest first.

    Where no index leads, 50,000 events are looked at, and it says so. Exits with 4 if there are none.
    """
    query = selection.select(
        status=status,
        topic=topic,
        type=type,
        aggregate=aggregate,
        since=since,
        until=until,
        inbox=inbox,
        consumer=consumer,
        oldest_first=oldest_first,
        limit=limit,
    )
    list_found(settings, query, json=json, none=_none_of(query), all=all)


def _none_of(query: Query) -> str:
    """Say what it means that there is none, and what to do if none was asked for in particular."""
    if query != Query(side=query.side, newest_first=query.newest_first, limit=query.limit):
        return "events match"
    if query.side == "inbox":
        return (
            "events stand in an inbox of this database: what is handled at first leaves only its id there;"
            " `pillarbox consume` receives, --database names the consumer's database"
        )
    return "events are there yet, or none any more: the application adds them, outbox.add(connection, Event(…))"


@app.command()
@with_settings("database")
def show(
    *, event_id: selection.EventId, inbox: selection.Inbox = False, settings: Settings, json: Json = False
) -> None:
    """Show everything about one event.

    Exits with 4 if there is none of that id.
    """
    query = selection.select(ids=[event_id], inbox=inbox)
    show_found(settings, query, json=json, none=f"event has the id {event_id}")


@app.command()
@with_settings("database")
def tail(
    *,
    topic: selection.OfTopic = None,
    type: selection.Type = None,
    aggregate: selection.Aggregate = None,
    last: Annotated[
        int, typer.Option("--last", metavar="N", min=0, max=selection.MOST, help="How many older ones to begin with.")
    ] = 10,
    settings: Settings,
    json: Json = False,
) -> None:
    """Print events as they are added, until Ctrl-C."""
    query = selection.select(topic=topic, type=type, aggregate=aggregate, limit=last)
    try:
        asyncio.run(_follow(settings, query, last, json))
    except KeyboardInterrupt:
        raise typer.Exit from None


async def _follow(settings: Settings, query: Query, last: int, json: bool) -> None:
    async with admin_of(settings) as admin:
        position = await _end(admin)
        before = (await admin.look_for(replace(query, limit=last))).records if last else []
        _print_lines(list(reversed(before)), json)
        position = max(position, before[0].position if before else 0)
        following = replace(query, newest_first=False, limit=1000)
        while True:
            end = await _end(admin)
            records = await admin.find(replace(following, after=position))
            _print_lines(records, json)
            if records:
                position = records[-1].position
            else:
                position = max(position, end - looking.STRETCH)
                await asyncio.sleep(POLL_SECONDS)


async def _end(admin: Admin) -> int:
    """Give the newest event's position."""
    newest = await admin.find(Query(limit=1))
    return newest[0].position if newest else 0


def _print_lines(records: Sequence[Record], json: bool) -> None:
    for record in records:
        if json:
            print_json(record_json(record))
        else:
            of = " ".join(record.aggregate) if record.aggregate else "-"
            print_line(
                f"{record.created_at:%H:%M:%S} {record.event_id} {record.type} {of} {record.topic} {record.status}"
            )
