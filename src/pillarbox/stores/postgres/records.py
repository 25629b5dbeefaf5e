"""Finding events: in the log, the archive and the parking lots, each as a Record for people."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from pillarbox.ports import DeadGroup, Query, Record, Status
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.parking import IN_LINE

IN_THE_LOT = frozenset(("retrying", "blocked", "delayed", "dead", "dropped"))
AROUND = timedelta(days=1)
"""An event's id was made within so long of its row, unless somebody chose it: enough to find most by their time."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EVENT = (
    "id, event_id::text, status, event_type, topic, aggregate_type, aggregate_id, created_at, published_at, attempts,"
    " last_error, next_try_at, blocked_by::text, number, idempotency_key, occurred_at, available_at, content_type,"
    " headers::text, payload::text, body, original::text, original_body"
)
_BRIEF = _EVENT.replace(
    "headers::text, payload::text, body, original::text, original_body", "NULL, NULL, NULL, NULL, NULL"
)
"""The same without contents, for who may not see them."""
_STATE = (
    "CASE state WHEN 'suspect' THEN 'retrying' WHEN 'held' THEN 'retrying' WHEN 'stored' THEN 'pending' ELSE state END"
)


class Where(NamedTuple):
    """A condition with its parameters."""

    sql: str
    parameters: list[Any]


class Finder:
    """Finds events by what a query says."""

    def __init__(self, place: str) -> None:
        self._p = place
        self._events: tuple[str, str] | None = None

    async def _seen(self, connection: Connection) -> tuple[str, str]:
        """Give the columns and the view that we may see: a viewer sees events without their contents."""
        if self._events is None:
            [[whole]] = await connection.run("SELECT has_table_privilege(%s, 'SELECT')", [f"{self._p}events"])
            self._events = (_EVENT, "events") if whole else (_BRIEF, "events_brief")
        return self._events

    async def find(self, connection: Connection, query: Query) -> Sequence[Record]:
        """Find events on the side that the query names."""
        if query.side == "inbox":
            return await self._received(connection, query)
        if set(query.status) == {"pending"}:
            # The status of a log row is worked out row by row: look only where pending ones can be.
            [[above]] = await connection.run(f"SELECT {self._p}pending_above()")
            query = replace(query, after=max(query.after or 0, above or 0))
        columns, view = await self._seen(connection)
        return [_record(row) for row in await connection.run(*self.chosen(columns, query, query.status or None, view))]

    async def heads(self, connection: Connection, limit: int) -> list[Record]:
        """Find the events at the head of blocked lines, oldest first, without those that may go on by themselves."""
        positions = (
            f"SELECT position FROM (SELECT DISTINCT ON (line) state, position FROM {self._p}parked WHERE {IN_LINE}"
            " ORDER BY line, id) head WHERE state IN ('retrying', 'dead') ORDER BY position LIMIT %s"
        )
        columns, view = await self._seen(connection)
        sql = f"SELECT {columns} FROM {self._p}{view} WHERE id = ANY (ARRAY({positions})) ORDER BY id"
        return [_record(row) for row in await connection.run(sql, [limit])]

    async def at(self, connection: Connection, position: int) -> Record | None:
        """Find the event at a position."""
        columns, view = await self._seen(connection)
        rows = await connection.run(f"SELECT {columns} FROM {self._p}{view} WHERE id = %s", [position])
        return _record(rows[0]) if rows else None

    def chosen(self, columns: str, query: Query, status: Sequence[Status] | None, view: str = "events") -> Where:
        """Write the SELECT for columns of the events that a query means, of those in one of these states."""
        if query.side == "inbox":
            where = _all(_narrow(query, "parked_at", "event_id = ANY (%s)"), _consumer(query), _state(status))
            table = "inbox_parked"
        else:
            where = _all(_narrow(query, "created_at"), self._ids(query), self._status(status))
            table = view
        order = "DESC" if query.newest_first else ""
        return Where(
            f"SELECT {columns} FROM {self._p}{table} it WHERE {where.sql} ORDER BY id {order} LIMIT %s",
            [*where.parameters, query.limit],
        )

    def _status(self, status: Sequence[Status] | None) -> Iterable[Where]:
        if status is None:
            return
        states = list(status)
        yield Where("status = ANY (%s)", [states])
        if IN_THE_LOT.issuperset(states):  # then only what is in the lot has to be looked at
            yield Where(f"id = ANY (ARRAY(SELECT position FROM {self._p}parked WHERE state = ANY (%s)))", [states])

    def _ids(self, query: Query) -> Iterable[Where]:
        """Look event ids up."""
        # The log has no index on them: writers would pay for it with every event. Those that Python made are UUIDs of
        # version 7 and tell their time, which the small index on created_at turns into some pages. If that does not
        # find them all, the log is scanned.
        if not query.ids:
            return
        ids = _uuids(query.ids)
        times = [at for id in ids if (at := _time_of(id))]
        span = (min(times) - AROUND, max(times) + AROUND) if times else (None, None)
        yield Where(
            "id = ANY (ARRAY(WITH near AS MATERIALIZED ("
            f"SELECT event_id, id FROM {self._p}archive WHERE event_id = ANY (%s) UNION ALL"
            f" SELECT event_id, id FROM {self._p}outbox WHERE event_id = ANY (%s)"
            " AND created_at BETWEEN %s::timestamptz AND %s::timestamptz)"
            f" SELECT id FROM near UNION ALL SELECT id FROM {self._p}outbox WHERE event_id = ANY (%s)"
            " AND (SELECT count(DISTINCT event_id) FROM near) < %s))",
            [ids, ids, *span, ids, len(set(ids))],
        )

    async def group_dead(self, connection: Connection, query: Query) -> list[DeadGroup]:
        """Count dead events by the first line of their error: from the parking lots alone, never from the log."""
        if query.status and "dead" not in query.status:
            return []
        if query.side == "inbox":
            table, where = "inbox_parked", _all(_narrow(query, "parked_at", "event_id = ANY (%s)"), _consumer(query))
        else:
            table = "parked"
            ids = [Where("event_id = ANY (%s)", [_uuids(query.ids)])] if query.ids else []
            where = _all(_narrow(query, "created_at", place="position"), ids, [self._is_newest()])
        rows = await connection.run(
            f"SELECT error, events, first, last, (SELECT event_id::text FROM {self._p}{table} WHERE id = newest)"
            " FROM (SELECT replace(split_part(coalesce(last_error, ''), E'\\n', 1), event_id::text, '…') AS error,"
            " count(*) AS events,"
            " min(parked_at) AS first, max(parked_at) AS last, max(id) AS newest"
            f" FROM {self._p}{table} k WHERE state = 'dead' AND {where.sql} GROUP BY 1"
            " ORDER BY count(*) DESC, max(parked_at) DESC, 1 LIMIT %s) groups"
            " ORDER BY events DESC, last DESC, error",
            [*where.parameters, query.limit],
        )
        return [DeadGroup(*row) for row in rows]

    def _is_newest(self) -> Where:
        """Say that a row of the parking lot tells how its event is, as in the view: one event may have several."""
        return Where(
            f"k.id = (SELECT n.id FROM {self._p}parked n WHERE n.position = k.position AND NOT (n.replay IS NOT NULL"
            " AND n.state IN ('delayed', 'published', 'dropped')) ORDER BY n.id DESC LIMIT 1)",
            [],
        )

    async def _received(self, connection: Connection, query: Query) -> list[Record]:
        """Find events that were received and stand in the inbox's parking lot, or stood there."""
        head = (
            f"SELECT head.event_id FROM {self._p}inbox_parked head WHERE head.consumer = it.consumer"
            " AND head.line = it.line AND head.line IS NOT NULL AND head.state IN ('retrying', 'blocked', 'dead')"
            " ORDER BY head.id LIMIT 1"
        )
        columns = (
            f"id, event_id, {_STATE}, event_type, topic, aggregate_type, aggregate_id, parked_at, attempts, last_error,"
            f" due_at, headers, body, consumer, traceback, number, CASE WHEN state = 'blocked' THEN ({head}) END"
        )
        rows = await connection.run(*self.chosen(columns, query, query.status or None))
        return [_received(row) for row in rows]


def _narrow(query: Query, time: str, ids: str | None = None, place: str = "id") -> Iterable[Where]:
    """Turn what a query says of the event itself into conditions."""
    yield Where("TRUE", [])
    for condition, value in (
        (ids, list(query.ids) if ids and query.ids else None),
        ("event_type = %s", query.type),
        ("topic = %s", query.topic),
        ("aggregate_type = %s", query.aggregate and query.aggregate[0]),
        ("aggregate_id = %s", query.aggregate and query.aggregate[1]),
        (f"{time} >= %s", query.since),
        (f"{time} < %s", query.until),
        ("strpos(last_error, %s) > 0", query.error),
        (f"{place} > %s", query.after),
        (f"{place} <= %s", query.upto),
    ):
        if condition is not None and value is not None:
            yield Where(condition, [value])


def _consumer(query: Query) -> Iterable[Where]:
    if query.consumer is not None:
        yield Where("consumer = %s", [query.consumer])


def _state(status: Sequence[Status] | None) -> Iterable[Where]:
    if status is not None:
        yield Where(f"{_STATE} = ANY (%s)", [list(status)])


def _all(*groups: Iterable[Where]) -> Where:
    conditions = [condition for group in groups for condition in group]
    return Where(
        " AND ".join(condition.sql for condition in conditions),
        [value for condition in conditions for value in condition.parameters],
    )


def _uuids(texts: Iterable[str]) -> list[UUID]:
    """Read ids; what is no UUID can be no event's."""
    ids = []
    for text in texts:
        try:
            ids.append(UUID(text))
        except ValueError:
            continue
    return ids


def _time_of(id: UUID) -> datetime | None:
    """Give the time inside a UUID of version 7."""
    if id.version != 7:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=id.int >> 80)
    except OverflowError:
        return None


def _record(row: tuple[Any, ...]) -> Record:
    id, event_id, status, type, topic, kind, aggregate, created_at, published_at, attempts, error, next_try, *rest = row
    head, number, key, occurred_at, available_at, content_type, headers, payload, body, original, original_body = rest
    return Record(
        position=id,
        event_id=event_id,
        status=status,
        type=type,
        topic=topic,
        aggregate=(kind, aggregate) if aggregate else None,
        created_at=created_at,
        published_at=published_at,
        attempts=attempts,
        last_error=error,
        next_try_at=next_try,
        blocked_by=head,
        number=number,
        idempotency_key=key,
        occurred_at=occurred_at,
        available_at=available_at,
        content_type=content_type or "application/json",
        headers=_headers(headers),
        data=(body if payload is None else payload) or "",
        hidden=payload is None and body is None,  # of a row that we see, one of them is there
        original=original_body if original is None else original,
    )


def _headers(text: str | None) -> dict[str, str]:
    """Read an event's own headers; a plain INSERT may have written anything, which is shown as it stands."""
    try:
        headers = json.loads(text or "{}")
    except (ValueError, RecursionError):  # a number with thousands of digits, thousands deep
        headers = None
    return headers if isinstance(headers, dict) else {"(no JSON object)": str(text)}


def _received(row: tuple[Any, ...]) -> Record:
    id, event_id, status, type, topic, kind, aggregate, parked_at, attempts, error, due_at, headers, body, *rest = row
    consumer, trace, number, head = rest
    wire: dict[str, str] = json.loads(headers)
    return Record(
        position=id,
        event_id=event_id,
        status=status,
        type=type,
        topic=topic,
        aggregate=(kind, aggregate) if aggregate else None,
        created_at=parked_at,
        attempts=attempts,
        last_error=error,
        next_try_at=due_at if status == "retrying" else None,
        blocked_by=head,
        content_type=wire.get("content_type", "application/json"),
        headers=wire,
        data=body,
        number=number,
        consumer=consumer,
        traceback=trace,
    )
