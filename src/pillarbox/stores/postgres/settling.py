"""Settling on PostgreSQL: moves the positions over what is settled, parks what failed, stores both as ticks."""

import asyncio
import json
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any
from uuid import UUID, uuid4

from pillarbox.core.chunk import positions_of
from pillarbox.core.convoy import Arrived
from pillarbox.core.entry import Entry
from pillarbox.core.retry import PUBLISHED, Dead, Published, RetryAt
from pillarbox.core.window import Detoured, Settlement
from pillarbox.errors import StoreError
from pillarbox.stores.postgres.memory import HELD, Memory, now
from pillarbox.stores.postgres.ways import Anchor, Way, mask_of, position_json
from pillarbox.telemetry.hooks import Hooks, Moment

Settlements = Sequence[Settlement[Entry]]


class Settling:
    """Records what has become of what was given out."""

    def __init__(self, memory: Memory, hooks: Hooks, *, progress: float, window: int) -> None:
        self._memory, self._hooks, self._progress, self._most = memory, hooks, progress, window // 2
        self._p, self._connection, self._lanes = memory.place, memory.connection, memory.lanes
        self._lot, self._careful = memory.lot, memory.careful
        self.alone = asyncio.Lock()
        """Held by whoever writes a tick."""

    async def settle(self, settlements: Settlements) -> None:
        """Move the positions over what is settled and park what failed, atomically."""
        self._memory.require_lanes()
        await self.record(settlements)

    async def record(self, settlements: Settlements) -> None:
        """Settle, or convict what was not given out yet."""
        async with self.alone:
            generation = self._memory.generation
            if self._all_published(settlements):
                if self._is_due():
                    await self.write(self._ticks(), [], [])
                return
            accepted = self._accept(settlements)
            log = self._on_the_route(accepted)
            lot = [settlement for settlement in settlements if settlement.item.parked]
            parked = self._lot.parked(log)
            settled = self._lot.settled(lot)
            detours = self._sent_back(log)
            if detours:
                await self._careful.acquit(self._connection, _gone_back(settlements))
                self._memory.same(generation)
            self._count(log, lot)
            if parked or settled or detours or self._careful.flying or self._is_due(len(log)):
                wound_back = {way for way, _ in detours if way.topic is not None}
                ticks = self._ticks(_moves(log), without=wound_back)
                await self.write(ticks + [self.tick(detour) for _, detour in detours], parked, settled)
            for way, detour in detours:
                self._memory.route.send_back(way, detour)
            for way, last, count in _moves(log):
                way.settle(last, count)
            self._memory.take_back(settlement.item.position for _, settlement in accepted)
            self._lot.back(lot)
            self._careful.landed([settlement.item for settlement in settlements])
            if parked or settled:
                await self._lot.look(self._connection)
                self._memory.same(generation)

    def _all_published(self, settlements: Settlements) -> bool:
        """Move over entries if they are the next ones of one way and all published, as they mostly are."""
        if isinstance(settlements, Arrived):
            positions = list(positions_of(settlements.items))
        else:
            positions = [entry[0] for entry, verdict in settlements if verdict is PUBLISHED and not entry.parked]
        count = len(positions)
        ways = set(islice(self._memory.given.values(), count))
        if count != len(settlements) or len(ways) != 1 or positions != list(islice(self._memory.given, count)):
            return False
        [way] = ways
        if way.careful or way not in self._memory.route.ways:
            return False
        self._memory.published += count
        way.settle(positions[-1], count)
        self._memory.take_back(positions)
        return True

    def _on_the_route(self, accepted: list[tuple[Way, Settlement[Entry]]]) -> list[tuple[Way, Settlement[Entry]]]:
        """Leave out what was given out on a way that was wound back meanwhile: it comes out again, on another one. A
        tick for the way that it came would be the newest, beyond the place that the other one begins at."""
        return [one for one in accepted if one[0] in self._memory.route.ways]

    def _sent_back(self, log: Sequence[tuple[Way, Settlement[Entry]]]) -> list[tuple[Way, Way]]:
        """Let a detour begin before the first event of a topic that goes back, on each way."""
        detours: dict[tuple[Way, str], Way] = {}
        passed: dict[Way, tuple[int, int]] = {}
        for way, (entry, verdict) in log:
            last, count = passed.get(way, (0, 0))
            key = (way, entry.topic)
            first = isinstance(verdict, Detoured) and entry.topic not in way.around and key not in detours
            if first:
                detours[key] = way.back_to(way.after(last, count), entry.topic)
                detours[key].waits_for = {id for id, of in self._memory.given.items() if of is way}
            passed[way] = entry.position, count + 1
        return [(way, detour) for (way, _), detour in detours.items()]

    def _accept(self, settlements: Settlements) -> list[tuple[Way, Settlement[Entry]]]:
        """Check that log entries are the next ones given out; leave out what was settled before."""
        accepted = []
        following = iter(self._memory.given.items())
        for settlement in settlements:
            entry = settlement.item
            if entry.parked or entry.position not in self._memory.given:
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
        self._memory.published += sum(verdict.__class__ is Published for verdict in verdicts)
        self._memory.failed += sum(isinstance(verdict, RetryAt | Dead) for verdict in verdicts)

    def _ticks(
        self, moves: Iterable[tuple[Way, int, int]] = (), *, without: Container[Way] = ()
    ) -> list[dict[str, Any]]:
        """Write ticks for the ways that have moved, or are about to; the first one says how many were published."""
        positions = {way: (way.settled, 0) for way in self._memory.route.ways if way.settled != way.stored}
        positions |= {way: (way.after(last, count), count) for way, last, count in moves}
        ticks = [self.tick(way, *moved) for way, moved in positions.items() if way not in without]
        if not ticks and (self._memory.published or self._memory.failed):
            ticks = [self.tick(way) for way in self._memory.route.ways if way not in without][:1]
        if ticks:
            ticks[0] |= {"published": self._memory.published, "failed": self._memory.failed}
        return ticks

    def tick(self, way: Way, position: Any = None, count: int = 0) -> dict[str, Any]:
        """Say where a way is, or will be once `count` more are settled, as `write` wants it."""
        return {
            "way": way, "position": position or way.settled, "stores": way.unstored + count, "token": str(uuid4()),
            "lanes": mask_of(way.lanes), "topic": way.topic, "whole": way.whole, "around": sorted(way.around),
            "published": 0, "failed": 0, "closed": False,
        }  # fmt: skip

    @property
    def _is_unsaved(self) -> bool:
        moved = any(way.settled != way.stored for way in self._memory.route.ways)
        return moved or bool(self._memory.published or self._memory.failed)

    def _is_due(self, coming: int = 0) -> bool:
        """Progress is stored now and then; and before a crash would repeat more of it than a batch."""
        enough = self._memory.unstored + coming > self._most
        return enough or now() >= self._memory.stored_at + self._progress

    async def save_if_due(self) -> None:
        if self._is_unsaved and self._is_due():
            await self.save()

    async def save(self) -> None:
        """Store where the ways are, if that is news."""
        async with self.alone:
            if self._is_unsaved:
                await self.write(self._ticks(), [], [])

    async def write(self, ticks: list[dict[str, Any]], parked: list[Any], settled: list[Any]) -> None:
        """Store ticks and changes of the parking lot, all or none; unless that is sure, forget everything."""
        generation = self._memory.generation
        anchors = frozenset[Anchor]().union(*(way.anchors for way in self._memory.route.ways))
        rows = [
            {name: value for name, value in tick.items() if name not in ("way", "position", "stores")}
            | position_json(tick["position"])
            for tick in ticks
        ]
        self._hooks.reach(Moment.SETTLING, ticks=len(ticks))
        try:
            written = await self._connection.run_sure(
                f"SELECT token, n FROM {self._p}settle(%s, {HELD}, %s::json, %s::json, %s::json)",
                [self._lanes.owner, *self._memory.rests_on(anchors), *map(json.dumps, (rows, parked, settled))],
            )
            self._memory.same(generation)
        except BaseException:
            self._memory.forget()
            raise
        numbers = {str(token): n for token, n in written}
        for tick in ticks:
            way = tick["way"]
            way.stored = tick["position"]
            way.unstored -= tick["stores"]
            if not tick["closed"]:
                way.anchors = frozenset((Anchor(numbers[tick["token"]], UUID(tick["token"])),))
        # Ticks that open or close a detour count nothing: what they do not tell is left for the next ones.
        self._memory.published -= sum(tick["published"] for tick in ticks)
        self._memory.failed -= sum(tick["failed"] for tick in ticks)
        self._memory.stored()


def _gone_back(settlements: Settlements) -> Iterator[Entry]:
    return (entry for entry, verdict in settlements if isinstance(verdict, Detoured))


def _moves(log: Sequence[tuple[Way, Settlement[Entry]]]) -> list[tuple[Way, int, int]]:
    """Say of each way up to which id, and how many, are settled."""
    last: dict[Way, int] = {}
    count: dict[Way, int] = {}
    for way, settlement in log:
        last[way] = settlement.item.position
        count[way] = count.get(way, 0) + 1
    return [(way, last[way], count[way]) for way in last]
