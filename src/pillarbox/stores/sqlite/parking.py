"""The parking lot: entries that failed, wait behind one that failed, or are delayed.

    retrying   the head of its line (or without a line): comes out when it is due, alone
    blocked    behind a head; once the head is gone it comes out, with its followers, in order
    dead       the head of its line: comes out never; or without a line: holds nobody back
    delayed    without a line: comes out when it is due

Replayed copies have no line here: they are delayed until their time has come, and then come out in the order of the
log. Behind one that failed, those of the same aggregate and topic wait.

The head of a line is its oldest row in one of the first three states. A line with such a row is blocked for the log.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from pillarbox.core.changed_order import check_order
from pillarbox.core.entry import Entry
from pillarbox.core.insert import microseconds
from pillarbox.core.retry import Dead, Published, RetryAt
from pillarbox.core.routing import Line, Topics
from pillarbox.core.window import Blocked, Delayed, Detoured, Settlement
from pillarbox.stores.sqlite.rows import AMONG, AS_ENTRY, CHUNK, STORED, in_hex, parked_entry
from pillarbox.stores.turns import in_turn
from pillarbox.stores.walks import Walks

ROOM = 10_000
"""So many may stand in lines before the log is read no further: somebody has to look."""

IN_LINE = "line IS NOT NULL AND state IN ('retrying', 'blocked', 'dead')"
HEAD_IN_LINE = "head.line IS NOT NULL AND head.state IN ('retrying', 'blocked', 'dead')"
FREE = "line IS NULL AND state IN ('retrying', 'delayed')"
T = TypeVar("T")


class _Head(NamedTuple):
    line: str
    id: int
    state: str
    due_at: int | None


class _Row(NamedTuple):
    """A row that may come out now, and what we must know to settle it."""

    id: int
    line: str | None
    state: str
    entry: Entry


class ParkingLot:
    """Which parked entries may come out, which were given out, which lines are blocked."""

    def __init__(self, prefix: str, topics: Topics) -> None:
        self._p, self._topics = prefix, topics
        self._stands_behind_a_copy = (
            f"EXISTS (SELECT 1 FROM {prefix}parked AS head INDEXED BY {prefix}parked_copies"
            f" WHERE head.aggregate_type = {prefix}parked.aggregate_type"
            f" AND head.aggregate_id = {prefix}parked.aggregate_id AND head.topic = {prefix}parked.topic"
            f" AND head.id < {prefix}parked.id AND head.replay IS NOT NULL AND head.aggregate_id <> ''"
            f" AND head.state IN ('retrying', 'dead') AND hex(head.topic) NOT IN {AMONG}"
            f" AND NOT (head.state = 'dead' AND hex(head.topic) IN {AMONG}))"
        )
        self.blocked: frozenset[Line] = frozenset()
        self.forget()

    def forget(self) -> None:
        """Give out everything anew. What is blocked stays so: a relay that lost its lanes may be about to send."""
        self._given: dict[int, tuple[int, str | None]] = {}  # position → its row and line
        self._lines_out: Counter[str] = Counter()
        self._copies_out: Counter[Line] = Counter()
        self._walks = Walks()
        self._seen: list[tuple[Any, ...]] | None = None
        self._heads: Sequence[_Head] = ()  # those that are not dead
        self.full = False

    def look(self, db: sqlite3.Connection) -> None:
        """See which lines are blocked, and by what."""
        rows = db.execute(
            f"SELECT line, min(id), state, due_at, count(*) FROM {self._p}parked INDEXED BY {self._p}parked_line"
            f" WHERE {IN_LINE} GROUP BY line"
        ).fetchall()
        if rows != self._seen:  # thousands may be dead, and stay so for days
            self._seen = rows
            self._heads = [_Head(*row[:4]) for row in rows if row[2] != "dead"]
            self.full = sum(row[4] for row in rows) >= ROOM
            self.blocked = frozenset(_read_line(row[0]) for row in rows)

    def check_order(self) -> None:
        """Refuse what stands here in another order than its topic has now."""
        check_order(((_read_line(row[0]), row[4]) for row in self._seen or ()), self._topics)

    def due(self, db: sqlite3.Connection, now: int, room: int, paused: Collection[str]) -> list[_Row]:
        """Find the rows that may come out now."""
        rows: list[_Row] = []
        heads = [head for head in self._heads if self._comes_out(head, now, paused)]
        if retried := [head.id for head in heads if head.state == "retrying"][:room]:
            rows += self._rows(db, f"id IN {AMONG} ORDER BY id", json.dumps(retried))
        for head in heads:
            if head.state == "blocked" and len(rows) < room:
                rows += self._freed(db, head.line, room - len(rows))
        return rows + self._free(db, now, room - len(rows), paused)

    def _comes_out(self, head: _Head, now: int, paused: Collection[str]) -> bool:
        if head.line in self._lines_out or (paused and _read_line(head.line)[0] in paused):
            return False
        return head.state == "blocked" or (head.state == "retrying" and (head.due_at or 0) <= now)

    def _freed(self, db: sqlite3.Connection, line: str, room: int) -> Iterable[_Row]:
        """The head is gone: its followers come out, up to the next one that failed itself."""
        for row in self._rows(db, f"line = ? AND {IN_LINE} ORDER BY id LIMIT ?", line, room, index="parked_line"):
            if row.state != "blocked":
                return
            yield row

    def _free(self, db: sqlite3.Connection, now: int, room: int, paused: Collection[str]) -> list[_Row]:
        # At most half of the room: a replay of a million must not hold up what is new.
        share = room - room // 2
        began = monotonic()
        if not share or not self._walks.may_go(began):
            return []
        rows = self._rows(
            db,
            f"{FREE} AND due_at <= ? AND hex(topic) NOT IN {AMONG}"
            f" AND NOT (replay IS NOT NULL AND {self._stands_behind_a_copy}) ORDER BY due_at, id LIMIT ?",
            now,
            in_hex(paused),
            in_hex(self._topics.without_order),
            in_hex(self._topics.passing_over_dead),
            share + len(self._given),
            index="parked_free",
        )
        chosen = [*islice(in_turn(rows, self._topics.line_of, self._given, self._copies_out), share)]
        self._walks.went(began, monotonic(), enough=len(chosen) == share)
        return chosen

    def _rows(self, db: sqlite3.Connection, where: str, *parameters: Any, index: str = "") -> list[_Row]:
        by = f"INDEXED BY {self._p}{index}" if index else ""
        cursor = db.execute(
            f"SELECT id, line, state, attempts, replay, position, {AS_ENTRY} FROM {self._p}parked {by} WHERE {where}",
            parameters,
        )
        rows, size = [], 0
        for id, line, state, attempts, replay, *row in cursor:
            rows.append(_Row(id, line, state, parked_entry(tuple(row), id, attempts, line is not None, replay)))
            size += rows[-1].entry.size
            if size >= CHUNK:
                break
        cursor.close()
        return rows

    def give(self, rows: Iterable[_Row]) -> None:
        """Note what was given out."""
        for row in rows:
            self._given[row.entry.position] = row.id, row.line
            if row.line is not None:
                self._lines_out[row.line] += 1
            elif (copies := self._topics.line_of(row.entry)) is not None:
                self._copies_out[copies] += 1

    def park(self, db: sqlite3.Connection, settlements: Iterable[Settlement[Entry]], now: int) -> None:
        """Copy entries of the log that were not published into the parking lot."""
        db.executemany(
            f"INSERT INTO {self._p}parked (state, line, due_at, attempts, last_error, parked_at, position, {STORED})"
            f" SELECT ?, ?, ?, ?, ?, ?, id, {STORED} FROM {self._p}outbox WHERE id = ?",  # even what is no UTF-8
            [
                (*self._standing(entry, verdict), now, entry.position)
                for entry, verdict in settlements
                if not isinstance(verdict, Published | Detoured)
            ],
        )

    def _standing(self, entry: Entry, verdict: object) -> tuple[str, str | None, int | None, int, str | None]:
        """Give state, line, due_at, attempts and last_error of an entry that was not published."""
        line = self._topics.line_of(entry)
        text = None if line is None else json.dumps(line)
        if isinstance(verdict, RetryAt):
            return "retrying", text, microseconds(verdict.at), entry.attempts + 1, verdict.error
        if isinstance(verdict, Dead):
            return "dead", text if verdict.blocks else None, None, entry.attempts + 1, verdict.error
        if isinstance(verdict, Blocked):
            return "blocked", text, None, entry.attempts, None
        assert isinstance(verdict, Delayed)
        return "delayed", None, microseconds(verdict.until), entry.attempts, None

    def settle(self, db: sqlite3.Connection, settlements: Iterable[Settlement[Entry]], now: int) -> None:
        """Record what has become of parked entries; those that are settled already are passed over."""
        for entry, verdict in settlements:
            id, line = self._given.get(entry.position, (None, None))
            if id != entry.row or (entry.replay is not None and isinstance(verdict, Blocked)):
                continue  # a copy stays as it is: it waits behind the one that failed
            if isinstance(verdict, Published):
                sql = "UPDATE {p}parked SET state = 'published', settled_at = ?, due_at = NULL WHERE id = ?"
                db.execute(sql.format(p=self._p), (now, id))
                continue
            state, _, due_at, attempts, error = self._standing(entry, verdict)
            if isinstance(verdict, Dead) and not verdict.blocks:
                line = None
            db.execute(
                f"UPDATE {self._p}parked SET state = ?, line = ?, due_at = ?, attempts = ?,"
                " last_error = coalesce(?, last_error)"
                " WHERE id = ? AND state IN ('retrying', 'blocked', 'dead', 'delayed')",  # not if dropped meanwhile
                (state, line, due_at, attempts, error, id),
            )

    def settled(self, settlements: Sequence[Settlement[Entry]]) -> None:
        """Note, after the commit, that these are not out any more."""
        if settlements:
            self._walks.forget()
        for entry, _ in settlements:
            id, line = self._given.get(entry.position, (None, None))
            if id != entry.row:
                continue  # it was settled before: if its position is out again, then in another copy
            del self._given[entry.position]
            if line is not None:
                _take_one(self._lines_out, line)
            elif (copies := self._topics.line_of(entry)) is not None:
                _take_one(self._copies_out, copies)


def _take_one(out: Counter[T], line: T) -> None:
    out[line] -= 1
    if not out[line]:
        del out[line]


@lru_cache(maxsize=2 * ROOM)
def _read_line(text: str) -> Line:
    topic, kind, id = json.loads(text)
    return topic, kind, id
