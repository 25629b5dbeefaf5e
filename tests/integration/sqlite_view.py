"""A store on SQLite that looks everything up twice: as the commands do, and in the view that people read."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

from pillarbox.core.insert import EPOCH
from pillarbox.ports import Query, Record
from pillarbox.stores.sqlite import SqliteStore


class ComparedStore(SqliteStore):
    """Refuses to find anything that the view shows otherwise."""

    async def find(self, query: Query) -> Sequence[Record]:
        records = await super().find(query)
        if query.side == "outbox":
            assert in_view(self._path, [record.position for record in records]) == [told(one) for one in records]
        return records


def in_view(path: str, positions: list[int]) -> list[dict[str, Any]]:
    """Give the view's rows of these positions."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        sql = "SELECT * FROM pillarbox_events WHERE id = ?"
        return [_compared(row) for position in positions for row in connection.execute(sql, (position,))]


def _compared(row: sqlite3.Row) -> dict[str, Any]:
    """Leave out where it lies, and what a record has for the wire, not as it is stored."""
    return {name: row[name] for name in tuple(row.keys()) if name not in ("parked_id", "headers", "content_type")}


def told(record: Record) -> dict[str, Any]:
    """Write a record as the view would."""
    data, original = record.data, record.original
    return {
        "id": record.position,
        "event_id": record.event_id,
        "status": record.status,
        "event_type": record.type,
        "topic": record.topic,
        "aggregate_type": record.aggregate[0] if record.aggregate else "",
        "aggregate_id": record.aggregate[1] if record.aggregate else "",
        "number": record.number,
        "attempts": record.attempts,
        "last_error": record.last_error,
        "created_at": _microseconds(record.created_at),
        "published_at": _microseconds(record.published_at),
        "next_try_at": _microseconds(record.next_try_at),
        "blocked_by": record.blocked_by,
        "occurred_at": _microseconds(record.occurred_at),
        "available_at": _microseconds(record.available_at),
        "idempotency_key": record.idempotency_key,
        "payload": data if isinstance(data, str) else None,
        "body": data if isinstance(data, bytes) else None,
        "original": original if isinstance(original, str) else None,
        "original_body": original if isinstance(original, bytes) else None,
    }


def _microseconds(at: datetime | None) -> int | None:
    return None if at is None else (at - EPOCH) // timedelta(microseconds=1)
