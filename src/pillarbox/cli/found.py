"""What `events` and `dead` have in common: find events and print them, or say that there are none."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

from pillarbox.cli.options import admin_of
from pillarbox.cli.output import (
    nothing_matched,
    print_json,
    print_record,
    print_records,
    print_table,
    record_json,
    whole_ids,
)
from pillarbox.ports import DeadGroup, Query, Record
from pillarbox.settings import Settings


def list_found(settings: Settings, query: Query, *, json: bool, none: str) -> None:
    """List the events that a query finds; without any, say that there are no `none`."""
    records = find(settings, query)
    if json:
        print_json([record_json(record) for record in records])
    elif records:
        print_records(records)
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
        print_table(
            ("EVENTS", "FIRST SEEN (UTC)", "LAST SEEN (UTC)", "EXAMPLE", "ERROR"),
            [(group.events, group.first_at, group.last_at, group.example, group.error) for group in groups],
        )
    if not groups:
        raise nothing_matched("dead events")


def show_found(settings: Settings, query: Query, *, json: bool, none: str) -> None:
    """Show everything of the events that a query finds; without any, say that there is no `none`."""
    records = find(settings, query)
    if not records:
        raise nothing_matched(none + whole_ids(query.ids))
    for record in records:
        if json:
            print_json(record_json(record))
        else:
            print_record(record)


def find(settings: Settings, query: Query) -> Sequence[Record]:
    """Find events, on a connection of its own."""

    async def look() -> Sequence[Record]:
        async with admin_of(settings) as admin:
            return await admin.find(query)

    return asyncio.run(look())
