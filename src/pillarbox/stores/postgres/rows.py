"""Rows → entries. The columns of outbox, parked and archive have the same names, so one list reads all three."""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

from pillarbox.core.chunk import Chunk
from pillarbox.core.entry import Entry

COLUMNS = (
    "event_id::text, aggregate_type, aggregate_id, event_type, topic, payload::text,"
    " content_type, headers::text, idempotency_key, number, available_at, occurred_at, created_at, body"
)
"""The event's columns in Entry's order, after its position; the body, where there is no payload, comes last."""
WITHOUT_CONTENTS = (
    COLUMNS.replace("payload::text", "''").replace("headers::text", "NULL").replace(", body", ", NULL::bytea")
)
"""The same, with nothing in place of what may be large."""
_DATA, _BODY = 6, 14
_data = itemgetter(_DATA)


def entry_of(row: Sequence[Any]) -> Entry:
    """Make an entry of a row (position, then COLUMNS)."""
    return chunk_of((tuple(row),))[0]


def chunk_of(rows: Iterable[tuple[Any, ...]]) -> Chunk:
    """Make entries of rows (position, then COLUMNS)."""
    found = list(rows)
    if None in map(_data, found):
        found = [row if row[_DATA] is not None else _with_body(row) for row in found]
    return Chunk(found)


def _with_body(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*row[:_DATA], row[_BODY], *row[_DATA + 1 :])
