"""The log on PostgreSQL: lanes come and go, entries are read and settled. Why: decision 0013."""

import asyncio
from collections.abc import Iterable, Sequence

from pillarbox.core.routing import Line, Topics
from pillarbox.errors import LaneLost
from pillarbox.ports import Clock
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.lanes import LaneTable, Taken
from pillarbox.stores.postgres.memory import Memory
from pillarbox.stores.postgres.positions import Positions
from pillarbox.stores.postgres.reading import Reading
from pillarbox.stores.postgres.settling import Settling
from pillarbox.telemetry.hooks import Hooks, Moment


class Log:
    """What the holder of lanes reads and settles."""

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
        self._connection, self._lanes, self._hooks = connection, lanes, hooks
        self._positions = Positions(place, topics)
        self._memory = memory = Memory(place, connection, lanes, topics, clock, window)
        self._settling = Settling(memory, hooks, progress=progress, window=window)
        self._reading = Reading(memory, self._settling, hooks)
        self.forget, self.ring = memory.forget, memory.news.set
        self.entries, self.settle, self.save = self._reading.entries, self._settling.settle, self._settling.save

    @property
    def holds(self) -> bool:
        """There is something in memory."""
        return bool(self._memory.route.ways)

    @property
    def blocked(self) -> frozenset[Line]:
        return self._memory.lot.blocked

    def hold(self, topics: frozenset[str]) -> None:
        """Read around these topics until told otherwise."""
        self._memory.lot.held = topics

    async def load(self, taken: Sequence[Taken], connection: Connection) -> frozenset[str]:
        """Start lanes that were just taken where their newest ticks say; give the topics that stand behind there."""
        memory, lot = self._memory, self._memory.lot
        generation = memory.generation
        if careful := memory.careful.take(taken):
            self._hooks.reach(Moment.LANES_SUSPECT, lanes=len(careful))
        loaded = await self._positions.load(
            connection, self._lanes.owner, frozenset(one.lane for one in taken), careful
        )
        await lot.look(self._connection)
        await lot.count(self._connection)
        memory.same(generation)
        if memory.cluster and memory.cluster != loaded.cluster:
            raise LaneLost("the server is not the one it was")
        memory.cluster, memory.paused = loaded.cluster, loaded.paused
        memory.route.ways += loaded.ways
        return frozenset(way.topic for way in loaded.ways if way.topic and not way.whole) - loaded.paused

    async def release(self, lanes: Iterable[int]) -> None:
        """Take lanes off their ways, of which nothing may be in flight, having stored where they are."""
        going, settling = frozenset(lanes), self._settling
        async with settling.alone:
            parts = [way.part(way.lanes & going) for way in self._memory.route.ways if way.lanes & going]
            await settling.write([settling.tick(part) for part in parts], [], [])
        self._memory.route.release(going)

    async def wait(self, seconds: float) -> None:
        """Return when what was in flight is settled, or when it rings; at the latest after `seconds`."""
        try:
            await asyncio.wait_for(self._memory.news.wait(), seconds)
        except TimeoutError:
            pass  # time to look again
