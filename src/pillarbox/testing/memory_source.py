"""The memory store's reading and settling: one relay's access to a MemoryDatabase, with 64 lanes and detours.

What a store has in memory is gone with `crash()`; every call is a point where a fault can strike.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from pillarbox.core.entry import Entry
from pillarbox.core.retry import Dead, Published, RetryAt
from pillarbox.core.routing import LANES, Line, Topics, lane_of
from pillarbox.core.window import Blocked, Delayed, Detoured, Settlement
from pillarbox.errors import LaneLost
from pillarbox.ports import Away, Holding
from pillarbox.stores.turns import in_turn
from pillarbox.telemetry.hooks import Hooks, Moment
from pillarbox.testing.memory import UNSETTLED, Member, MemoryDatabase, Parked, Position, Row, Snapshot, Tick
from pillarbox.testing.memory_careful import CRASHED, MemoryCareful


@dataclass(slots=True)
class _Given:
    """An entry that was given out, and the position that settling it reaches."""

    entry: Entry
    lane: int
    topic: str | None
    reaches: Position
    stale: bool = False
    """One before it on the same detour went back: it comes out again, so settling it reaches nothing."""


class _Free(NamedTuple):
    """A parked row that may come out, and the entry that comes out of it."""

    row: Parked
    entry: Entry


Strike = Callable[[str], Awaitable[None]]


async def _nothing_strikes(point: str) -> None:
    """Faults are for simulations."""


@dataclass
class _Memory:
    """What one store knows: gone with a crash, a loss of lanes, or a reload."""

    epochs: dict[int, int] = field(default_factory=dict)
    read: dict[tuple[int, str | None], Position] = field(default_factory=dict)
    given: deque[_Given] = field(default_factory=deque)
    parked_out: set[int] = field(default_factory=set)
    blocked: frozenset[Line] = frozenset()
    exhausted: tuple[int, int, int] | None = None


class MemorySource:
    """Source and Lanes on a MemoryDatabase."""

    def __init__(
        self,
        database: MemoryDatabase,
        owner: str = "relay",
        *,
        lease: timedelta = timedelta(seconds=15),
        topics: Topics | None = None,
        hooks: Hooks | None = None,
        strike: Strike = _nothing_strikes,
    ) -> None:
        self.database, self.owner, self._lease = database, owner, lease
        self._topics, self._hooks, self._strike = topics or Topics(), hooks or Hooks(), strike
        self._memory, self._careful = _Memory(), MemoryCareful(database)
        self._held_topics: frozenset[str] = frozenset()
        self._crashed = False

    def crash(self) -> None:
        """Die without a word: nothing is released, and no call has an effect any more."""
        self._crashed = True
        if member := self.database.members.get(self.owner):
            member.alive = False

    async def _point(self, name: str) -> None:
        await asyncio.sleep(0)
        await self._struck(name)

    async def _struck(self, name: str) -> None:
        await self._strike(name)
        if self._crashed:
            raise asyncio.CancelledError(f"{self.owner} is dead")

    # Lanes

    async def take(self) -> Holding:
        await self._point("take")
        self._notice()
        now, database = self.database.clock.now(), self.database
        member = database.members.get(self.owner)
        database.members[self.owner] = Member(now, now + self._lease, away=member.away if member else None)
        mine, share, taken = self._held(), self._share(), set[int]()
        others = self._alive() - {self.owner}
        for number, lane in enumerate(database.lanes):
            if len(mine) >= share:
                break
            if number not in mine and lane.owner not in others:
                self._careful.take(number, self.owner)
                lane.owner, lane.epoch = self.owner, database.next_epoch()
                mine.add(number)
                self._load(number)
                taken.add(number)
        self._refresh_blocked()
        if suspects := taken & self._careful.lanes:
            self._hooks.reach(Moment.LANES_SUSPECT, lanes=len(suspects))
        await self._point("taken")
        behind = {topic for lane, topic in self._memory.read if lane in taken and topic is not None}
        return Holding(frozenset(mine), share, frozenset(behind - database.pauses.keys() - self._topics.whole))

    async def renew(self, away: Away | None) -> Holding:
        await self._point("renew")
        self._fence()
        now = self.database.clock.now()
        self.database.members[self.owner] = Member(now, now + self._lease, away=away)
        await self._point("renewed")
        return Holding(frozenset(self._held()), self._share())

    async def release(self, lanes: Collection[int] | None = None) -> None:
        await self._point("release")
        giving = self._in_our_name() if lanes is None else set(lanes) & self._held()
        for number in giving:
            self.database.lanes[number].owner = None
            self._careful.release(number)
        for number in giving:
            self._memory.epochs.pop(number, None)
            for key in [key for key in self._memory.read if key[0] == number]:
                del self._memory.read[key]
        if lanes is None:
            self.database.members.pop(self.owner, None)
            self._memory, self._careful = _Memory(), MemoryCareful(self.database)
        await self._point("released")

    def _in_our_name(self) -> set[int]:
        """Give every lane that the table says is ours, also those that a loss of others made us forget."""
        return {number for number, lane in enumerate(self.database.lanes) if lane.owner == self.owner}

    def _held(self) -> set[int]:
        current = self.database.epochs(self._memory.epochs)
        return {lane for lane, epoch in self._memory.epochs.items() if current[lane] == epoch}

    def _lives(self, owner: str) -> bool:
        member = self.database.members.get(owner)
        return member is not None and member.alive and member.lease_until > self.database.clock.now()

    def _alive(self) -> set[str]:
        return {owner for owner in self.database.members if self._lives(owner)}

    def _share(self) -> int:
        return -(-LANES // max(1, len(self._alive())))

    def _load(self, lane: int) -> None:
        """Begin a lane where its stored position is."""
        self._memory.epochs[lane] = self.database.lanes[lane].epoch
        self._memory.exhausted = None
        stored = self.database.positions
        if len(stored) == LANES:  # no detour anywhere
            self._memory.read[lane, None] = stored[lane, None]
            return
        for key, position in stored.items():
            if key[0] == lane:
                self._memory.read[key] = position

    def _fence(self) -> None:
        """Raise LaneLost unless we hold lanes, and every one is still ours."""
        self._notice()
        if not self._memory.epochs:
            raise LaneLost(f"{self.owner} holds no lanes")

    def _notice(self) -> None:
        """Raise LaneLost, having forgotten everything but the blocked lines, if a lane was taken from us."""
        if self._held() != set(self._memory.epochs):
            self._memory = _Memory(blocked=self._memory.blocked)
            self._careful = MemoryCareful(self.database)
            raise LaneLost(f"another relay has taken lanes from {self.owner}")

    # Source

    @property
    def blocked(self) -> frozenset[Line]:
        return self._memory.blocked

    async def entries(self, room: int) -> Sequence[Entry]:
        await self._point("entries")
        await self._point("entries read")  # before anything is noted: an answer that is lost gives nothing out
        self._fence()
        self._refresh_blocked()
        if self._careful.lanes:
            return self._one(room)
        entries = self._due(room)
        entries += self._next(room - len(entries))
        if not entries:
            self._careful.relax(self._waits)
        return entries

    def _one(self, room: int) -> list[Entry]:
        """Give one event, whose lane says which, and only when the last one is settled; or park it for its guilt."""
        careful = self._careful
        if self._memory.given or self._memory.parked_out or room <= 0:
            return []
        if not (entries := self._due(1) or self._next(1)):
            careful.relax(self._waits)
            return []
        [entry] = entries
        if careful.condemns(entry):
            blocks = self._topics[entry.topic].when_dead == "block"
            self._settle_one(Settlement(entry, Dead(CRASHED, blocks)))
            self._refresh_blocked()
            self._hooks.reach(Moment.EVENT_DEAD, entry=entry, error=CRASHED)
            return []
        careful.suspect(entry, self._lane_of(entry))
        return entries

    def _waits(self, lane: int, seen: Callable[[Row], bool]) -> bool:
        """Tell whether something of a lane is to be published that is seen, and that nobody has paused."""
        positions, paused = self.database.positions, self._paused
        return any(row.lane == lane and row.state in ("retrying", "delayed") for row in self.database.parked) or any(
            row.lane == lane
            and seen(row)
            and row.entry.topic not in paused
            and not (positions.get((lane, row.entry.topic)) or positions[lane, None]).covers(row)
            for row in self.database.rows
        )

    def _lane_of(self, entry: Entry) -> int:
        return lane_of(entry.aggregate_type, entry.aggregate_id, entry.event_id)

    def hold(self, topics: frozenset[str]) -> None:
        self._held_topics = topics

    @property
    def _paused(self) -> frozenset[str]:
        return self._held_topics | frozenset(self.database.pauses)

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        await self._point("settle")
        self._fence()
        self._hooks.reach(Moment.SETTLING)
        for settlement in settlements:
            self._settle_one(settlement)
        self._refresh_blocked()
        if settlements:
            log = frozenset(entry.position for entry, _ in settlements if not entry.parked)
            published = sum(isinstance(verdict, Published) for _, verdict in settlements)
            self.database.ticks.append(Tick(self.database.clock.now(), self.owner, log, published))
        await self._point("settled")

    def _settle_one(self, settlement: Settlement[Entry]) -> None:
        entry, verdict = settlement
        if entry.parked:
            self._settle_parked(entry, verdict)
        else:
            self._settle_given(entry, verdict)
        self._careful.landed(entry, self._lane_of(entry))

    def _refresh_blocked(self) -> None:
        rows = self.database.parked
        mine = self._memory.epochs
        self._memory.blocked = frozenset(row.line for row in rows if row.active and row.line and row.lane in mine)

    def _next(self, room: int) -> list[Entry]:
        """Read on in the log: the main line, and the detours whose topic is open again."""
        state = (self.database.commits, len(self._paused), len(self._memory.read))
        if room <= 0 or self._memory.exhausted == state or not self._detour():
            return []
        self._turn_pages(self.database.snapshot())
        found: list[tuple[Row, str | None]] = []
        read, paused = self._memory.read, self._paused
        for row in self.database.rows:
            topic = row.entry.topic if (row.lane, row.entry.topic) in read else None
            position = read.get((row.lane, topic))
            if position is None or (topic is not None and topic in paused):
                continue
            if position.shows(row):
                found.append((row, topic))
                if len(found) == room:
                    break
        detoured = len(read) > len(self._memory.epochs)
        self._memory.exhausted = None if found or detoured else state
        return [self._give(row, topic) for row, topic in found]

    def _give(self, row: Row, topic: str | None) -> Entry:
        position = self._memory.read[row.lane, topic]._replace(last=row.entry.position)
        self._memory.read[row.lane, topic] = position
        self._memory.given.append(_Given(row.entry, row.lane, topic, position))
        return row.entry

    def _turn_pages(self, snapshot: Snapshot) -> None:
        """Where everything between the two snapshots was given out, go on: the main line to the newest snapshot, a
        detour to the main line's, so that the two meet."""
        unread, read = self._unread(), self._memory.read
        for key, position in read.items():
            if key[1] is None and position.upto != snapshot and key not in unread:
                self._turn(key, snapshot)
        for key, position in read.items():
            upto = read[key[0], None].upto
            if key[1] is not None and position.upto != upto and key not in unread:
                self._turn(key, upto)

    def _turn(self, key: tuple[int, str | None], upto: Snapshot) -> None:
        self._memory.read[key] = Position(self._memory.read[key].upto, upto, 0)

    def _unread(self) -> set[tuple[int, str | None]]:
        """Give the lanes and detours that have something left between their two snapshots."""
        read, unread = self._memory.read, set[tuple[int, str | None]]()
        for row in self.database.rows:
            key: tuple[int, str | None] = (row.lane, row.entry.topic)
            if key not in read:
                key = (row.lane, None)
            if key in unread or (position := read.get(key)) is None:
                continue
            if position.shows(row):
                unread.add(key)
        return unread

    # Detours: a paused topic keeps its place while the others go on

    def _newly_paused(self) -> bool:
        """Tell whether a topic is paused that has no detour yet on one of our lanes."""
        read, paused = self._memory.read, self._paused
        return any((lane, topic) not in read for topic in paused for lane in self._memory.epochs)

    def _met(self) -> list[tuple[int, str]]:
        """Give the open detours that have reached the main line: both have read all of the same page."""
        read, paused = self._memory.read, self._paused
        detours = [(lane, topic) for lane, topic in read if topic is not None and topic not in paused]
        unread = self._unread() if detours else set()
        return [
            (lane, topic)
            for lane, topic in detours
            if read[lane, topic].upto == read[lane, None].upto and not {(lane, topic), (lane, None)} & unread
        ]

    def _detour(self) -> bool:
        """Open and close detours, once nothing is in flight; False while that is still to come."""
        met = self._met()
        if not met and not self._newly_paused():
            return True
        if self._memory.given:
            return False
        read, stored, paused = self._memory.read, self.database.positions, self._paused
        for lane, name in met:
            read[lane, None] = stored[lane, None] = Position(read[lane, None].upto, read[lane, None].upto, 0)
            del read[lane, name]
            stored.pop((lane, name), None)
        for lane in self._memory.epochs:
            for topic in paused:
                if (lane, topic) not in read:
                    stored[lane, topic] = read[lane, topic] = stored[lane, None]
        return True

    def _settle_given(self, entry: Entry, verdict: object) -> None:
        given = self._memory.given[0] if self._memory.given else None
        if given is None or given.entry.position != entry.position:
            settled_before = any(entry.position in tick.covered for tick in self.database.ticks)
            assert settled_before, "log entries settle in the order in which they were given out"
            return  # a second call with the same settlements: the answer to the first was lost
        self._memory.given.popleft()
        if isinstance(verdict, Detoured):
            self._send_back(given)
        elif not given.stale:
            self.database.positions[given.lane, given.topic] = given.reaches
        if not isinstance(verdict, Published | Detoured):
            self._park(entry, given.lane, verdict)

    def _send_back(self, given: _Given) -> None:
        """Let a detour begin before an entry that goes back; one that came out of the detour winds it back."""
        stored, read, key = self.database.positions, self._memory.read, (given.lane, given.entry.topic)
        if given.topic is None:
            if key not in stored:
                stored[key] = read[key] = stored[given.lane, None]
            stored[given.lane, None] = given.reaches
            return
        read[key] = stored[key]
        for later in self._memory.given:
            later.stale = later.stale or (later.lane, later.topic) == key

    # The parking lot

    def _due(self, room: int) -> list[Entry]:
        now = self.database.clock.now()
        paused, lanes = self._paused, self._memory.epochs
        mine = [row for row in self.database.parked if row.lane in lanes and row.entry.topic not in paused]
        entries = [row for row in mine if row.state == "delayed" and row.due_at is not None and row.due_at <= now]
        lines: dict[Line, list[Parked]] = {}
        for row in mine:
            if row.active and row.line is not None:
                lines.setdefault(row.line, []).append(row)
            elif row.state == "retrying" and row.due_at is not None and row.due_at <= now:
                entries.append(row)
        for rows in lines.values():
            if not any(row.id in self._memory.parked_out for row in rows):
                entries += self._free(rows, now)
        waiting = [row for row in entries if row.id not in self._memory.parked_out]
        entries = self._in_turn(waiting)[: max(room, 0)]
        self._memory.parked_out.update(row.id for row in entries)
        return [self._out_of_the_lot(row) for row in entries]

    def _free(self, rows: list[Parked], now: datetime) -> list[Parked]:
        """Give what may leave of a parked line: a head whose time has come, alone; or all, if the head is gone."""
        head = rows[0]
        if head.state == "retrying":
            return [head] if head.due_at is not None and head.due_at <= now else []
        return rows if head.state == "blocked" else []

    def _in_turn(self, rows: list[Parked]) -> list[Parked]:
        """Leave out copies that could overtake an earlier one of their aggregate: one that failed, or is out."""
        out = [row for row in self.database.parked if row.id in self._memory.parked_out]
        failed: dict[Line, int] = {}
        for row in self.database.parked:
            if (line := self._copies(row)) is not None and self._holds_copies(row):
                failed.setdefault(line, row.id)
        free = [
            _Free(row, self._out_of_the_lot(row))
            for row in rows
            if (line := self._copies(row)) is None or failed.get(line, row.id) >= row.id
        ]
        given, copies_out = {row.entry.position for row in out}, {line for row in out if (line := self._copies(row))}
        return [one.row for one in in_turn(free, self._topics.line_of, given, copies_out)]

    def _copies(self, row: Parked) -> Line | None:
        """Give the line that a row is in as a replayed copy."""
        return self._topics.line_of(self._out_of_the_lot(row)) if row.replay is not None else None

    def _holds_copies(self, row: Parked) -> bool:
        blocks = self._topics[row.entry.topic].when_dead == "block"
        return row.state == "retrying" or (row.state == "dead" and blocks)

    def _out_of_the_lot(self, row: Parked) -> Entry:
        return row.entry._replace(
            attempts=row.attempts, parked=True, ordered=row.line is not None, replay=row.replay, row=row.id
        )

    def _row_of(self, entry: Entry) -> Parked | None:
        out = self._memory.parked_out
        rows = (row for row in self.database.parked if row.id in out and row.id == entry.row)
        return next(rows, None)

    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        if row is None:
            return  # a second call with the same settlements
        self._memory.parked_out.discard(row.id)
        match verdict:
            case Published():
                row.state, row.settled_at = "published", self.database.clock.now()
            case RetryAt(at, error):
                row.state, row.due_at, row.attempts, row.last_error = "retrying", at, row.attempts + 1, error
            case Dead(error, blocks):
                row.state, row.attempts, row.last_error = "dead", row.attempts + 1, error
                row.line = row.line if blocks else None
            case Blocked() if row.replay is None:
                row.state = "blocked"

    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        if any(row.entry.position == entry.position and row.state in UNSETTLED for row in self.database.parked):
            return
        line = self._topics.line_of(entry)
        row = Parked(len(self.database.parked) + 1, entry, lane, "blocked", line, None, 0, None)
        row.parked_at = self.database.clock.now()
        match verdict:
            case RetryAt(at, error):
                row = replace(row, state="retrying", due_at=at, attempts=1, last_error=error)
            case Dead(error, blocks):
                row = replace(row, state="dead", attempts=1, last_error=error, line=line if blocks else None)
            case Delayed(until):
                row = replace(row, state="delayed", due_at=until, line=None)
        self.database.parked.append(row)
