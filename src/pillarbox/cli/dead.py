"""`pillarbox dead`: the events that were given up, on either side; try them again or forget them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from pillarbox.admin.admin import COUNTED, Admin
from pillarbox.admin.wording import counted
from pillarbox.cli import selection
from pillarbox.cli.found import list_found, list_groups, show_found
from pillarbox.cli.options import DryRun, Json, Yes, admin_of, with_settings
from pillarbox.cli.output import confirmed, nothing_matched, print_json, print_line, whole_ids
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


def _mend(
    verb: str, done: str, act: Callable[[Admin, Query], Awaitable[int]], *, asks_for_ids: bool, help: str
) -> None:
    """Offer a command that does something to the dead events that are named, or that the flags allow."""

    @app.command(verb, help=help)
    @with_settings("database")
    def mend(
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
        asked = yes or (bool(ids) and not asks_for_ids)
        asyncio.run(_act(done, act, settings, query, yes=asked, dry_run=dry_run, json=json))


_mend(
    "retry",
    "retried",
    Admin.retry,
    asks_for_ids=False,
    help="Give dead events their tries back.\n\n"
    "Their followers follow in order. Says how many first, and asks unless ids are named.",
)
_mend(
    "drop",
    "dropped",
    Admin.drop,
    asks_for_ids=True,
    help="Forget dead events for good.\n\nTheir followers go on. Says how many first, and asks.",
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
            raise nothing_matched(f"dead events match{whole_ids(query.ids)}")
        shown = f"{'more than ' if count > COUNTED else ''}{counted(min(count, COUNTED), 'dead event')}"
        would = "would be" if dry_run else "will be"
        changed = await act(admin, query) if confirmed(f"{shown} {would} {done}", yes=yes, dry_run=dry_run) else 0
    if json:
        print_json({done: changed, "matched": count, "dry_run": dry_run})
    elif not dry_run:
        print_line(f"{done} {counted(changed, 'event')}")
