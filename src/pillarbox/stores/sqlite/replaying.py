"""Replays on SQLite: copies of published events into the parking lot, batch by batch, beside a row that keeps the
place."""

import json
import sqlite3
from typing import Any

from pillarbox.core.insert import microseconds
from pillarbox.ports import Clock, Query, Replay
from pillarbox.stores.audit import describe_replay, user
from pillarbox.stores.replays import WALK, next_batch, place_after, read_query, selects, write_query
from pillarbox.stores.sqlite.connection import writing
from pillarbox.stores.sqlite.records import Finder
from pillarbox.stores.sqlite.rows import STORED, as_published, instant, maybe_instant

_COLUMNS = "id, began_at, who, query, again, topic, rate, first_id, place, upto_id, events, finished_at"


class Replaying:
    """Begins replays and goes on with them; each step is one transaction."""

    def __init__(self, prefix: str, finder: Finder, clock: Clock) -> None:
        self._p, self._finder, self._clock = prefix, finder, clock

    def begin(
        self, db: sqlite3.Connection, id: str, query: Query, again: bool, to: str | None, rate: float | None
    ) -> Replay:
        """Write a replay down."""
        with writing(db):
            now = self._now()
            first, upto = self._ends(db, query)
            over = now if first >= upto else None
            replay = Replay(
                id, instant(now), user(), query, again, to, rate, first, first, upto, 0, maybe_instant(over)
            )
            deed = self._write_down(db, describe_replay(replay))
            db.execute(
                f"INSERT INTO {self._p}replays ({_COLUMNS}, due_at, deed)"
                f" VALUES ({', '.join('?' * len(_COLUMNS.split(', ')))}, ?, ?)",
                (id, now, user(), write_query(query), again, to, rate, first, first, upto, 0, over, now, deed),
            )
            return replay

    def _ends(self, db: sqlite3.Connection, query: Query) -> tuple[int, int]:
        """Give the positions between which everything lies that a replay may mean."""
        ends = db.execute(
            " UNION ALL ".join(f"SELECT (SELECT {which}(id) FROM {self._p}{table})" for which, table in _ENDS)
        ).fetchall()
        low, high = [end for (end,) in ends[:2] if end], [end for (end,) in ends[2:] if end]
        first = max(min(low, default=1) - 1, query.after or 0)
        upto = max(high, default=0)
        upto = upto if query.upto is None else min(upto, query.upto)
        return first, (upto if selects(query) else first)

    def resume(self, db: sqlite3.Connection, id: str) -> None:
        """Let what a replay does from now on have a line of its own in the audit."""
        with writing(db):
            replay = self.find(db, id)
            if replay is not None and replay.finished_at is None:
                deed = self._write_down(db, f"replay resume={id}")
                db.execute(f"UPDATE {self._p}replays SET deed = ? WHERE id = ?", (deed, id))

    def go_on(self, db: sqlite3.Connection, id: str) -> Replay | None:
        """Park copies of the next events, due now or one after the other, outside the lines, in log order."""
        with writing(db):
            replay = self.find(db, id)
            if replay is None or replay.finished_at is not None:
                return replay
            batch = next_batch(replay, [self._bound(db, table, replay.place) for table in ("outbox", "archive")])
            chosen = [found.record.position for found in self._finder.added(db, batch)] if batch.limit else []
            place = place_after(replay, batch, chosen)
            self._copy(db, replay, chosen)
            now = self._now()
            db.execute(
                f"UPDATE {self._p}replays SET place = :place, events = events + :count, due_at ="
                " max(due_at, :now) + CASE WHEN rate IS NULL THEN 0 ELSE CAST(:count * 1000000 / rate AS INTEGER) END,"
                " finished_at = CASE WHEN :place >= upto_id THEN :now END WHERE id = :id",
                {"place": place, "count": len(chosen), "now": now, "id": id},
            )
            db.execute(
                f"UPDATE {self._p}audit SET count = count + ? WHERE n ="
                f" (SELECT deed FROM {self._p}replays WHERE id = ?)",
                (len(chosen), id),
            )
            return self.find(db, id)

    def _copy(self, db: sqlite3.Connection, replay: Replay, positions: list[int]) -> None:
        chosen = " UNION ALL ".join(
            f"SELECT id, {STORED} FROM {self._p}{table} WHERE id IN (SELECT value FROM json_each(:positions))"
            for table in ("archive", "outbox")
        )
        db.execute(
            f"INSERT INTO {self._p}parked (state, due_at, parked_at, replay, position, {STORED})"
            f" SELECT 'delayed', max(:now, (SELECT due_at FROM {self._p}replays WHERE id = :id))"
            " + CAST((row_number() OVER (ORDER BY o.id) - 1) * :gap AS INTEGER),"
            f" :now, :again, o.id, {as_published('o', 'k', topic='coalesce(:to, o.topic)')} FROM ({chosen}) o"
            f" LEFT JOIN {self._p}parked k ON k.id ="
            f" (SELECT max(id) FROM {self._p}parked WHERE position = o.id AND replay IS NULL) ORDER BY o.id",
            {
                "id": replay.id,
                "now": self._now(),
                "gap": 1_000_000 / replay.rate if replay.rate else 0,
                "again": replay.id if replay.again else "",
                "to": replay.to,
                "positions": json.dumps(positions),
            },
        )

    def _bound(self, db: sqlite3.Connection, table: str, place: int) -> int | None:
        sql = f"SELECT id FROM {self._p}{table} WHERE id > ? ORDER BY id LIMIT 1 OFFSET {WALK - 1}"
        row = db.execute(sql, (place,)).fetchone()
        return int(row[0]) if row else None

    def find(self, db: sqlite3.Connection, id: str) -> Replay | None:
        """Look how far a replay is."""
        row = db.execute(f"SELECT {_COLUMNS} FROM {self._p}replays WHERE id = ?", (id,)).fetchone()
        return _replay(row) if row else None

    def _write_down(self, db: sqlite3.Connection, what: str) -> int:
        sql = f"INSERT INTO {self._p}audit (at, who, what, count) VALUES (?, ?, ?, 0) RETURNING n"
        [[n]] = db.execute(sql, (self._now(), user(), what)).fetchall()
        return int(n)

    def write_down(self, db: sqlite3.Connection, what: str) -> int:
        """Begin a line of the audit."""
        with writing(db):
            return self._write_down(db, what)

    def _now(self) -> int:
        return microseconds(self._clock.now())


_ENDS = (("min", "outbox"), ("min", "archive"), ("max", "outbox"), ("max", "archive"))


def _replay(row: tuple[Any, ...]) -> Replay:
    id, began_at, who, query, again, to, rate, first, place, upto, events, finished_at = row
    return Replay(
        id,
        instant(began_at),
        who,
        read_query(query),
        bool(again),
        to,
        rate,
        first,
        place,
        upto,
        events,
        maybe_instant(finished_at),
    )
