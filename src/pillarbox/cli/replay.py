"""`pillarbox replay`: publish again what was published, as copies or to be handled once more."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from pillarbox.admin.admin import COUNTED, Admin
from pillarbox.admin.wording import command, counted
from pillarbox.cli import selection
from pillarbox.cli.options import DryRun, Json, Yes, admin_of, check_given_topic, with_settings
from pillarbox.cli.output import ExitCode, confirmed, nothing_matched, print_json, print_line, say, whole_ids
from pillarbox.cli.progress import bar, stopping
from pillarbox.ports import Query, Replay
from pillarbox.settings import Settings

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The events' ids.", show_default=False)]
All = Annotated[
    bool, typer.Option("--all", show_default="off", help="Every published event that the other flags allow.")
]
Again = Annotated[
    bool,
    typer.Option("--again", show_default="off", help="Let handlers that ask for replays handle them once more."),
]


To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="TOPIC",
        show_default="where it went",
        help="Another topic to send to.",
        callback=check_given_topic,
    ),
]
Rate = Annotated[
    int | None,
    typer.Option("--rate", metavar="N", min=1, max=1_000_000, show_default="no limit", help="How many in a second."),
]

Resume = Annotated[
    str | None,
    typer.Option("--resume", metavar="ID", show_default="off", help="Go on with the replay of this id, as it began."),
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
    resume: Resume = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    settings: Settings,
    json: Json = False,
) -> None:
    """Publish again what was published.

    Under the same ids, so a consumer that has them takes them for copies; with --again, handlers that ask for replays
    handle them once more. The relay keeps to --rate, also when this command is over. Says how many first,
    and asks. Ctrl-C stops it between two batches, and says how to go on. Exits with 4 if nothing matches.
    """
    given = (ids, all, topic, type, aggregate, since, until)
    if resume is not None:
        _refuse_beside_resume(given, again, to, rate)
        asyncio.run(_resume(settings, resume, yes=yes, dry_run=dry_run, json=json))
        return
    selection.refuse_everything(*given)
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
    asyncio.run(_begin(settings, query, again=again, to=to, rate=rate, yes=yes, dry_run=dry_run, json=json))


def _refuse_beside_resume(given: Sequence[object], *more: object) -> None:
    if any((*given, *more)):
        raise typer.BadParameter(
            "it goes on as it began: leave out which events, --again, --to and --rate", param_hint="'--resume'"
        )


async def _begin(
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
            none = _document(0, 0, None, dry_run=dry_run) if json else None
            raise nothing_matched(f"published events match{whole_ids(query.ids)}", none)
        if not confirmed(_told(count, again, to, rate, dry_run), yes=yes, dry_run=dry_run):
            _rehearsed(count, None, json)
            return
        replay = await admin.begin_replay(query, again=again, to=to, rate=rate)
        replay = await _go_on(admin, replay)
    _say_done(settings, replay, 0, count, json)


async def _resume(settings: Settings, id: str, *, yes: bool, dry_run: bool, json: bool) -> None:
    """Count what is left, ask, go on, say."""
    async with admin_of(settings) as admin:
        replay = await admin.find_replay(id)
        if replay is None:
            none = _document(0, 0, id, dry_run=dry_run) if json else None
            raise nothing_matched(f"replay has the id {id}", none)
        rest = replace(replay.query, after=replay.place, upto=replay.upto, status=("published",))
        count = await admin.count(rest) if replay.finished_at is None else 0
        done = f"replay {id} has handed over {counted(replay.events, 'event')}"
        if replay.finished_at is not None:
            say(f"{done} and is finished")
        else:
            told = f"{done}; {_told(count, replay.again, replay.to, replay.rate, dry_run)}"
            if not confirmed(told, yes=yes, dry_run=dry_run):
                _rehearsed(count, id, json)
                return
            await admin.resume_replay(id)
        before = replay.events
        replay = await _go_on(admin, replay)
    _say_done(settings, replay, before, count, json)


async def _go_on(admin: Admin, replay: Replay) -> Replay:
    """Hand it over batch by batch, until it is finished or somebody wants it to stop."""
    with stopping() as stop, bar("replaying", "event") as shown:
        async for further in admin.replaying(replay):
            replay = further
            shown.show(replay.events, replay.place - replay.first, replay.upto - replay.first)
            if stop.wanted:
                break
    return replay


def _rehearsed(count: int, id: str | None, json: bool) -> None:
    if json:
        print_json(_document(0, count, id, dry_run=True))


def _document(
    done: int, count: int, id: str | None, *, finished: bool = False, dry_run: bool = False
) -> dict[str, object]:
    return {"replayed": done, "matched": count, "replay": id, "finished": finished, "dry_run": dry_run}


def _say_done(settings: Settings, replay: Replay, before: int, count: int, json: bool) -> None:
    done, finished = replay.events - before, replay.finished_at is not None
    if json:
        print_json(_document(done, count, replay.id, finished=finished))
    else:
        print_line(f"replayed {counted(done, 'event')}, as replay {replay.id}")
    if not finished:
        say(f"stopped before its end; `{command(f'replay --resume {replay.id}', settings)}` goes on")
        raise typer.Exit(ExitCode.INTERRUPTED)


def _told(count: int, again: bool, to: str | None, rate: float | None, dry_run: bool) -> str:
    """Say what becomes of how many."""
    events = f"{'more than ' if count > COUNTED else ''}{counted(min(count, COUNTED), 'published event')}"
    to_whom = "to be handled once more where handlers ask for replays" if again else "as copies of what consumers have"
    where, pace = f" to {to}" if to else "", f", {rate:,.15g} a second" if rate else ""
    return f"{events} {'would' if dry_run else 'will'} be published again{where}{pace}, {to_whom}"
