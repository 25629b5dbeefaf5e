"""Finding events: in the log, the archive and the parking lots, each as a Record for people."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pillarbox.core.entry import Entry
from pillarbox.core.insert import microseconds
from pillarbox.ports import DeadGroup, Query, Record, Status
from pillarbox.stores.sqlite.parking import HEAD_IN_LINE, IN_LINE
from pillarbox.stores.sqlite.positions import Positions, load_positions, published_at
from pillarbox.stores.sqlite.rows import AS_ENTRY, instant, log_entries, maybe_instant

_RECEIVED = (
    "CASE state WHEN 'suspect' THEN 'retrying' WHEN 'held' THEN 'retrying' WHEN 'stored' THEN 'pending' ELSE state END"
)
# A replay that waits or is done leaves its event as it was: published. One that failed is shown.
_COUNTS = "NOT (n.replay IS NOT NULL AND n.state IN ('delayed', 'published', 'dropped'))"
IN_THE_LOT = frozenset(("retrying", "blocked", "delayed", "dead", "dropped"))


class Found(NamedTuple):
    """A record, and its row in the parking lot if it has one."""

    record: Record
    parked_id: int | None


class Finder:
    """Finds events by what a query says."""

    def __init__(self, prefix: str) -> None:
        self._p = prefix

    def find(self, db: sqlite3.Connection, query: Query) -> Sequence[Record]:
        """Find events on the side that the query names."""
        if query.side == "inbox":
            return [found.record for found in self.received(db, query)]
        return [found.record for found in self.added(db, query)]

    def added(self, db: sqlite3.Connection, query: Query) -> list[Found]:
        """Find events that were added: those of the log and those of the archive."""
        positions = load_positions(db, self._p)
        settled = f"coalesce({self._column('state')}, 'published')"
        pending, parameters = _pending(positions)
        status = f"CASE WHEN {pending} THEN 'pending' ELSE {settled} END"
        history = f"{published_at(self._p, 'it')}, 0, NULL"
        error = self._column("last_error")
        found = self._search(db, query, "outbox", status, parameters, history, error, positions.lowest)
        archived = f"coalesce({self._column('state')}, status)"
        history, error = "published_at, attempts, last_error", f"coalesce({error}, last_error)"
        found += self._search(db, query, "archive", archived, (), history, error, None)
        found.sort(key=lambda one: one.record.position, reverse=query.newest_first)
        return found[: query.limit]

    def _search(
        self,
        db: sqlite3.Connection,
        query: Query,
        table: str,
        status: str,
        parameters: Sequence[Any],
        history: str,
        error: str,
        lowest: int | None,
    ) -> list[Found]:
        where, narrowing = _narrow(query, "created_at")
        if query.status and IN_THE_LOT.issuperset(query.status):
            where.append(
                f"id IN (SELECT position FROM {self._p}parked WHERE state IN (SELECT value FROM json_each(?)))"
            )
            narrowing.append(json.dumps(list(query.status)))
        elif lowest is not None and set(query.status) == {"pending"}:
            where.append("id > ?")
            narrowing.append(lowest)
        sql = (
            f"WITH it AS (SELECT o.*, (SELECT max(n.id) FROM {self._p}parked n WHERE n.position = o.id AND {_COUNTS})"
            " AS parked_id"
            f" FROM {self._p}{table} o WHERE {' AND '.join(where)})"
            f" SELECT id, {AS_ENTRY}, parked_id, {status} AS how, {history} FROM it"
            f" WHERE ({'how IN (SELECT value FROM json_each(?))' if query.status else 'TRUE'})"
            f" AND ({'TRUE' if query.error is None else f'instr({error}, ?) > 0'})"
            f" ORDER BY id {'DESC' if query.newest_first else ''} LIMIT ?"
        )
        asked = [json.dumps(list(query.status))] if query.status else []
        asked += [] if query.error is None else [query.error]
        rows = db.execute(sql, (*narrowing, *parameters, *asked, query.limit)).fetchall()
        parked = self._parked(db, [row[14] for row in rows if row[14] is not None])
        return [
            Found(_record(entry, how, at, parked.get(parked_id, (attempts, error, None, None, None, None))), parked_id)
            for entry, (parked_id, how, at, attempts, error) in zip(
                log_entries(row[:14] for row in rows), (row[14:] for row in rows), strict=True
            )
        ]

    def _column(self, name: str) -> str:
        return f"(SELECT {name} FROM {self._p}parked WHERE id = parked_id)"

    def _parked(self, db: sqlite3.Connection, ids: Iterable[int]) -> dict[int, tuple[Any, ...]]:
        """Give attempts, last error, due time, settling time, the head's event id and the contents of parked rows."""
        rows = db.execute(
            "SELECT id, attempts, last_error, due_at, settled_at, CASE WHEN state = 'blocked' THEN"
            f" (SELECT head.event_id FROM {self._p}parked head WHERE head.line = it.line"
            f" AND {HEAD_IN_LINE} ORDER BY head.id LIMIT 1) END, coalesce(payload, body)"
            f" FROM {self._p}parked it WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        )
        return {row[0]: row[1:] for row in rows}

    def heads(self, db: sqlite3.Connection, limit: int) -> list[Record]:
        """Find the events at the head of blocked lines, oldest first, without those that may go on by themselves."""
        rows = db.execute(
            f"SELECT position FROM (SELECT min(id), state, position FROM {self._p}parked WHERE {IN_LINE} GROUP BY line)"
            " WHERE state IN ('retrying', 'dead') ORDER BY position LIMIT ?",
            (limit,),
        ).fetchall()
        return [record for (position,) in rows if (record := self.at(db, position))]

    def at(self, db: sqlite3.Connection, position: int) -> Record | None:
        """Find the event at a position."""
        found = self.added(db, Query(after=position - 1, newest_first=False, limit=1))
        return found[0].record if found and found[0].record.position == position else None

    def group_dead(self, db: sqlite3.Connection, query: Query) -> list[DeadGroup]:
        """Count dead events by the first line of their error: from the parking lots alone, never from the log."""
        if query.status and "dead" not in query.status:
            return []
        table, time, place = (
            ("inbox_parked", "parked_at", "id") if query.side == "inbox" else ("parked", "created_at", "position")
        )
        where, parameters = _narrow_parked(query, time, place)
        if query.side == "outbox":  # one event may have several rows: the newest says how it is
            where.append(
                f"k.id = (SELECT max(n.id) FROM {self._p}parked n WHERE n.position = k.position AND {_COUNTS})"
            )
        rows = db.execute(
            f"SELECT error, events, first, last, (SELECT event_id FROM {self._p}{table} WHERE id = newest) FROM ("
            " SELECT replace(substr(last_error, 1, instr(last_error || char(10), char(10)) - 1), event_id, '…')"
            " AS error, count(*) AS events,"
            " min(parked_at) AS first, max(parked_at) AS last, max(id) AS newest"
            f" FROM {self._p}{table} k WHERE state = 'dead' AND {' AND '.join(where)}"
            " GROUP BY 1 ORDER BY events DESC, last DESC, error LIMIT ?)",
            (*parameters, query.limit),
        )
        return [
            DeadGroup(error or "", count, instant(first), instant(last), id) for error, count, first, last, id in rows
        ]

    def received(self, db: sqlite3.Connection, query: Query) -> list[Found]:
        """Find events that were received and stand in the inbox's parking lot, or stood there."""
        where, parameters = _narrow_parked(query, "parked_at")
        if query.status:
            where.append(f"({_RECEIVED}) IN (SELECT value FROM json_each(?))")
            parameters.append(json.dumps(list(query.status)))
        rows = db.execute(
            f"SELECT id, event_id, {_RECEIVED}, event_type, topic,"
            " aggregate_type, aggregate_id, parked_at, attempts, last_error, due_at, headers, body, consumer,"
            " traceback, number,"
            f" CASE WHEN state = 'blocked' THEN (SELECT head.event_id FROM {self._p}inbox_parked head"
            " WHERE head.consumer = it.consumer AND head.line = it.line"
            f" AND {HEAD_IN_LINE} ORDER BY head.id LIMIT 1) END"
            f" FROM {self._p}inbox_parked it WHERE {' AND '.join(where)}"
            f" ORDER BY id {'DESC' if query.newest_first else ''} LIMIT ?",
            (*parameters, query.limit),
        )
        return [Found(_received(row), row[0]) for row in rows]


def _pending(positions: Positions) -> tuple[str, list[Any]]:
    """Give the condition that an entry lies beyond its position."""
    cases, parameters = "", []
    for topic, position in positions.detours.items():
        cases += " WHEN ? THEN ?"
        parameters += [topic, position]
    return (f"id > CASE topic{cases} ELSE ? END" if cases else "id > ?"), [*parameters, positions.main]


def _narrow_parked(query: Query, time: str, place: str = "id") -> tuple[list[str], list[Any]]:
    """Turn what a query says into conditions on a parking lot."""
    where, parameters = _narrow(query, time, place)
    if query.consumer is not None:
        where.append("consumer = ?")
        parameters.append(query.consumer)
    if query.error is not None:
        where.append("instr(last_error, ?) > 0")
        parameters.append(query.error)
    return where, parameters


def _narrow(query: Query, time: str, place: str = "id") -> tuple[list[str], list[Any]]:
    """Turn what a query says of the event itself into conditions."""
    where, parameters = ["TRUE"], []
    for condition, value in (
        ("event_id IN (SELECT value FROM json_each(?))", json.dumps(list(query.ids)) if query.ids else None),
        ("event_type = ?", query.type),
        ("topic = ?", query.topic),
        ("aggregate_type = ?", query.aggregate and query.aggregate[0]),
        ("aggregate_id = ?", query.aggregate and query.aggregate[1]),
        (f"{time} >= ?", query.since and microseconds(query.since)),
        (f"{time} < ?", query.until and microseconds(query.until)),
        (f"{place} > ?", query.after),
        (f"{place} <= ?", query.upto),
    ):
        if value is not None:
            where.append(condition)
            parameters.append(value)
    return where, parameters


def _record(entry: Entry, status: Status, at: int | None, parked: tuple[Any, ...]) -> Record:
    attempts, error, due_at, settled_at, head, data = parked
    published = at if settled_at is None else settled_at
    return Record(
        position=entry.position,
        event_id=entry.event_id,
        status=status,
        type=entry.event_type,
        topic=entry.topic,
        aggregate=(entry.aggregate_type, entry.aggregate_id) if entry.aggregate_id else None,
        created_at=entry.created_at,
        published_at=maybe_instant(published) if status == "published" else None,
        attempts=attempts,
        last_error=error,
        next_try_at=maybe_instant(due_at) if status in ("retrying", "delayed") else None,
        blocked_by=head,
        number=entry.number,
        idempotency_key=entry.idempotency_key,
        occurred_at=entry.occurred_at,
        available_at=entry.available_at,
        content_type=entry.content_type or "application/json",
        headers=_headers(entry.headers),
        data=entry.data if data is None else data,
        original=None if data in (None, entry.data) else entry.data,
    )


def _headers(text: str | None) -> dict[str, str]:
    """Read an event's own headers as they go over the wire; what a plain INSERT got wrong is shown as it stands."""
    try:
        headers = json.loads(text or "{}")
        if isinstance(headers, dict):
            return {name: value if isinstance(value, str) else json.dumps(value) for name, value in headers.items()}
    except (ValueError, RecursionError):
        pass  # text that no parser gets through is no object either
    return {"(no JSON object)": str(text)}


def _received(row: tuple[Any, ...]) -> Record:
    id, event_id, status, type, topic, kind, aggregate, parked_at, attempts, error, due_at, headers, body, *rest = row
    consumer, trace, number, head = rest
    wire = _headers(headers)
    return Record(
        position=id,
        event_id=event_id,
        status=status,
        type=type,
        topic=topic,
        aggregate=(kind, aggregate) if aggregate else None,
        created_at=instant(parked_at),
        attempts=attempts,
        last_error=error,
        next_try_at=maybe_instant(due_at) if status == "retrying" else None,
        blocked_by=head,
        content_type=wire.get("content_type", "application/json"),
        headers=wire,
        data=body,
        number=number,
        consumer=consumer,
        traceback=trace,
    )
