"""Rows → entries. The columns of outbox, parked and archive have the same names, so one list reads all three."""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from pillarbox.core.entry import Entry
from pillarbox.core.insert import EPOCH

EVENT = "event_id, aggregate_type, aggregate_id, event_type, topic"
REST = "content_type, headers, idempotency_key, number, available_at, occurred_at, created_at"
STORED = f"{EVENT}, payload, body, {REST}"
"""The event's columns as they are stored, for copies from table to table."""
AS_ENTRY = f"{EVENT}, coalesce(payload, body), {REST}"
"""The event's columns in Entry's order, after its position."""
CHUNK = 16 << 20
"""About so many bytes of payload and headers come out at once."""


def as_published(log: str, parked: str, **others: str) -> str:
    """Write STORED for a log row and its own row in the parking lot, if it has one: there it may have been edited.
    Other columns may be given another expression."""
    edited = {
        column: f"CASE WHEN {parked}.id IS NULL THEN {log}.{column} ELSE {parked}.{column} END"
        for column in ("payload", "body")
    }
    expressions = edited | others
    return ", ".join(expressions.get(column, f"{log}.{column}") for column in STORED.split(", "))


AMONG = "(SELECT value FROM json_each(?))"


def in_hex(names: Iterable[str]) -> str:
    """Write names for `hex(topic) IN {AMONG}`: json_each ends a text at its first NUL, and knows no odd bytes."""
    return json.dumps([name.encode(errors="surrogateescape").hex().upper() for name in names])


def instant(microseconds: int) -> datetime:
    """Read an instant, exactly."""
    return EPOCH + timedelta(0, 0, microseconds)


def maybe_instant(microseconds: int | None) -> datetime | None:
    """Read an instant that may be missing."""
    return None if microseconds is None else EPOCH + timedelta(0, 0, microseconds)


def log_entries(rows: Iterable[tuple[Any, ...]]) -> list[Entry]:
    """Make entries of log rows (id, then AS_ENTRY)."""
    epoch, passed = EPOCH, timedelta  # hundreds of thousands a second: even a look-up counts
    return [
        Entry(
            position,
            event_id,
            aggregate_type,
            aggregate_id,
            event_type,
            topic,
            data,
            content_type,
            headers,
            key,
            number,
            None if available is None else epoch + passed(0, 0, available),
            None if occurred is None else epoch + passed(0, 0, occurred),
            epoch + passed(0, 0, created),
        )
        for (
            position,
            event_id,
            aggregate_type,
            aggregate_id,
            event_type,
            topic,
            data,
            content_type,
            headers,
            key,
            number,
            available,
            occurred,
            created,
        ) in rows
    ]


def parked_entry(row: tuple[Any, ...], id: int, attempts: int, ordered: bool, replay: str | None) -> Entry:
    """Make an entry of a row out of the parking lot (position, then AS_ENTRY)."""
    [entry] = log_entries((row,))
    return entry._replace(attempts=attempts, parked=True, ordered=ordered, replay=replay, row=id)
