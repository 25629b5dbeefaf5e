"""Rows → entries. The columns of outbox, parked and archive have the same names, so one list reads all three."""

from collections.abc import Iterable
from typing import Any

from pillarbox.core.entry import Entry

COLUMNS = (
    "event_id::text, aggregate_type, aggregate_id, event_type, topic, payload::text, body,"
    " content_type, headers::text, idempotency_key, number, available_at, occurred_at, created_at"
)
"""The event's columns in Entry's order, after its position; payload and body apart."""

WITHOUT_CONTENTS = COLUMNS.replace("payload::text, body", "'', NULL::bytea").replace("headers::text", "NULL")
"""The same, with nothing in place of what may be large."""


def entry_of(row: Iterable[Any]) -> Entry:
    """Make an entry of a row (position, then COLUMNS)."""
    [entry] = entries_of((row,))
    return entry


def entries_of(rows: Iterable[Iterable[Any]]) -> list[Entry]:
    """Make entries of rows (position, then COLUMNS)."""
    new = tuple.__new__  # what Entry() calls in the end: the way there takes longer than the rest
    return [
        new(Entry, (
            position, event_id, kind, id, event_type, topic, body if payload is None else payload, content_type,
            headers, key, number, available_at, occurred_at, created_at, *_OF_THE_LOG,
        ))
        for position, event_id, kind, id, event_type, topic, payload, body, content_type, headers, key, number,
            available_at, occurred_at, created_at in rows
    ]  # fmt: skip


_OF_THE_LOG = tuple(Entry._field_defaults.values())
