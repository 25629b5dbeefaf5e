"""`pillarbox replay`: publish again what was published, as copies or to be handled once more."""

import asyncio
from typing import Annotated

import typer

from pillarbox.admin.admin import COUNTED, Admin, Replayed
from pillarbox.admin.wording import counted
from pillarbox.cli import selection
from pillarbox.cli.options import DryRun, Json, Yes, admin_of, check_topic, with_settings
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


def check_other(topic: str | None) -> str | None:
    """Refuse what no topic can be called."""
    return None if topic is None else check_topic(topic)


To = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="TOPIC", show_default="where it went", help="Another topic to send to.", callback=check_other
    ),
]
Rate = Annotated[
    int | None,
    typer.Option("--rate", metavar="N", min=1, max=1_000_000, show_default="no limit", help="How many in a second."),
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
    to: To = None,
    rate: Rate = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Publish again what was published.

    Under the same ids, so a consumer that has them takes them for copies; with --again, handlers that ask for replays
    handle them once more. The relay keeps to --rate, also when this command is over. Says how many first,
    and asks. Exits with 4 if nothing matches.
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
    asyncio.run(_replay(settings, query, again=again, to=to, rate=rate, yes=yes, dry_run=dry_run, json=json))


async def _replay(
    settings: Settings,
    query: Query,
    *,
    again: bool,
    to: str | None,
    rate: int | None,
    yes: bool,
    dry_run: bool,
    json: bool,
) -> None:
    """Count, ask, act, say."""
    async with admin_of(settings) as admin:
        count = await admin.count(query)
        if not count:
            raise nothing_matched(f"published events match{whole_ids(query.ids)}")
        goes = confirmed(_told(count, again, to, rate, dry_run), yes=yes, dry_run=dry_run)
        done = await _send(admin, query, again, to, rate) if goes else Replayed("", 0)
    if json:
        print_json({"replayed": done.events, "matched": count, "replay": done.id or None, "dry_run": dry_run})
    elif goes:
        print_line(f"replayed {counted(done.events, 'event')}{f', as replay {done.id}' if again else ''}")


async def _send(admin: Admin, query: Query, again: bool, to: str | None, rate: int | None) -> Replayed:
    if again:
        return await admin.replay_again(query, to=to, rate=rate)
    return Replayed("", await admin.replay(query, to=to, rate=rate))


def _told(count: int, again: bool, to: str | None, rate: int | None, dry_run: bool) -> str:
    """Say what becomes of how many."""
    events = f"{'more than ' if count > COUNTED else ''}{counted(min(count, COUNTED), 'published event')}"
    to_whom = "to be handled once more where handlers ask for replays" if again else "as copies of what consumers have"
    where, pace = f" to {to}" if to else "", f", {rate:,} a second" if rate else ""
    return f"{events} {'would' if dry_run else 'will'} be published again{where}{pace}, {to_whom}"
