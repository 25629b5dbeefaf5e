"""Reading the log on PostgreSQL: what lies between two stored snapshots, and what is due in the parking lot.

A snapshot is used only once a tick that names it is committed durably. `poll` takes a snapshot, reads the first rows
and writes that tick in one statement; `more` reads on. Why: decision 0013.
"""

import asyncio
import json
from collections.abc import Sequence
from operator import itemgetter
from typing import Any
from uuid import UUID, uuid4

from pillarbox.core.entry import Entry
from pillarbox.core.retry import Dead
from pillarbox.core.routing import lane_of
from pillarbox.core.snapshot import Mark, Snapshot
from pillarbox.core.window import Settlement
from pillarbox.errors import LaneLost
from pillarbox.stores.postgres.careful import CRASHED
from pillarbox.stores.postgres.memory import HELD, Memory, now
from pillarbox.stores.postgres.parking import CHUNK, Row
from pillarbox.stores.postgres.rows import COLUMNS, WITHOUT_CONTENTS, chunk_of
from pillarbox.stores.postgres.settling import Settling
from pillarbox.stores.postgres.ways import Anchor, Way, array_of, mask_of, position_json
from pillarbox.telemetry.hooks import Hooks, Moment

PAYLOAD = 6
"""The column that holds the header, in the first row of an answer."""
STALE = 2.0
"""Seconds after which a lane without events moves on too, if others write."""


class Reading:
    """Gives out what is next in our lanes."""

    def __init__(self, memory: Memory, settling: Settling, hooks: Hooks) -> None:
        self._memory, self._settling, self._hooks = memory, settling, hooks
        self._p, self._connection, self._lanes, self._topics = (
            memory.place,
            memory.connection,
            memory.lanes,
            memory.topics,
        )
        self._lot, self._careful = memory.lot, memory.careful
        self._one_reader = asyncio.Lock()

    async def entries(self, room: int) -> Sequence[Entry]:
        """Give what is due in the parking lot, then the next rows of the log."""
        async with self._one_reader:
            self._memory.require_lanes()
            self._memory.news.clear()
            await self._settling.save_if_due()
            knew = self._lot.known
            found: Sequence[Entry] = await self._from_lot(room)
            logged = await self._from_log(room - len(found), lot_is_quiet=not found and not self._lot.is_out)
            found = [*found, *logged] if found else logged
            if not found and self._lot.known and (not knew or self._lot.is_stale):
                found = await self._from_lot(room)
            return found

    async def _from_lot(self, room: int) -> list[Entry]:
        if not self._lot.known or room <= 0:
            return []
        generation, careful = self._memory.generation, any(way.careful for way in self._memory.route.ways)
        if self._lot.is_stale:
            await self._lot.look(self._connection)
        if careful and self._careful.flying:
            return []
        rows = await self._lot.due(self._connection, 1 if careful else room, contents=not careful)
        self._memory.same(generation)
        if careful and rows:
            return await self._from_lot_carefully(rows[0])
        return self._lot.give(rows)

    async def _from_lot_carefully(self, row: Row) -> list[Entry]:
        [entry] = self._lot.give([row])
        if not await self._is_suspected(entry, row.lane):
            return []
        generation = self._memory.generation
        whole = await self._lot.fetch(self._connection, row)
        self._memory.same(generation)
        return [whole.entry]

    async def _from_log(self, room: int, *, lot_is_quiet: bool) -> Sequence[Entry]:
        polled = False
        while room > 0:
            self._memory.route.paused = self._memory.paused | self._lot.held
            await self._turn()
            if lot_is_quiet:
                await self._careful.relax(self._connection, self._memory.route.moving)
            if way := self._memory.route.next_way(careful=not self._careful.flying):
                entries = await self._more(way, room)
            elif self._memory.route.catch_up():
                continue
            elif polled or not self._memory.route.may_begin():
                return []
            else:
                entries, polled = await self._poll(room), True
            if entries:
                return entries
        return []

    async def _more(self, way: Way, room: int) -> Sequence[Entry]:
        """Read on in a way's batch."""
        asked = 1 if way.careful else room
        position = way.read
        last = max(position.last, position.floor)
        sql = (
            f"SELECT {_listed(way)} FROM {self._p}more({HELD}, %s, %s, %s, %s::xid8, %s::pg_snapshot, %s::xid8[],"
            " %s, %s, %s, %s)"
        )
        parameters = [
            *self._memory.rests_on(way.anchors), mask_of(way.lane_filter), way.topic, sorted(way.around),
            str(position.before.x), str(position.upto.snapshot), array_of(way.late),
            max(position.before.m, last), last, asked, CHUNK,
        ]  # fmt: skip
        rows, header = await self._read(sql, parameters)
        if self._pause(header):
            return []
        return await self._give(way, rows, asked)

    async def _poll(self, room: int) -> Sequence[Entry]:
        """Begin a batch: take a snapshot, store it, read the first rows, all in one statement."""
        leader, others = self._memory.route.leader()
        asked = 1 if leader.careful else room
        async with self._settling.alone:  # its tick says what is settled: no other tick may come between
            rows, header = await self._read(*self._polling(leader, others, asked, token := uuid4()))
            if header["n"] is None:
                if rows:
                    raise LaneLost("rows came back without the tick that they belong to")
                self._pause(header)
                return []
            if header["m3"] < leader.mark.m:
                self._memory.forget()
                raise LaneLost("the ids of the log have begun again")  # whoever takes them says how to mend it
            self._memory.begun_at = now()
            self._memory.published = self._memory.failed = 0
            mark, anchor = (
                Mark(Snapshot.parse(header["s3"]), int(header["x3"]), header["m3"]),
                Anchor(header["n"], token),
            )
            leader.anchors, leader.stored, leader.unstored = frozenset((anchor,)), leader.settled, 0
            self._memory.stored()
            leader.begin(mark, (), [int(xid) for xid in header["late"]])
            self._memory.route.join(others, mark, anchor)
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
                *self._memory.rests_on(leader.anchors.union(*(way.anchors for way in others))),
                token, mask_of(leader.lanes), sorted(leader.around),
                *position_json(leader.settled).values(),
                str(base.before.x), base.before.m, array_of(base.late),
                sorted(way.topic for way in others if way.whole and way.topic),
                self._memory.published, self._memory.failed, asked, CHUNK,
                any(not way.whole for way in others),  # they need a newer snapshot, whatever is new
                now() >= self._memory.begun_at + STALE,
            ],
        )  # fmt: skip

    async def _read(self, sql: str, parameters: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Run a reading statement; give the rows in order, and the header. Anything odd: forget everything."""
        generation = self._memory.generation
        try:
            rows = await self._connection.run_sure(sql, parameters)
            self._memory.same(generation)
            rows.sort(key=_id)
            header = json.loads(rows[0][PAYLOAD])
            if not header["held"]:
                raise LaneLost("another relay has taken lanes, or the server is not the one it was")
            self._lot.note(header["mended"])
            if not header["parked"]:
                self._lot.is_empty()
            elif not self._lot.known:
                await self._lot.look(self._connection)
                self._memory.same(generation)
        except BaseException:
            self._memory.forget()
            raise
        return rows[1:], header

    def _pause(self, header: dict[str, Any]) -> bool:
        """Note what is paused; True if that is news: then nothing of what was read is given out."""
        self._memory.paused = frozenset(header["paused"])
        return bool((self._memory.paused | self._lot.held) - self._memory.route.paused)

    async def _give(self, way: Way, rows: list[Any], asked: int) -> Sequence[Entry]:
        chunk = chunk_of(rows)
        if chunk:
            way.give(chunk.positions[-1], len(chunk))
            self._memory.given.update(dict.fromkeys(chunk.positions, way))
        # A character is at most four bytes: below that, the size did not cut anything off.
        if len(chunk) < asked and 4 * chunk.size < CHUNK:
            way.end()
        if chunk and way.careful:
            return await self._from_log_carefully(way, chunk[0])
        return chunk

    async def _from_log_carefully(self, way: Way, entry: Entry) -> Sequence[Entry]:
        lane = lane_of(entry.aggregate_type, entry.aggregate_id, entry.event_id)
        if not await self._is_suspected(entry, lane if lane in way.lanes else min(way.lanes)):
            return []
        generation = self._memory.generation
        rows = await self._connection.run(f"SELECT id, {COLUMNS} FROM {self._p}outbox WHERE id = %s", [entry.position])
        self._memory.same(generation)
        return chunk_of(rows)

    async def _is_suspected(self, entry: Entry, lane: int) -> bool:
        """Write down which event is about to be read whole and sent; False if it killed two relays in a row and is
        parked instead."""
        generation = self._memory.generation
        if self._careful.condemns(entry):
            blocks = self._topics[entry.topic].when_dead == "block"
            self._memory.put_first(entry.position)
            await self._settling.record([Settlement(entry, Dead(CRASHED, blocks))])
            self._hooks.reach(Moment.EVENT_DEAD, entry=entry, error=CRASHED)  # nobody gets it, so nobody else tells
            return False
        await self._careful.suspect(self._connection, entry, lane)
        self._memory.same(generation)
        return True

    async def _turn(self) -> None:
        """Open the detours of topics that were paused, close those that have met the main way."""
        self._memory.route.stop(self._lot.full)
        openings, meetings = list(self._memory.route.openings()), list(self._memory.route.meetings())
        if not openings and not meetings:
            return
        ticks = [self._settling.tick(opening.detour) for opening in openings]
        for main, _, topic in meetings:
            ticks += [self._settling.tick(main), {**self._settling.tick(main.part(main.lanes, topic)), "closed": True}]
        async with self._settling.alone:
            await self._settling.write(ticks, [], [])
        for opening in openings:
            self._memory.route.open(opening)
        for meeting in meetings:
            self._memory.route.close(meeting)


def _listed(way: Way) -> str:
    """Say what is read of a way. In careful mode not the contents: they may be what kills."""
    if not way.careful:
        return "*"
    columns = WITHOUT_CONTENTS.replace("''", "CASE WHEN id = 0 THEN payload ELSE '' END")  # that is the header
    return f"id, {columns}"


_id = itemgetter(0)  # of a row
