"""`pillarbox replay`: publish again what was published, as copies or to be handled once more."""

import asyncio
from typing import Annotated

import typer

from pillarbox.admin.admin import COUNTED, Admin, Replayed
from pillarbox.admin.wording import counted
from pillarbox.cli import selection
from pillarbox.cli.options import DryRun, Json, Yes, admin_of, with_settings
from pillarbox.cli.output import confirmed, nothing_matched, print_json, print_line, whole_ids
from pillarbox.ports import Query
from pillarbox.settings import Settings

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The events' ids.", show_default=False)]
All = Annotated[
    bool, typer.Option("--all", show_default="off", help="Every published event that the other flags allow.")
]
Again = Annotated[
    bool,
    typer.Option("--again", show_default="off", help="Let handlers that ask for replays handle them once more."),
]


@with_settings("database")
def replay(
    *,
    ids: Ids = None,
    all: All = False,
    topic: selection.OfTopic = None,
    type: selection.Type = None,
    aggregate: selection.Aggregate = None,
    since: selection.Since = None,
    until: selection.Until = None,
    again: Again = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Publish again what was published.

    Under the same ids, so a consumer that has them takes them for copies; with --again, handlers that ask for replays
    handle them once more. Says how many first, and asks. Exits with 4 if nothing matches.
    """
    selection.refuse_everything(ids, all, topic, type, aggregate, since, until)
    query = selection.select(
        ids=ids,
        status=["published"],
        topic=topic,
        type=type,
        aggregate=aggregate,
        since=since,
        until=until,
        oldest_first=True,
        limit=selection.MOST,
    )
    asyncio.run(_replay(settings, query, again=again, yes=yes, dry_run=dry_run, json=json))


async def _replay(settings: Settings, query: Query, *, again: bool, yes: bool, dry_run: bool, json: bool) -> None:
    """Count, ask, act, say."""
    async with admin_of(settings) as admin:
        count = await admin.count(query)
        if not count:
            raise nothing_matched(f"published events match{whole_ids(query.ids)}")
        goes = confirmed(_told(count, again, dry_run), yes=yes, dry_run=dry_run)
        done = await _send(admin, query, again) if goes else Replayed("", 0)
    if json:
        print_json({"replayed": done.events, "matched": count, "replay": done.id or None, "dry_run": dry_run})
    elif goes:
        print_line(f"replayed {counted(done.events, 'event')}{f', as replay {done.id}' if again else ''}")


async def _send(admin: Admin, query: Query, again: bool) -> Replayed:
    return await admin.replay_again(query) if again else Replayed("", await admin.replay(query))


def _told(count: int, again: bool, dry_run: bool) -> str:
    """Say what becomes of how many."""
    events = f"{'more than ' if count > COUNTED else ''}{counted(min(count, COUNTED), 'published event')}"
    to_whom = "to be handled once more where handlers ask for replays" if again else "as copies of what consumers have"
    return f"{events} {'would' if dry_run else 'will'} be published again, {to_whom}"
