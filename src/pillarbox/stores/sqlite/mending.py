"""What an operator does: retry, edit, drop, pause, resume. Each is one transaction and leaves a line in the audit."""

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from pillarbox.core.insert import microseconds
from pillarbox.ports import Clock, Deed, Pause, Query, Status
from pillarbox.stores.audit import describe, user
from pillarbox.stores.sqlite.connection import writing
from pillarbox.stores.sqlite.records import Finder, Found
from pillarbox.stores.sqlite.rows import instant

PAGE = 1_000
T = TypeVar("T")


class Mending:
    """Changes what becomes of events, beside running relays."""

    def __init__(self, prefix: str, finder: Finder, clock: Clock) -> None:
        self._p, self._finder, self._clock = prefix, finder, clock

    def retry(self, db: sqlite3.Connection, query: Query) -> int:
        """Make dead and waiting events due now, with all their tries."""
        table, now = ("inbox_parked" if query.side == "inbox" else "parked"), self._now()
        with writing(db):
            ids = self._choose(db, query, ("dead", "retrying", "delayed"))
            sql = f"UPDATE {self._p}{table} SET state = 'retrying', due_at = ?, attempts = 0"
            if query.side == "inbox":  # whoever retries one that stands because of its number goes on from that number
                sql += ", numbering = CASE WHEN numbering IS NOT NULL THEN 'accepted' END"
            count = db.execute(f"{sql} WHERE id IN (SELECT value FROM json_each(?))", (now, ids)).rowcount
            return self._audit(db, describe("retry", query), count)

    def edit(self, db: sqlite3.Connection, event_id: str, data: str | bytes) -> int:
        """Let a dead event carry something else, and make it due now; the log keeps what was added."""
        query = Query(ids=(event_id,), status=("dead",), limit=1)
        payload, body = (data, None) if isinstance(data, str) else (None, data)
        with writing(db):
            ids = self._choose(db, query, ("dead",))
            count = db.execute(
                f"UPDATE {self._p}parked SET state = 'retrying', due_at = ?, attempts = 0, payload = ?, body = ?"
                " WHERE id IN (SELECT value FROM json_each(?))",
                (self._now(), payload, body, ids),
            ).rowcount
            return self._audit(db, describe("edit", query), count)

    def drop(self, db: sqlite3.Connection, query: Query) -> int:
        """Forget dead events; those that wait too, if they are named."""
        table, now = ("inbox_parked" if query.side == "inbox" else "parked"), self._now()
        states: Sequence[Status] = ("dead", "retrying", "blocked", "delayed") if query.ids else ("dead",)
        with writing(db):
            ids = self._choose(db, query, states)
            sql = f"UPDATE {self._p}{table} SET state = 'dropped', settled_at = ?, due_at = NULL"
            count = db.execute(f"{sql} WHERE id IN (SELECT value FROM json_each(?))", (now, ids)).rowcount
            return self._audit(db, describe("drop", query), count)

    def pause(self, db: sqlite3.Connection, topic: str, who: str, why: str) -> Pause | None:
        """Pause a topic; if it is paused already, change nothing and give that pause."""
        with writing(db):
            sql = f"SELECT topic, since, who, why FROM {self._p}pauses WHERE topic = ?"
            if there := db.execute(sql, (topic,)).fetchone():
                return Pause(there[0], instant(there[1]), *there[2:])
            db.execute(
                f"INSERT INTO {self._p}pauses (topic, since, who, why) VALUES (?, ?, ?, ?)",
                (topic, self._now(), who, why),
            )
            self._audit(db, f"pause topic={topic}", 1, who)
        return None

    def resume(self, db: sqlite3.Connection, topic: str) -> bool:
        """End a pause."""
        with writing(db):
            count = db.execute(f"DELETE FROM {self._p}pauses WHERE topic = ?", (topic,)).rowcount
            return bool(self._audit(db, f"resume topic={topic}", count))

    def deeds(self, db: sqlite3.Connection, since: datetime | None, limit: int) -> list[Deed]:
        """Read the audit, the newest line first."""
        rows = db.execute(
            f"SELECT at, who, what, count FROM {self._p}audit WHERE at >= ? ORDER BY n DESC LIMIT ?",
            (0 if since is None else microseconds(since), limit),
        )
        return [Deed(instant(at), who, what, count) for at, who, what, count in rows]

    def _choose(self, db: sqlite3.Connection, query: Query, states: Sequence[Status]) -> str:
        """Give the rows of the parking lot that a query means, of those in one of these states, as a JSON list."""
        status = [state for state in states if not query.status or state in query.status]
        if not status:
            return "[]"
        return json.dumps(self._each(db, replace(query, status=status), lambda found: found.parked_id))

    def _each(self, db: sqlite3.Connection, query: Query, part: Callable[[Found], T]) -> list[T]:
        """Give a part of everything that a query finds."""
        find = self._finder.received if query.side == "inbox" else self._finder.added
        if query.newest_first:
            return [part(found) for found in find(db, query)]
        parts: list[T] = []  # by pages, so that the payloads of all of them are not in memory at once
        while rest := min(query.limit - len(parts), PAGE):
            found = find(db, replace(query, limit=rest))
            parts += map(part, found)
            if len(found) < rest:
                break
            query = replace(query, after=found[-1].record.position)
        return parts

    def _audit(self, db: sqlite3.Connection, what: str, count: int, who: str | None = None) -> int:
        db.execute(
            f"INSERT INTO {self._p}audit (at, who, what, count) VALUES (?, ?, ?, ?)",
            (self._now(), who or user(), what, count),
        )
        return count

    def _now(self) -> int:
        return microseconds(self._clock.now())
