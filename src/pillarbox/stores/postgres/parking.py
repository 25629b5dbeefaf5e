"""The parking lot on PostgreSQL: entries that failed, wait behind one that failed, or are delayed.

    retrying   the head of its line (or without a line): comes out when it is due, alone
    blocked    behind a head; once the head is gone it comes out, with its followers, in order
    dead       the head of its line: comes out never; or without a line: holds nobody back
    delayed    without a line: comes out when it is due

Replayed copies have no line here: they are delayed until their time has come, and then come out in the order of the
log. Behind one that failed, those of the same aggregate and topic wait.

The head of a line is its oldest row in one of the first three states. A line with such a row is blocked for the log.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from pillarbox.core.changed_order import check_order
from pillarbox.core.entry import Entry
from pillarbox.core.retry import Dead, Published, RetryAt
from pillarbox.core.routing import Line, Topics
from pillarbox.core.window import Blocked, Delayed, Detoured, Settlement
from pillarbox.ports import Clock
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.lanes import LaneTable
from pillarbox.stores.postgres.lines import find_line, read_line, write_line
from pillarbox.stores.postgres.rows import COLUMNS, WITHOUT_CONTENTS, entry_of
from pillarbox.stores.postgres.ways import Way
from pillarbox.stores.turns import in_turn
from pillarbox.stores.walks import Walks

ROOM = 10_000
"""So many of a lane may stand in lines before that lane is read no further: somebody has to look."""
CHUNK = 8 << 20
LOOK_EVERY = 5.0
"""Seconds after which it is looked at anyway."""
IN_LINE = "line IS NOT NULL AND state IN ('retrying', 'blocked', 'dead')"
T = TypeVar("T")


class _Head(NamedTuple):
    name: str
    id: int
    state: str
    line: Line
    due: bool


class Row(NamedTuple):
    """A row that may come out now, and what we must know to settle it."""

    id: int
    line: str | None
    state: str
    lane: int
    entry: Entry


class ParkingLot:
    """Which parked entries may come out, which were given out, which lines are blocked."""

    def __init__(self, place: str, lanes: LaneTable, topics: Topics, clock: Clock) -> None:
        self._p, self._lanes, self._topics, self._clock = place, lanes, topics, clock
        self.blocked: frozenset[Line] = frozenset()
        self.held: frozenset[str] = frozenset()
        """Topics of which nothing comes out for now."""
        self._flows = f"topic NOT IN (SELECT topic FROM {place}pauses)"
        self._stands_behind_a_copy = (
            f"EXISTS (SELECT 1 FROM {place}parked head WHERE head.aggregate_type = parked.aggregate_type"
            " AND head.aggregate_id = parked.aggregate_id AND head.topic = parked.topic AND head.id < parked.id"
            " AND head.replay IS NOT NULL AND head.aggregate_id <> '' AND head.state IN ('retrying', 'dead')"
            " AND head.topic <> ALL (%s) AND NOT (head.state = 'dead' AND head.topic = ANY (%s)))"
        )
        self.forget()

    def forget(self) -> None:
        """Give out everything anew. What is blocked stays so: a relay that lost its lanes may be about to send."""
        self._given: dict[int, tuple[int, str | None]] = {}  # position → its row and line
        self._lines_out: Counter[str] = Counter()
        self._copies_out: Counter[Line] = Counter()
        self._walks = Walks()
        self._landed: set[int] = set()  # rows that were settled while we looked for what is due
        self._heads: Sequence[_Head] = ()
        self._most, self._added = 0, 0  # stood in one lane when they were counted; were parked since
        self._version: object = None
        self._looked_at = float("-inf")
        self._next_due: datetime | None = None
        self.full: frozenset[int] = frozenset()
        self.known = True
        """There may be something in it."""

    def is_empty(self) -> None:
        """Note that nothing is parked."""
        self.blocked, self._heads, self.full, self.known = frozenset(), (), frozenset(), False
        self._most = self._added = 0

    def note(self, version: object) -> None:
        """Hear how often people have changed something in it: if that is news, it must be looked at again."""
        if version != self._version:
            self._version, self._looked_at = version, float("-inf")
            self._walks.forget()

    @property
    def is_stale(self) -> bool:
        """It must be looked at: people have changed something, something is due, or it was long ago."""
        late = asyncio.get_running_loop().time() >= self._looked_at + LOOK_EVERY
        return late or (self._next_due is not None and self._clock.now() >= self._next_due)

    @property
    def is_out(self) -> bool:
        """Something was given out and is not settled."""
        return bool(self._given)

    async def look(self, connection: Connection) -> None:
        """See which lines of our lanes are blocked, and by what.

        Always on the connection that settles, so that no older answer comes after a newer one.
        """
        while asked := list(self._lanes.epochs):
            now = self._clock.now()
            # Of the index alone: there may be hundreds of thousands.
            rows = await connection.run(
                f"SELECT DISTINCT ON (line) line, id, state, extract(epoch FROM due_at - {self._p}now())::float8"
                f" FROM {self._p}parked WHERE {IN_LINE} AND lane = ANY (%s) ORDER BY line, id",
                [asked],
            )
            lines = await self._lines_of(connection, rows)
            if asked == list(self._lanes.epochs):  # else lanes were taken meanwhile, and their lines are missing
                self.blocked, self.known = frozenset(lines.values()), True
                waiting = [due_in for _, _, state, due_in in rows if state == "retrying" and due_in > 0]
                self._heads = [
                    _Head(name, id, state, lines[name], state == "blocked" or due_in <= 0)
                    for name, id, state, due_in in rows
                    if state != "dead"
                ]
                self._next_due = now + timedelta(seconds=min(waiting)) if waiting else None
                self._looked_at = asyncio.get_running_loop().time()
                break
        if self.full or self._most + self._added >= ROOM:
            await self.count(connection)

    async def _lines_of(self, connection: Connection, heads: Sequence[Sequence[Any]]) -> dict[str, Line]:
        """Give the lines by their names; those that go by a hash are found by one that stands in them."""
        lines = {name: read_line(name) for name, *_ in heads if name.startswith("[")}
        if len(lines) < len(heads):
            rows = await connection.run(
                f"SELECT line, topic, aggregate_type, aggregate_id FROM {self._p}parked WHERE id = ANY (%s)",
                [[id for name, id, *_ in heads if name not in lines]],
            )
            lines |= {name: find_line(name, *of) for name, *of in rows}
        return lines

    async def count(self, connection: Connection) -> None:
        """Count how many stand in each lane. It takes a while where there are many, so it is done where it matters.

        Raises ConfigError if some stand in another order than their topic has now.
        """
        rows = await connection.run(
            f"SELECT line, min(id), lane, count(*) FROM {self._p}parked WHERE {IN_LINE} AND lane = ANY (%s)"
            " GROUP BY line, lane",
            [list(self._lanes.epochs)],
        )
        standing: Counter[int] = Counter()
        for _, _, lane, count in rows:
            standing[lane] += count
        lines = await self._lines_of(connection, rows)
        self.full = frozenset(lane for lane, count in standing.items() if count >= ROOM)
        self._most, self._added = max(standing.values(), default=0), 0
        check_order([(lines[name], count) for name, _, _, count in rows], self._topics)

    async def due(self, connection: Connection, room: int, *, contents: bool = True) -> list[Row]:
        """Find the rows that may come out now."""
        columns = COLUMNS if contents else WITHOUT_CONTENTS
        heads = [
            head
            for head in self._heads
            if head.due and head.name not in self._lines_out and head.line[0] not in self.held
        ]
        rows: list[Row] = []
        self._landed.clear()
        if retried := [head.id for head in heads if head.state == "retrying"][:room]:
            # What we know of the heads may be a moment old: one that has just been settled must not come out again.
            is_due = f"state = 'retrying' AND due_at <= {self._p}now()"
            rows += await self._rows(
                connection, columns, f"id = ANY (%s) AND {is_due} AND {self._flows} ORDER BY id", retried
            )
        for head in heads:
            if head.state == "blocked" and len(rows) < room:
                rows += await self._freed(connection, columns, head.name, room - len(rows))
        rows += await self._free(connection, columns, room - len(rows))
        return [row for row in rows if row.id not in self._landed]

    async def fetch(self, connection: Connection, row: Row) -> Row:
        """Give a row that was found without its contents with them."""
        [found] = await self._rows(connection, COLUMNS, "id = %s", row.id)
        return found

    async def _freed(self, connection: Connection, columns: str, line: str, room: int) -> list[Row]:
        """The head is gone: its followers come out, up to the next one that failed itself."""
        rows = await self._rows(
            connection, columns, f"line = %s AND {IN_LINE} AND {self._flows} ORDER BY id LIMIT %s", line, room
        )
        rows.sort(key=lambda row: row.id)
        stop = next((index for index, row in enumerate(rows) if row.state != "blocked"), len(rows))
        return rows[:stop]

    async def _free(self, connection: Connection, columns: str, room: int) -> list[Row]:
        # At most half of the room: a replay of a million must not hold up what is new.
        share = room - room // 2
        began = asyncio.get_running_loop().time()
        if not share or not self._walks.may_go(began):
            return []
        rows = await self._rows(
            connection,
            columns,
            "line IS NULL AND state IN ('retrying', 'delayed')"
            f" AND due_at <= {self._p}now() AND lane = ANY (%s) AND {self._flows}"
            f" AND topic <> ALL (%s) AND NOT (replay IS NOT NULL AND {self._stands_behind_a_copy})"
            " ORDER BY due_at, id LIMIT %s",
            list(self._lanes.epochs),
            list(self.held),
            self._topics.without_order,
            self._topics.passing_over_dead,
            share + len(self._given),
        )
        chosen = [*islice(in_turn(rows, self._topics.line_of, self._given, self._copies_out), share)]
        self._walks.went(began, asyncio.get_running_loop().time(), enough=len(chosen) == share)
        return chosen

    async def _rows(self, connection: Connection, columns: str, where: str, *parameters: Any) -> list[Row]:
        found = await connection.run(
            f"SELECT id, line, state, lane, attempts, replay, position, {columns} FROM (SELECT *,"
            " sum(coalesce(pg_column_size(payload), pg_column_size(body)) + coalesce(pg_column_size(headers), 0))"
            " OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before"
            f" FROM (SELECT * FROM {self._p}parked parked WHERE {where}) chosen) it"
            f" WHERE coalesce(bytes_before, 0) < {CHUNK}",
            parameters,
        )
        return [
            Row(
                id,
                line,
                state,
                lane,
                entry_of(row)._replace(attempts=attempts, parked=True, ordered=line is not None, replay=replay, row=id),
            )
            for id, line, state, lane, attempts, replay, *row in found
        ]

    def give(self, rows: Iterable[Row]) -> list[Entry]:
        """Note what is given out."""
        entries = []
        for row in rows:
            self._given[row.entry.position] = row.id, row.line
            if row.line is not None:
                self._lines_out[row.line] += 1
            elif (copies := self._topics.line_of(row.entry)) is not None:
                self._copies_out[copies] += 1
            entries.append(row.entry)
        return entries

    def parked(self, log: Iterable[tuple[Way, Settlement[Entry]]]) -> list[dict[str, Any]]:
        """Write entries of the log that were not published as the database wants them, to be copied into the lot."""
        parked = [
            {
                "position": entry.position,
                "lane": 0 if way.whole else None,  # who holds lane 0 reads the whole topic, whatever the settings say
                "line": self._line(entry, verdict),
                **self._standing(entry, verdict),
            }
            for way, (entry, verdict) in log
            if not isinstance(verdict, Published | Detoured)
        ]
        self._added += len(parked)
        return parked

    def _line(self, entry: Entry, verdict: object) -> str | None:
        line = self._topics.line_of(entry)
        outside = isinstance(verdict, Delayed) or (isinstance(verdict, Dead) and not verdict.blocks)
        return None if line is None or outside else write_line(line)

    def _standing(self, entry: Entry, verdict: object) -> dict[str, Any]:
        if isinstance(verdict, RetryAt):
            due = (verdict.at - self._clock.now()).total_seconds()
            return {"state": "retrying", "due_in": due, "attempts": entry.attempts + 1, "last_error": verdict.error}
        if isinstance(verdict, Dead):
            return {"state": "dead", "attempts": entry.attempts + 1, "last_error": verdict.error}
        if isinstance(verdict, Blocked):
            return {"state": "blocked", "attempts": entry.attempts}
        assert isinstance(verdict, Delayed)
        return {"state": "delayed", "attempts": entry.attempts, "due_at": verdict.until.isoformat()}

    def settled(self, settlements: Iterable[Settlement[Entry]]) -> list[dict[str, Any]]:
        """Write what has become of parked entries; those that are settled already are passed over."""
        changes = []
        for entry, verdict in settlements:
            id, _ = self._given.get(entry.position, (None, None))
            if id != entry.row or (entry.replay is not None and isinstance(verdict, Blocked)):
                continue  # a copy stays as it is: it waits behind the one that failed
            if isinstance(verdict, Published):
                changes.append({"id": id, "state": "published", "free": False, "attempts": entry.attempts})
            else:
                free = isinstance(verdict, Dead) and not verdict.blocks
                changes.append({"id": id, "free": free, **self._standing(entry, verdict)})
        return changes

    def back(self, settlements: Sequence[Settlement[Entry]]) -> None:
        """Note, after the commit, that these are not out any more."""
        if settlements:
            self._walks.forget()
        for entry, _ in settlements:
            id, line = self._given.get(entry.position, (None, None))
            if id != entry.row:
                continue  # it was settled before: if its position is out again, then in another copy
            del self._given[entry.position]
            self._landed.add(id)
            if line is not None:
                _take_one(self._lines_out, line)
            elif (copies := self._topics.line_of(entry)) is not None:
                _take_one(self._copies_out, copies)


def _take_one(out: Counter[T], line: T) -> None:
    out[line] -= 1
    if not out[line]:
        del out[line]
