"""What `events` and `dead` have in common: find events and print them, or say that there are none."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace

from pillarbox.admin import looking
from pillarbox.cli.listing import print_listing
from pillarbox.cli.options import admin_of
from pillarbox.cli.output import (
    aggregate_of,
    nothing_matched,
    print_json,
    print_record,
    record_json,
    say,
    whole_ids,
)
from pillarbox.ports import DeadGroup, Query, Record
from pillarbox.settings import Settings

CUT = {"LAST ERROR": 10, "AGGREGATE": 9, "TOPIC": 8, "TYPE": 8, "CONSUMER": 8}
"""What gives way on a narrow terminal, and how far: `events show` has it all."""
SPARE = ("CREATED (UTC)", "TOPIC", "TRIES", "AGGREGATE")
"""What a very narrow one does without, in this order."""


def list_found(settings: Settings, query: Query, *, json: bool, none: str, all: bool = True) -> None:
    """List the events that a query finds, of all or of the stretch where it begins; without any, say that there are no
    `none`."""
    one_more = replace(query, limit=query.limit + 1)
    records, may_be_more = (find(settings, one_more), False) if all else _look_for(settings, one_more)
    is_cut, records = len(records) > query.limit, records[: query.limit]
    if json:
        print_json([record_json(record) for record in records])
    elif records:
        _print_records(records)
    if is_cut:
        which = "newest" if query.newest_first else "oldest"
        say(f"there are more than the {which} {query.limit:,} that are shown; a larger --limit shows more of them")
    if may_be_more:
        say(f"looked at {looking.STRETCH:,} events and no further; --all looks at every one")
    if not records:
        raise nothing_matched(none)


def list_groups(settings: Settings, query: Query, *, json: bool) -> None:
    """List how many dead events there are of each error; without any, say so."""

    async def look() -> Sequence[DeadGroup]:
        async with admin_of(settings) as admin:
            return await admin.group_dead(query)

    groups = asyncio.run(look())
    if json:
        print_json([asdict(group) for group in groups])
    elif groups:
        print_listing(
            ("EVENTS", "FIRST SEEN (UTC)", "LAST SEEN (UTC)", "EXAMPLE", "ERROR"),
            [(group.events, group.first_at, group.last_at, group.example, group.error) for group in groups],
            cut={"ERROR": 40},
            spare=("FIRST SEEN (UTC)", "LAST SEEN (UTC)"),
        )
    if not groups:
        raise nothing_matched("dead events")


def show_found(settings: Settings, query: Query, *, json: bool, none: str) -> None:
    """Show everything of the events that a query finds; without any, say that there is no `none`."""
    records = find(settings, query)
    if not records:
        raise nothing_matched(none + (_on_the_other_side(settings, query) or whole_ids(query.ids)))
    for record in records:
        if json:
            print_json(record_json(record))
        else:
            print_record(record)


def _on_the_other_side(settings: Settings, query: Query) -> str:
    """Say so if it is there, but was received and not added, or the other way round."""
    inbox = query.side == "outbox"
    if not find(settings, replace(query, side="inbox" if inbox else "outbox")):
        return ""
    return "; one that was received has it: add --inbox" if inbox else "; one that was added has it: leave out --inbox"


def find(settings: Settings, query: Query) -> Sequence[Record]:
    """Find events, on a connection of its own."""

    async def look() -> Sequence[Record]:
        async with admin_of(settings) as admin:
            return await admin.find(query)

    return asyncio.run(look())


def _look_for(settings: Settings, query: Query) -> looking.Looked:
    async def look() -> looking.Looked:
        async with admin_of(settings) as admin:
            return await admin.look_for(query)

    return asyncio.run(look())


def _print_records(records: Sequence[Record]) -> None:
    """Print records as a table, one line each; those of an inbox say whose they are."""
    columns: dict[str, Callable[[Record], object]] = {
        "ID": lambda record: record.event_id,
        "CONSUMER": lambda record: record.consumer,
        "STATUS": lambda record: record.status,
        "TYPE": lambda record: record.type,
        "TOPIC": lambda record: record.topic,
        "AGGREGATE": aggregate_of,
        "CREATED (UTC)": lambda record: record.created_at,
        "TRIES": lambda record: record.attempts,
        "LAST ERROR": lambda record: _one_line(record.last_error),
    }
    if all(record.consumer is None for record in records):
        del columns["CONSUMER"]
    rows = [[cell(record) for cell in columns.values()] for record in records]
    print_listing(tuple(columns), rows, cut=CUT, spare=SPARE)


def _one_line(text: str | None) -> str | None:
    return text and text.strip().partition("\n")[0]
