"""The parking lot on PostgreSQL: entries that failed, wait behind one that failed, or are delayed.

    retrying   the head of its line (or without a line): comes out when it is due, alone
    blocked    behind a head; once the head is gone it comes out, with its followers, in order
    dead       the head of its line: comes out never; or without a line: holds nobody back
    delayed    without a line: comes out when it is due

The head of a line is its oldest row in one of the first three states. A line with such a row is blocked for the log.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from pillarbox.core.changed_order import check_order
from pillarbox.core.entry import Entry
from pillarbox.core.retry import Dead, Published, RetryAt
from pillarbox.core.routing import Line, Topics
from pillarbox.core.window import Blocked, Delayed, Detoured, Settlement
from pillarbox.ports import Clock
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.rows import COLUMNS, entry_of

ROOM = 10_000
"""So many of a lane may stand in lines before that lane is read no further: somebody has to look."""
CHUNK = 8 << 20
IN_LINE = "line IS NOT NULL AND state IN ('retrying', 'blocked', 'dead')"


class _Head(NamedTuple):
    line: str
    id: int
    state: str
    comes_out: bool


class Row(NamedTuple):
    """A row that may come out now, and what we must know to settle it."""

    id: int
    line: str | None
    state: str
    entry: Entry


class ParkingLot:
    """Which parked entries may come out, which were given out, which lines are blocked."""

    def __init__(self, place: str, topics: Topics, clock: Clock) -> None:
        self._p, self._topics, self._clock = place, topics, clock
        self.blocked: frozenset[Line] = frozenset()
        self.held: frozenset[str] = frozenset()
        """Topics of which nothing comes out for now."""
        self.forget()

    def forget(self) -> None:
        """Give out everything anew. What is blocked stays so: a relay that lost its lanes may be about to send."""
        self._given: dict[int, tuple[int, str | None]] = {}  # position → its row and line
        self._lines_out: Counter[str] = Counter()
        self._heads: Sequence[_Head] = ()
        self._standing_in: dict[Line, int] = {}
        self.full: frozenset[int] = frozenset()
        self.known = True
        """There may be something in it."""

    def is_empty(self) -> None:
        """Note that nothing is parked."""
        self.blocked, self._heads, self.full, self.known = frozenset(), (), frozenset(), False

    async def look(self, connection: Connection, lanes: Collection[int]) -> None:
        """See which lines of our lanes are blocked, and by what. What is paused or held does not come out."""
        rows = await connection.run(
            "SELECT DISTINCT ON (line) line, id, state,"
            f" (state = 'blocked' OR (state = 'retrying' AND due_at <= {self._p}now()))"
            f" AND NOT EXISTS (SELECT 1 FROM {self._p}pauses p WHERE p.topic = it.topic) AND topic <> ALL (%s),"
            " lane, count(*) OVER (PARTITION BY line)"
            f" FROM {self._p}parked it WHERE {IN_LINE} AND lane = ANY (%s) ORDER BY line, id",
            [list(self.held), list(lanes)],
        )
        standing: Counter[int] = Counter()
        for _, _, _, _, lane, count in rows:
            standing[lane] += count
        self.full = frozenset(lane for lane, count in standing.items() if count >= ROOM)
        self._standing_in = {_read_line(row[0]): row[5] for row in rows}
        self.blocked = frozenset(self._standing_in)
        self._heads = [_Head(*row[:4]) for row in rows if row[2] != "dead"]
        self.known = True

    def check_order(self) -> None:
        """Refuse what stands here in another order than its topic has now."""
        check_order(self._standing_in.items(), self._topics)

    async def due(self, connection: Connection, lanes: Collection[int], room: int) -> list[Row]:
        """Find the rows that may come out now."""
        heads = [head for head in self._heads if head.comes_out and head.line not in self._lines_out]
        rows: list[Row] = []
        if retried := [head.id for head in heads if head.state == "retrying"][:room]:
            rows += await self._rows(connection, "id = ANY (%s) ORDER BY id", retried)
        for head in heads:
            if head.state == "blocked" and len(rows) < room:
                rows += await self._freed(connection, head.line, room - len(rows))
        return rows + await self._free(connection, lanes, room - len(rows))

    async def _freed(self, connection: Connection, line: str, room: int) -> list[Row]:
        """The head is gone: its followers come out, up to the next one that failed itself."""
        rows = await self._rows(connection, f"line = %s AND {IN_LINE} ORDER BY id LIMIT %s", line, room)
        rows.sort(key=lambda row: row.id)
        stop = next((index for index, row in enumerate(rows) if row.state != "blocked"), len(rows))
        return rows[:stop]

    async def _free(self, connection: Connection, lanes: Collection[int], room: int) -> list[Row]:
        # At most half of the room: a replay of a million must not hold up what is new.
        share = room - room // 2
        if not share:
            return []
        rows = await self._rows(
            connection,
            "line IS NULL AND state IN ('retrying', 'delayed')"
            f" AND due_at <= {self._p}now() AND lane = ANY (%s) AND topic NOT IN (SELECT topic FROM {self._p}pauses)"
            " AND topic <> ALL (%s) ORDER BY due_at, id LIMIT %s",
            list(lanes),
            list(self.held),
            share + len(self._given),
        )
        given = set(self._given)
        chosen: list[Row] = []
        for row in rows:  # two copies of one event go one after the other: an entry is known by its position
            if row.entry.position not in given and len(chosen) < share:
                given.add(row.entry.position)
                chosen.append(row)
        return chosen

    async def _rows(self, connection: Connection, where: str, *parameters: Any) -> list[Row]:
        found = await connection.run(
            f"SELECT id, line, state, attempts, position, {COLUMNS} FROM (SELECT *,"
            " sum(coalesce(pg_column_size(payload), 0) + coalesce(pg_column_size(body), 0))"
            " OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before"
            f" FROM (SELECT * FROM {self._p}parked WHERE {where}) chosen) it WHERE coalesce(bytes_before, 0) < {CHUNK}",
            parameters,
        )
        return [
            Row(id, line, state, entry_of(row)._replace(attempts=attempts, parked=True, ordered=line is not None))
            for id, line, state, attempts, *row in found
        ]

    def give(self, rows: Iterable[Row]) -> list[Entry]:
        """Note what is given out."""
        entries = []
        for row in rows:
            self._given[row.entry.position] = row.id, row.line
            if row.line is not None:
                self._lines_out[row.line] += 1
            entries.append(row.entry)
        return entries

    def parked(self, settlements: Iterable[Settlement[Entry]]) -> list[dict[str, Any]]:
        """Write entries of the log that were not published as the database wants them, to be copied into the lot."""
        return [
            {
                "position": entry.position,
                "lane": 0 if entry.topic in self._topics.whole else None,  # who holds lane 0 has the whole topic
                "line": self._line(entry, verdict),
                **self._standing(entry, verdict),
            }
            for entry, verdict in settlements
            if not isinstance(verdict, Published | Detoured)
        ]

    def _line(self, entry: Entry, verdict: object) -> str | None:
        line = self._topics.line_of(entry)
        outside = isinstance(verdict, Delayed) or (isinstance(verdict, Dead) and not verdict.blocks)
        return None if line is None or outside else json.dumps(line)

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
            if id is None:
                continue
            if isinstance(verdict, Published):
                changes.append({"id": id, "state": "published", "free": False, "attempts": entry.attempts})
            else:
                free = isinstance(verdict, Dead) and not verdict.blocks
                changes.append({"id": id, "free": free, **self._standing(entry, verdict)})
        return changes

    def back(self, settlements: Iterable[Settlement[Entry]]) -> None:
        """Note, after the commit, that these are not out any more."""
        for entry, _ in settlements:
            _, line = self._given.pop(entry.position, (None, None))
            if line is not None:
                self._lines_out[line] -= 1
                if not self._lines_out[line]:
                    del self._lines_out[line]


@lru_cache(maxsize=2 * ROOM)
def _read_line(text: str) -> Line:
    topic, kind, id = json.loads(text)
    return topic, kind, id
