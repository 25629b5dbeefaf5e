"""The log on PostgreSQL: reads what lies between two stored snapshots, and stores ticks. Why: decision 0013.

A snapshot is used only once a tick that names it is committed durably. `poll` takes a snapshot, reads the first rows
and writes that tick in one statement; `more` reads on. Both demand that the ticks our memory came from still exist,
that the cluster is the same, and that our lanes are ours; otherwise everything in memory is forgotten.
"""

import asyncio
import json
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any
from uuid import UUID, uuid4

from pillarbox.core.entry import Entry
from pillarbox.core.retry import PUBLISHED, Dead, Published, RetryAt
from pillarbox.core.routing import Line, Topics, lane_of
from pillarbox.core.snapshot import Mark, Snapshot
from pillarbox.core.window import Detoured, Settlement
from pillarbox.errors import LaneLost, StoreError
from pillarbox.ports import Clock
from pillarbox.stores.postgres.careful import CRASHED, Careful
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.lanes import LaneTable, Taken
from pillarbox.stores.postgres.parking import CHUNK, ParkingLot, Row
from pillarbox.stores.postgres.positions import Positions
from pillarbox.stores.postgres.route import Route
from pillarbox.stores.postgres.rows import COLUMNS, WITHOUT_CONTENTS, entries_of
from pillarbox.stores.postgres.ways import Anchor, Way, array_of, mask_of, position_json
from pillarbox.telemetry.hooks import Hooks, Moment

Settlements = Sequence[Settlement[Entry]]
HELD = "%s::smallint[], %s::bigint[], %s::bigint[], %s::uuid[], %s"
"""What memory rests on, in a statement."""
PAYLOAD = 6
"""The column that holds the header, in the first row of an answer."""
STALE = 2.0
"""Seconds after which a lane without events moves on too, if others write."""


class Log:
    """What the holder of lanes has read and given out."""

    def __init__(
        self,
        place: str,
        connection: Connection,
        lanes: LaneTable,
        topics: Topics,
        clock: Clock,
        hooks: Hooks,
        *,
        progress: float,
        window: int,
    ) -> None:
        self._p, self._connection, self._lanes, self._topics, self._hooks = place, connection, lanes, topics, hooks
        self._lot = ParkingLot(place, lanes, topics, clock)
        self._progress, self._window = progress, window
        self._positions = Positions(place, topics)
        self._careful = Careful(place, lanes, window)
        self._one_reader, self._one_writer = asyncio.Lock(), asyncio.Lock()
        self._news = asyncio.Event()
        self._generation = 0
        self.forget()

    def forget(self) -> None:
        """Drop everything in memory but what is blocked."""
        self._generation += 1
        self._route = Route(self._topics.whole)
        self._paused: frozenset[str] = frozenset()  # by people
        self._given: dict[int, Way] = {}  # ids in the order in which they were given out
        self._cluster = ""
        self._published = self._failed = 0
        self._ticked_at = self._moved_at = float("-inf")
        self._lot.forget()
        self._careful.forget()
        self._news.set()

    @property
    def holds(self) -> bool:
        """There is something in memory."""
        return bool(self._route.ways)

    @property
    def blocked(self) -> frozenset[Line]:
        return self._lot.blocked

    def hold(self, topics: frozenset[str]) -> None:
        """Read around these topics until told otherwise."""
        self._lot.held = topics

    async def load(self, taken: Sequence[Taken], connection: Connection) -> None:
        """Start lanes that were just taken where their newest ticks say."""
        generation = self._generation
        if careful := self._careful.take(taken):
            self._hooks.reach(Moment.LANES_SUSPECT, lanes=len(careful))
        loaded = await self._positions.load(
            connection, self._lanes.owner, frozenset(one.lane for one in taken), careful
        )
        await self._lot.look(self._connection)
        await self._lot.count(self._connection)
        self._same(generation)
        if self._cluster and self._cluster != loaded.cluster:
            raise LaneLost("the server is not the one it was")
        self._cluster, self._paused = loaded.cluster, loaded.paused
        self._route.ways += loaded.ways

    async def release(self, lanes: Iterable[int]) -> None:
        """Take lanes off their ways, of which nothing may be in flight, having stored where they are."""
        going = frozenset(lanes)
        async with self._one_writer:
            parts = [way.part(way.lanes & going) for way in self._route.ways if way.lanes & going]
            await self._write([self._tick(part) for part in parts], [], [])
        self._route.release(going)

    # Reading

    async def entries(self, room: int) -> list[Entry]:
        """Give what is due in the parking lot, then the next rows of the log."""
        async with self._one_reader:
            self._hold()
            self._news.clear()
            if self._is_unsaved and self._is_due():
                await self.save()
            knew = self._lot.known
            found = await self._from_lot(room)
            found += await self._from_log(room - len(found), lot_is_quiet=not found and not self._lot.is_out)
            if not found and self._lot.known and (not knew or self._lot.is_stale):
                found = await self._from_lot(room)
            return found

    async def wait(self, seconds: float) -> None:
        """Return when what was in flight is settled, or when it rings; at the latest after `seconds`."""
        try:
            await asyncio.wait_for(self._news.wait(), seconds)
        except TimeoutError:
            pass  # time to look again

    def ring(self) -> None:
        """End a wait."""
        self._news.set()

    async def _from_lot(self, room: int) -> list[Entry]:
        if not self._lot.known or room <= 0:
            return []
        generation, careful = self._generation, any(way.careful for way in self._route.ways)
        if self._lot.is_stale:
            await self._lot.look(self._connection)
        if careful and self._careful.flying:
            return []
        rows = await self._lot.due(self._connection, 1 if careful else room, contents=not careful)
        self._same(generation)
        if careful and rows:
            return await self._from_lot_carefully(rows[0])
        return self._lot.give(rows)

    async def _from_lot_carefully(self, row: Row) -> list[Entry]:
        [entry] = self._lot.give([row])
        if not await self._is_suspected(entry, row.lane):
            return []
        generation = self._generation
        whole = await self._lot.fetch(self._connection, row)
        self._same(generation)
        return [whole.entry]

    async def _from_log(self, room: int, *, lot_is_quiet: bool) -> list[Entry]:
        polled = False
        while room > 0:
            self._route.paused = self._paused | self._lot.held
            await self._turn()
            if lot_is_quiet:
                await self._careful.relax(self._connection, self._route.moving)
            if way := self._route.next_way(careful=not self._careful.flying):
                entries = await self._more(way, room)
            elif self._route.catch_up():
                continue
            elif polled or not self._route.may_begin():
                return []
            else:
                entries, polled = await self._poll(room), True
            if entries:
                return entries
        return []

    async def _more(self, way: Way, room: int) -> list[Entry]:
        """Read on in a way's batch."""
        asked = 1 if way.careful else room
        position = way.read
        last = max(position.last, position.floor)
        sql = (
            f"SELECT {_listed(way)} FROM {self._p}more({HELD}, %s, %s, %s, %s::xid8, %s::pg_snapshot, %s::xid8[],"
            " %s, %s, %s, %s)"
        )
        parameters = [
            *self._held(way.anchors), mask_of(way.lane_filter), way.topic, sorted(way.around), str(position.before.x),
            str(position.upto.snapshot), array_of(way.late), max(position.before.m, last), last, asked, CHUNK,
        ]  # fmt: skip
        rows, header = await self._read(sql, parameters)
        if self._pause(header):
            return []
        return await self._give(way, rows, asked)

    async def _poll(self, room: int) -> list[Entry]:
        """Begin a batch: take a snapshot, store it, read the first rows, all in one statement."""
        leader, others = self._route.leader()
        asked = 1 if leader.careful else room
        async with self._one_writer:  # its tick says what is settled: no other tick may come between
            rows, header = await self._read(*self._polling(leader, others, asked, token := uuid4()))
            if header["n"] is None:
                if rows:
                    raise LaneLost("rows came back without the tick that they belong to")
                self._pause(header)
                return []
            self._ticked_at = self._moved_at = self._now()
            self._published = self._failed = 0
            mark, anchor = (
                Mark(Snapshot.parse(header["s3"]), int(header["x3"]), header["m3"]),
                Anchor(header["n"], token),
            )
            leader.anchors, leader.stored = frozenset((anchor,)), leader.settled
            leader.begin(mark, (), [int(xid) for xid in header["late"]])
            self._route.join(others, mark, anchor)
        return [] if self._pause(header) else await self._give(leader, rows, asked)

    def _polling(self, leader: Way, others: list[Way], asked: int, token: UUID) -> tuple[str, list[Any]]:
        """Write the statement that begins a batch."""
        base = leader.read.at_end()
        return (
            f"SELECT {_listed(leader)} FROM {self._p}poll(%s, {HELD}, %s, %s, %s,"
            " %s::pg_snapshot, %s::xid8, %s, %s::pg_snapshot, %s::xid8, %s, %s, %s,"
            " %s::xid8, %s, %s::xid8[], %s, %s, %s, %s, %s, %s, %s)",
            [
                self._lanes.owner,
                *self._held(leader.anchors.union(*(way.anchors for way in others))),
                token, mask_of(leader.lanes), sorted(leader.around),
                *position_json(leader.settled).values(),
                str(base.before.x), base.before.m, array_of(base.late),
                sorted(way.topic for way in others if way.whole and way.topic),
                self._published, self._failed, asked, CHUNK,
                any(not way.whole for way in others),  # they need a newer snapshot, whatever is new
                self._now() >= self._ticked_at + STALE,
            ],
        )  # fmt: skip

    async def _read(self, sql: str, parameters: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Run a reading statement; give the rows in order, and the header. Anything odd: forget everything."""
        generation = self._generation
        try:
            rows = await self._connection.run_sure(sql, parameters)
            self._same(generation)
            rows.sort(key=_id)
            header = json.loads(rows[0][PAYLOAD])
            if not header["held"]:
                raise LaneLost("another relay has taken lanes, or the server is not the one it was")
            self._lot.note(header["mended"])
            if not header["parked"]:
                self._lot.is_empty()
            elif not self._lot.known:
                await self._lot.look(self._connection)
                self._same(generation)
        except BaseException:
            self.forget()
            raise
        return rows[1:], header

    def _pause(self, header: dict[str, Any]) -> bool:
        """Note what is paused; True if that is news: then nothing of what was read is given out."""
        self._paused = frozenset(header["paused"])
        return bool((self._paused | self._lot.held) - self._route.paused)

    async def _give(self, way: Way, rows: list[Any], asked: int) -> list[Entry]:
        entries = entries_of(rows)
        if entries:
            way.give(entries[-1].position, len(entries))
            self._given.update(dict.fromkeys(map(_id, entries), way))
        # A character is at most four bytes: below that, the size did not cut anything off.
        if len(entries) < asked and 4 * sum(len(entry.data) for entry in entries) < CHUNK:
            way.end()
        if entries and way.careful:
            return await self._from_log_carefully(way, entries[0])
        return entries

    async def _from_log_carefully(self, way: Way, entry: Entry) -> list[Entry]:
        lane = lane_of(entry.aggregate_type, entry.aggregate_id, entry.event_id)
        if not await self._is_suspected(entry, lane if lane in way.lanes else min(way.lanes)):
            return []
        generation = self._generation
        rows = await self._connection.run(f"SELECT id, {COLUMNS} FROM {self._p}outbox WHERE id = %s", [entry.position])
        self._same(generation)
        return entries_of(rows)

    async def _is_suspected(self, entry: Entry, lane: int) -> bool:
        """Write down which event is about to be read whole and sent; False if it killed two relays in a row and is
        parked instead."""
        generation = self._generation
        if self._careful.condemns(entry):
            blocks = self._topics[entry.topic].when_dead == "block"
            await self._record([Settlement(entry, Dead(CRASHED, blocks))])
            return False
        await self._careful.suspect(self._connection, entry, lane)
        self._same(generation)
        return True

    async def _turn(self) -> None:
        """Open the detours of topics that were paused, close those that have met the main way."""
        self._route.stop(self._lot.full)
        openings, meetings = list(self._route.openings()), list(self._route.meetings())
        if not openings and not meetings:
            return
        ticks = [self._tick(opening.detour) for opening in openings]
        for main, _, topic in meetings:
            ticks += [self._tick(main), {**self._tick(main.part(main.lanes, topic)), "closed": True}]
        async with self._one_writer:
            await self._write(ticks, [], [])
        for opening in openings:
            self._route.open(opening)
        for meeting in meetings:
            self._route.close(meeting)

    # Settling

    async def settle(self, settlements: Settlements) -> None:
        """Move the positions over what is settled and park what failed, atomically."""
        self._hold()
        await self._record(settlements)

    async def _record(self, settlements: Settlements) -> None:
        async with self._one_writer:
            generation = self._generation
            if not self._is_due() and self._all_published(settlements):
                return
            log = self._accept(settlements)
            lot = [settlement for settlement in settlements if settlement.item.parked]
            parked = self._lot.parked(log)
            settled = self._lot.settled(lot)
            detours = self._sent_back(log)
            self._count(log, lot)
            if parked or settled or detours or self._is_due():
                wound_back = {way for way, _ in detours if way.topic is not None}
                ticks = [tick for tick in self._ticks(_moves(log)) if tick["way"] not in wound_back]
                await self._write(ticks + [self._tick(detour) for _, detour in detours], parked, settled)
            for way, detour in detours:
                self._route.send_back(way, detour)
            for way, last, count in _moves(log):
                way.settle(last, count)
            self._forget_given(settlement.item.position for _, settlement in log)
            self._lot.back(lot)
            await self._careful.landed(self._connection, [settlement.item for settlement in settlements])
            self._same(generation)
            if parked or settled:
                await self._lot.look(self._connection)
                self._same(generation)

    def _all_published(self, settlements: Settlements) -> bool:
        """Move over entries if they are the next ones of one way and all published, as they mostly are: then nothing
        is to be written."""
        positions = [entry[0] for entry, verdict in settlements if verdict is PUBLISHED and not entry.parked]
        count = len(positions)
        ways = set(islice(self._given.values(), count))
        if count != len(settlements) or len(ways) != 1 or positions != list(islice(self._given, count)):
            return False
        [way] = ways
        if way.careful:
            return False
        self._published += count
        way.settle(positions[-1], count)
        self._forget_given(positions)
        return True

    def _forget_given(self, positions: Iterable[int]) -> None:
        deque(map(self._given.pop, positions), maxlen=0)  # a loop without Python's own
        for way in self._route.ways:
            if way.waits_for:
                way.waits_for &= self._given.keys()
        if not self._given:
            self._news.set()

    def _sent_back(self, log: Sequence[tuple[Way, Settlement[Entry]]]) -> list[tuple[Way, Way]]:
        """Let a detour begin before the first event of a topic that goes back, on each way."""
        detours: dict[tuple[Way, str], Way] = {}
        passed: dict[Way, tuple[int, int]] = {}
        for way, (entry, verdict) in log:
            last, count = passed.get(way, (0, 0))
            key = (way, entry.topic)
            first = isinstance(verdict, Detoured) and entry.topic not in way.around and key not in detours
            if first and way in self._route.ways:  # not one that was wound back before
                detours[key] = way.back_to(way.after(last, count), entry.topic)
                detours[key].waits_for = {id for id, of in self._given.items() if of is way}
            passed[way] = entry.position, count + 1
        return [(way, detour) for (way, _), detour in detours.items()]

    def _accept(self, settlements: Settlements) -> list[tuple[Way, Settlement[Entry]]]:
        """Check that log entries are the next ones given out; leave out what was settled before."""
        accepted = []
        following = iter(self._given.items())
        for settlement in settlements:
            entry = settlement.item
            if entry.parked or entry.position not in self._given:
                continue
            position, way = next(following)
            if position != entry.position:
                raise StoreError(
                    f"event {entry.event_id} at {entry.position} was settled, but the next one given out is {position}:"
                    " nothing was recorded"
                )
            accepted.append((way, settlement))
        return accepted

    def _count(self, log: Sequence[tuple[Way, Settlement[Entry]]], lot: Settlements) -> None:
        verdicts = [settlement.verdict for _, settlement in log] + [settlement.verdict for settlement in lot]
        self._published += sum(verdict.__class__ is Published for verdict in verdicts)
        self._failed += sum(isinstance(verdict, RetryAt | Dead) for verdict in verdicts)

    def _ticks(self, moves: Iterable[tuple[Way, int, int]] = ()) -> list[dict[str, Any]]:
        """Write ticks for the ways that have moved, or are about to; the first one says how many were published."""
        positions = {way: way.settled for way in self._route.ways if way.settled != way.stored}
        positions |= {way: way.after(last, count) for way, last, count in moves}
        ticks = [self._tick(way, position) for way, position in positions.items()]
        if not ticks and (self._published or self._failed) and self._route.ways:
            ticks = [self._tick(self._route.ways[0])]
        if ticks:
            ticks[0] |= {"published": self._published, "failed": self._failed}
        return ticks

    def _tick(self, way: Way, position: Any = None) -> dict[str, Any]:
        return {
            "way": way, "position": position or way.settled, "token": str(uuid4()), "lanes": mask_of(way.lanes),
            "topic": way.topic, "whole": way.whole, "around": sorted(way.around), "published": 0, "failed": 0,
            "closed": False,
        }  # fmt: skip

    @property
    def _is_unsaved(self) -> bool:
        return bool(self._published or self._failed) or any(way.settled != way.stored for way in self._route.ways)

    def _is_due(self) -> bool:
        """Progress is stored now and then; and before there is more of it than careful mode searches."""
        enough = self._published + self._failed >= self._window
        return enough or self._now() >= self._moved_at + self._progress

    async def save(self) -> None:
        """Store where the ways are, if that is news."""
        async with self._one_writer:
            if self._is_unsaved:
                await self._write(self._ticks(), [], [])

    async def _write(self, ticks: list[dict[str, Any]], parked: list[Any], settled: list[Any]) -> None:
        generation = self._generation
        anchors = frozenset[Anchor]().union(*(way.anchors for way in self._route.ways))
        rows = [
            {name: value for name, value in tick.items() if name not in ("way", "position")}
            | position_json(tick["position"])
            for tick in ticks
        ]
        self._hooks.reach(Moment.SETTLING, ticks=len(ticks))
        try:
            written = await self._connection.run_sure(
                f"SELECT token, n FROM {self._p}settle(%s, {HELD}, %s::json, %s::json, %s::json)",
                [self._lanes.owner, *self._held(anchors), *map(json.dumps, (rows, parked, settled))],
            )
            self._same(generation)
        except BaseException:
            self.forget()
            raise
        numbers = {str(token): n for token, n in written}
        for tick in ticks:
            way = tick["way"]
            way.stored = tick["position"]
            if not tick["closed"]:
                way.anchors = frozenset((Anchor(numbers[tick["token"]], UUID(tick["token"])),))
        self._published = self._failed = 0
        self._moved_at = self._now()

    # What our memory rests on

    def _held(self, anchors: Iterable[Anchor]) -> list[Any]:
        epochs = self._lanes.epochs
        ticks = list(anchors)
        return [
            array_of(epochs), array_of(epochs.values()),
            array_of(tick.n for tick in ticks), array_of(tick.token for tick in ticks), self._cluster,
        ]  # fmt: skip

    def _hold(self) -> None:
        if not self._route.ways:
            raise LaneLost("no lanes are held")

    def _same(self, generation: int) -> None:
        """Raise if everything was forgotten while we waited for an answer."""
        if generation != self._generation:
            raise LaneLost("the lanes were lost meanwhile")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _moves(log: Sequence[tuple[Way, Settlement[Entry]]]) -> list[tuple[Way, int, int]]:
    """Say of each way up to which id, and how many, are settled."""
    last: dict[Way, int] = {}
    count: dict[Way, int] = {}
    for way, settlement in log:
        last[way] = settlement.item.position
        count[way] = count.get(way, 0) + 1
    return [(way, last[way], count[way]) for way in last]


def _listed(way: Way) -> str:
    """Say what is read of a way. In careful mode not the contents: they may be what kills."""
    if not way.careful:
        return "*"
    columns = WITHOUT_CONTENTS.replace("''", "CASE WHEN id = 0 THEN payload ELSE '' END")  # that is the header
    return f"id, {columns}"


_id = itemgetter(0)  # of a row, and of an entry
