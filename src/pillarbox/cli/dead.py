"""`pillarbox dead`: the events that were given up, on either side; try them again or forget them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from pillarbox.admin.admin import COUNTED, Admin, edited
from pillarbox.admin.wording import counted
from pillarbox.cli import selection
from pillarbox.cli.editing import Edit, Payload, check_one, edit_payload, read_payload
from pillarbox.cli.found import find, list_found, list_groups, show_found
from pillarbox.cli.options import DryRun, Json, Yes, admin_of, with_settings
from pillarbox.cli.output import confirmed, nothing_matched, print_json, print_line, whole_ids
from pillarbox.errors import InvalidEvent
from pillarbox.ports import Query
from pillarbox.settings import Settings

app = typer.Typer(help="The events that were given up.", no_args_is_help=True, rich_markup_mode=None)
Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The events' ids.", show_default=False)]
GroupBy = Annotated[
    str | None,
    typer.Option("--group-by", metavar="error", show_default="off", help="One line for each error, not each event."),
]
All = Annotated[bool, typer.Option("--all", show_default="off", help="Every dead event that the other flags allow.")]


@app.command("list")
@with_settings("database")
def list_(
    *,
    topic: selection.OfTopic = None,
    type: selection.Type = None,
    aggregate: selection.Aggregate = None,
    error: selection.Error = None,
    since: selection.Since = None,
    until: selection.Until = None,
    inbox: selection.Inbox = False,
    consumer: selection.Consumer = None,
    limit: selection.Limit = 100,
    group_by: GroupBy = None,
    settings: Settings,
    json: Json = False,
) -> None:
    """List dead events, or how many there are of each error.

    Exits with 4 if there are none.
    """
    query = selection.select(
        status=["dead"],
        topic=topic,
        type=type,
        aggregate=aggregate,
        error=error,
        since=since,
        until=until,
        inbox=inbox,
        consumer=consumer,
        limit=limit,
    )
    if _groups(group_by):
        list_groups(settings, query, json=json)
    else:
        list_found(settings, query, json=json, none="dead events")


def _groups(by: str | None) -> bool:
    if by not in (None, "error"):
        raise typer.BadParameter(f"dead events are grouped by error, not by {by!r}", param_hint="'--group-by'")
    return by is not None


@app.command()
@with_settings("database")
def show(
    *, event_id: selection.EventId, inbox: selection.Inbox = False, settings: Settings, json: Json = False
) -> None:
    """Show one dead event, with why it died.

    Exits with 4 if none of that id is dead.
    """
    query = selection.select(ids=[event_id], status=["dead"], inbox=inbox)
    show_found(settings, query, json=json, none=f"dead event has the id {event_id}")


@app.command()
@with_settings("database")
def retry(
    *,
    ids: Ids = None,
    all: All = False,
    topic: selection.OfTopic = None,
    type: selection.Type = None,
    aggregate: selection.Aggregate = None,
    error: selection.Error = None,
    since: selection.Since = None,
    until: selection.Until = None,
    inbox: selection.Inbox = False,
    consumer: selection.Consumer = None,
    payload: Payload = None,
    edit: Edit = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Give dead events their tries back.

    Their followers follow in order. Says how many first, and asks. With --payload or --edit the
    one event goes with another payload; what was added is kept. Exits with 4 if nothing matches.
    """
    selection.refuse_everything(ids, all, topic, type, aggregate, consumer, error, since, until)
    query = selection.select(
        ids=ids,
        status=["dead"],
        topic=topic,
        type=type,
        aggregate=aggregate,
        error=error,
        since=since,
        until=until,
        inbox=inbox,
        consumer=consumer,
        oldest_first=True,
        limit=selection.MOST,
    )
    if edit or payload is not None:
        check_one(ids, payload, edit=edit, inbox=inbox)
        none = {"retried": 0, "matched": 0, "dry_run": dry_run} if json else None
        act, done = _editing(settings, query, payload, none), "retried with another payload"
    else:
        act, done = Admin.retry, "retried"
    asyncio.run(_act("retried", done, act, settings, query, yes=yes, dry_run=dry_run, json=json))


def _editing(
    settings: Settings, query: Query, payload: Path | None, none: Mapping[str, object] | None
) -> Callable[[Admin, Query], Awaitable[int]]:
    """Get what the one event is to carry, and check it; give what puts it there."""
    given = None if payload is None else read_payload(payload)
    records = find(settings, query)
    if not records:
        raise nothing_matched(f"dead events match{whole_ids(query.ids)}", none)
    record = records[0]
    data = edit_payload(record) if given is None else given
    try:
        edited(record, data)
    except InvalidEvent as error:
        raise typer.BadParameter(str(error), param_hint="'--edit'" if given is None else "'--payload'") from error
    return lambda admin, _: admin.edit(record, data)


@app.command()
@with_settings("database")
def drop(
    *,
    ids: Ids = None,
    all: All = False,
    topic: selection.OfTopic = None,
    type: selection.Type = None,
    aggregate: selection.Aggregate = None,
    error: selection.Error = None,
    since: selection.Since = None,
    until: selection.Until = None,
    inbox: selection.Inbox = False,
    consumer: selection.Consumer = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Forget dead events for good.

    Their followers go on. Says how many first, and asks. Exits with 4 if nothing matches.
    """
    selection.refuse_everything(ids, all, topic, type, aggregate, consumer, error, since, until)
    query = selection.select(
        ids=ids,
        status=["dead"],
        topic=topic,
        type=type,
        aggregate=aggregate,
        error=error,
        since=since,
        until=until,
        inbox=inbox,
        consumer=consumer,
        oldest_first=True,
        limit=selection.MOST,
    )
    asyncio.run(_act("dropped", "dropped", Admin.drop, settings, query, yes=yes, dry_run=dry_run, json=json))


async def _act(
    key: str,
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
            none = {key: 0, "matched": 0, "dry_run": dry_run}
            raise nothing_matched(f"dead events match{whole_ids(query.ids)}", none if json else None)
        shown = f"{'more than ' if count > COUNTED else ''}{counted(min(count, COUNTED), 'dead event')}"
        would = "would be" if dry_run else "will be"
        changed = await act(admin, query) if confirmed(f"{shown} {would} {done}", yes=yes, dry_run=dry_run) else 0
    if json:
        print_json({key: changed, "matched": count, "dry_run": dry_run})
    elif not dry_run:
        print_line(f"{key} {counted(changed, 'event')}")
