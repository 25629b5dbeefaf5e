"""The log on SQLite: a plain cursor, since ids are given in the order of commits; and the detours of paused topics.

The position is the newest tick without a topic: everything up to it is settled, or belongs to a detour. A detour is a
position of its own for one topic, which the main line reads around. Its life, each step one transaction:

    pause    the main line stops reading until all it gave out is settled; then a tick opens the detour there
    paused   the main line reads on without the topic; the detour stays where it is
    resume   the detour reads its topic up to where the main line has *read*, and settles with ticks of its own
    meet     when all of that is settled, a tick closes the detour there; the main line reads the topic again

A detour may close while the main line's own position, which is what is settled, is still behind the meeting place. If
the relay dies then, the main line starts before that place, and must not read the topic there once more: so a detour
that closed ahead of the position is opened again when the lanes are taken.
"""

import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from pillarbox.core.entry import Entry
from pillarbox.core.insert import microseconds
from pillarbox.core.retry import Dead, Published, RetryAt
from pillarbox.core.routing import Line, Topics
from pillarbox.core.window import Detoured, Settlement
from pillarbox.errors import StoreError
from pillarbox.ports import Clock
from pillarbox.stores.sqlite.connection import reading, writing_what_is_remembered
from pillarbox.stores.sqlite.lanes import LaneGroup
from pillarbox.stores.sqlite.parking import ParkingLot
from pillarbox.stores.sqlite.positions import begun_again, load_positions
from pillarbox.stores.sqlite.rows import AMONG, AS_ENTRY, CHUNK, in_hex, log_entries
from pillarbox.telemetry.hooks import Hooks, Moment

Settlements = Sequence[Settlement[Entry]]
_DATA, _HEADERS = 6, 8
"""Where a row of the log has its payload: behind its id and the event's five names."""


class _Reading:
    """One way through the log: settled up to `position`, read up to `read`, `given` is in between."""

    def __init__(self, position: int, waits_for: "_Reading | None" = None) -> None:
        self.position = self.read = position
        self.given: deque[int] = deque()
        # What another way has given out may come out again here: not before that is settled.
        self._waits_for = waits_for
        self._waits_until = waits_for.read if waits_for else 0

    @property
    def waits(self) -> bool:
        """Something that comes out here again is still in flight."""
        other = self._waits_for
        if other is not None and (not other.given or other.given[0] > self._waits_until):
            self._waits_for = None
        return self._waits_for is not None

    def give(self, entries: Sequence[Entry], read: int) -> None:
        self.given.extend(entry.position for entry in entries)
        self.read = max(self.read, read)

    def accept(self, settlements: Settlements) -> list[Settlement[Entry]]:
        """Check that these are the next ones given out; leave out what was settled before."""
        accepted: list[Settlement[Entry]] = []
        following = iter(self.given)
        expected = next(following, None)
        for settlement in settlements:
            position = settlement.item.position
            if position == expected:
                accepted.append(settlement)
                expected = next(following, None)
            elif position > self.read or position in self.given:
                raise StoreError(
                    f"event {settlement.item.event_id} at {position} was settled, but the next one given out is"
                    f" {expected}: nothing was recorded"
                )
        return accepted

    def after(self, accepted: Settlements) -> int:
        """Say where the position will be: if nothing is given out any more, as far as we have read."""
        if len(accepted) == len(self.given):
            return self.read
        return accepted[-1].item.position if accepted else self.position

    def move(self, position: int) -> None:
        """Everything up to here is settled."""
        while self.given and self.given[0] <= position:
            self.given.popleft()
        self.position = max(self.position, position)


class Log:
    """What the holder of the lanes has read and given out. Used in the connection's thread only."""

    def __init__(self, owner: str, prefix: str, topics: Topics, lanes: LaneGroup, clock: Clock, hooks: Hooks) -> None:
        self._owner, self._p, self._lanes, self._clock, self._hooks = owner, prefix, lanes, clock, hooks
        self.held: frozenset[str] = frozenset()
        """Topics that are read around, as if they were paused."""
        self._lot = ParkingLot(prefix, topics)
        self.forget()

    def forget(self) -> None:
        """Drop everything in memory."""
        self._main = _Reading(0)
        self._detours: dict[str, _Reading] = {}
        self._wound_back: list[_Reading] = []  # ways whose events come out again on another one
        self._lot.forget()
        self._unclaimed: list[Entry] = []
        self._kept: list[Entry] = []

    @property
    def blocked(self) -> frozenset[Line]:
        return self._lot.blocked

    def load(self, db: sqlite3.Connection) -> None:
        """Start from what is stored; inside the transaction that takes the lanes."""
        self.forget()
        stored = load_positions(db, self._p)
        self._check_ids(db, stored.highest)
        for topic in stored.closed_ahead:
            self._tick(db, topic, stored.detours[topic], opened=1)
        self._main = _Reading(stored.main)
        self._detours = {topic: _Reading(position) for topic, position in stored.detours.items()}
        self._lot.look(db)
        self._lot.check_order()

    def behind(self, db: sqlite3.Connection) -> frozenset[str]:
        """Give the topics that have a place of their own, though nobody has paused them."""
        return frozenset(self._detours).difference(t for (t,) in db.execute(f"SELECT topic FROM {self._p}pauses"))

    def entries(self, db: sqlite3.Connection, room: int) -> list[Entry]:
        """Read on; what nobody came to fetch the last time goes first."""
        if not self._unclaimed:
            self._unclaimed = self._read(db, room)
        entries, self._kept = self._unclaimed[:room], self._unclaimed[room:]
        return entries

    def claimed(self) -> None:
        """The entries of the last call have arrived."""
        self._unclaimed = self._kept

    def _read(self, db: sqlite3.Connection, room: int) -> list[Entry]:
        paused = self.held.union(topic for (topic,) in db.execute(f"SELECT topic FROM {self._p}pauses"))
        while True:
            if self._turns(paused):
                self._turn(db, paused)
            entries = self._read_all(db, room, paused)
            if entries or not self._turns(paused):
                return entries

    def _read_all(self, db: sqlite3.Connection, room: int, paused: AbstractSet[str]) -> list[Entry]:
        with reading(db):
            self._lanes.fence(db)
            self._lot.look(db)
            parked = self._lot.due(db, microseconds(self._clock.now()), room, paused)
            entries = [row.entry for row in parked]
            given: list[tuple[_Reading, list[Entry], int]] = []
            if not self._lot.full:
                for topic, detour in self._detours.items():
                    if topic not in paused and detour.read < self._main.read and not detour.waits:
                        found, read = self._read_detour(db, topic, detour, room - len(entries))
                        given.append((detour, found, read))
                        entries += found
                if not self._drains(paused, given):
                    found, read = self._read_main(db, room - len(entries))
                    if not found:
                        self._check_ids(db, self._main.read)
                    given.append((self._main, found, read))
                    entries += found
        self._lot.give(parked)
        for way, found, read in given:
            way.give(found, read)
        return entries

    def _check_ids(self, db: sqlite3.Connection, position: int) -> None:
        if stopped := begun_again(db, self._p, position):
            raise StoreError(stopped)

    def _read_main(self, db: sqlite3.Connection, room: int) -> tuple[list[Entry], int]:
        """Read the main line; give the entries, and up to where it was read."""
        columns, read = f"SELECT id, {AS_ENTRY} FROM {self._p}outbox WHERE id > ?", self._main.read
        if not self._detours:
            found, _ = _fetch(db.execute(f"{columns} ORDER BY id LIMIT ?", (read, room)), room)
            return found, found[-1].position if found else read
        # Where only entries of the detours follow, go past them, or every poll would walk over them again.
        newest = db.execute(f"SELECT coalesce(max(id), 0) FROM {self._p}outbox").fetchone()[0]
        around = f"hex(topic) NOT IN {AMONG}"
        cursor = db.execute(f"{columns} AND {around} ORDER BY id LIMIT ?", (read, in_hex(self._detours), room))
        found, whole = _fetch(cursor, room)
        return found, newest if whole else found[-1].position if found else read

    def _read_detour(self, db: sqlite3.Connection, topic: str, detour: _Reading, room: int) -> tuple[list[Entry], int]:
        """Read a detour, at most up to where the main line has read."""
        cursor = db.execute(
            f"SELECT id, {AS_ENTRY} FROM {self._p}outbox INDEXED BY {self._p}outbox_topic"
            " WHERE topic = ? AND id > ? AND id <= ? ORDER BY id LIMIT ?",
            (topic, detour.read, self._main.read, room),
        )
        found, whole = _fetch(cursor, room)
        return found, self._main.read if whole else found[-1].position if found else detour.read

    def _drains(self, paused: AbstractSet[str], given: Sequence[tuple[_Reading, list[Entry], int]]) -> bool:
        """Say whether the main line must wait: a pause takes effect, or a detour has caught up and is to close."""
        reads = {id(way): read for way, _, read in given}
        return not paused <= self._detours.keys() or any(
            topic not in paused and reads.get(id(detour), detour.read) == self._main.read
            for topic, detour in self._detours.items()
        )

    def _turns(self, paused: AbstractSet[str]) -> bool:
        """Say whether a detour can be opened or closed now."""
        opens = not self._main.given and not paused <= self._detours.keys()
        return opens or any(True for _ in self._met(paused))

    def _met(self, paused: AbstractSet[str]) -> Iterator[str]:
        for topic, detour in self._detours.items():
            if topic not in paused and not detour.given and detour.read == self._main.read:
                yield topic

    def _turn(self, db: sqlite3.Connection, paused: AbstractSet[str]) -> None:
        """Open the detours of topics that were paused, close those that have met the main line."""
        closing, here = list(self._met(paused)), self._main.read
        opening = [] if self._main.given else sorted(set(paused) - self._detours.keys())
        with writing_what_is_remembered(db):
            self._lanes.fence(db)
            for topic in closing:
                self._tick(db, topic, here, closed=1)
            for topic in opening:
                self._tick(db, topic, here, opened=1)
        for topic in closing:
            del self._detours[topic]
        for topic in opening:
            self._detours[topic] = _Reading(here)

    def settle(self, db: sqlite3.Connection, settlements: Settlements) -> None:
        """Move the positions over what is settled and park what failed, in one transaction."""
        parked = [settlement for settlement in settlements if settlement.item.parked]
        with writing_what_is_remembered(db):
            self._lanes.fence(db)
            self._catch_up(db)
            moved = self._accept(settlements)
            now = microseconds(self._clock.now())
            detours = self._send_back(db, moved)
            uncounted = parked
            for topic, (way, accepted) in moved.items():
                if topic not in detours:
                    self._tick(db, topic, way.after(accepted), *_counts([*accepted, *uncounted]))
                    uncounted = []
                self._lot.park(db, accepted, now)
            if parked:
                self._lot.settle(db, parked, now)
            if uncounted:  # the position stays, but people want to see that something was published
                self._tick(db, None, self._main.position, *_counts(uncounted))
            self._hooks.reach(Moment.SETTLING, count=len(settlements))
        for way, accepted in moved.values():
            way.move(way.after(accepted))
        self._wind_back(detours, {entry.position for entry, _ in settlements if not entry.parked})
        self._lot.settled(parked)
        self._lot.look(db)

    def _send_back(
        self, db: sqlite3.Connection, moved: dict[str | None, tuple[_Reading, list[Settlement[Entry]]]]
    ) -> dict[str, _Reading]:
        """Let a detour begin before the first event of a topic that goes back; one that came from it winds it back."""
        detours: dict[str, _Reading] = {}
        for way, accepted in moved.values():
            before = way.position
            for entry, verdict in accepted:
                topic = entry.topic
                if (
                    isinstance(verdict, Detoured)
                    and topic not in detours
                    and way is self._detours.get(topic, self._main)
                ):
                    self._tick(db, topic, before, opened=int(way is self._main))
                    detours[topic] = _Reading(before, waits_for=way)
                before = entry.position
        return detours

    def _wind_back(self, detours: dict[str, _Reading], settled: AbstractSet[int]) -> None:
        """Go on with new detours; what the old ones gave out is waited for, and reaches nothing any more."""
        for way in self._wound_back:
            way.given = deque(position for position in way.given if position not in settled)
        self._wound_back += [self._detours[topic] for topic in detours if topic in self._detours]
        self._wound_back = [way for way in self._wound_back if way.given]
        self._detours |= detours

    def _catch_up(self, db: sqlite3.Connection) -> None:
        """Believe the tables: a commit may have happened although its answer was an error."""
        stored = load_positions(db, self._p)
        self._main.move(stored.main)
        for topic, detour in self._detours.items():
            detour.move(stored.detours.get(topic, 0))

    def _accept(self, settlements: Settlements) -> dict[str | None, tuple[_Reading, list[Settlement[Entry]]]]:
        """Sort log entries by the way they came, each a prefix of what was given out there."""
        ways: dict[str | None, list[Settlement[Entry]]] = {}
        main = set(self._main.given) if self._detours else set[int]()
        wound_back = {position for way in self._wound_back for position in way.given}
        for settlement in settlements:
            entry = settlement.item
            if entry.parked or entry.position in wound_back:
                continue
            detour = self._detours.get(entry.topic) if entry.position not in main else None
            if detour is not None and detour.read < entry.position <= self._main.read:
                continue  # settled: it went back, and has not come out again
            ways.setdefault(None if detour is None else entry.topic, []).append(settlement)
        accepted = {}
        for topic, ours in ways.items():
            way = self._main if topic is None else self._detours[topic]
            if found := way.accept(ours):
                accepted[topic] = way, found
        return accepted

    def _tick(
        self,
        db: sqlite3.Connection,
        topic: str | None,
        last_id: int,
        published: int = 0,
        failed: int = 0,
        *,
        opened: int = 0,
        closed: int = 0,
    ) -> None:
        db.execute(
            f"INSERT INTO {self._p}ticks (at, owner, topic, last_id, published, failed, opened, closed)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (microseconds(self._clock.now()), self._owner, topic, last_id, published, failed, opened, closed),
        )


def _fetch(cursor: sqlite3.Cursor, room: int) -> tuple[list[Entry], bool]:
    """Make entries up to the size of a chunk, one row beyond it at most; say whether that was all there is."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    for row in cursor:
        rows.append(row)
        size += len(row[_DATA]) + len(row[_HEADERS] or "")
        if size >= CHUNK:
            cursor.close()
            return log_entries(rows), False
    return log_entries(rows), len(rows) < room


def _counts(settlements: Settlements) -> tuple[int, int]:
    """Count what was published and what failed."""
    published = failed = 0
    for _, verdict in settlements:
        if verdict.__class__ is Published:
            published += 1
        elif isinstance(verdict, RetryAt | Dead):
            failed += 1
    return published, failed
