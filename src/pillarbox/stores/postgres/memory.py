"""What the holder of lanes remembers: what it has read and given out, and what that rests on.

A statement that uses it demands that the ticks it came from still exist, that the cluster is the same, and that our
lanes are ours (`HELD`, `rests_on`). Whoever waited for an answer asks `same`: everything may be forgotten meanwhile.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from pillarbox.core.routing import Topics
from pillarbox.errors import LaneLost
from pillarbox.ports import Clock
from pillarbox.stores.postgres.careful import Careful
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.lanes import LaneTable
from pillarbox.stores.postgres.parking import ParkingLot
from pillarbox.stores.postgres.route import Route
from pillarbox.stores.postgres.ways import Anchor, Way, array_of

HELD = "%s::smallint[], %s::bigint[], %s::bigint[], %s::uuid[], %s"
"""What memory rests on, in a statement."""


class Memory:
    """The ways of our lanes, what was given out of them, and what is not stored yet."""

    def __init__(
        self, place: str, connection: Connection, lanes: LaneTable, topics: Topics, clock: Clock, window: int
    ) -> None:
        self.place, self.connection, self.lanes, self.topics = place, connection, lanes, topics
        self.lot = ParkingLot(place, lanes, topics, clock)
        self.careful = Careful(place, lanes, window)
        self.news = asyncio.Event()
        self.generation = 0
        self.forget()

    def forget(self) -> None:
        """Drop everything but what is blocked."""
        self.generation += 1
        self.route = Route(self.topics.whole)
        self.paused: frozenset[str] = frozenset()  # by people
        self.given: dict[int, Way] = {}  # ids in the order in which they were given out
        self.cluster = ""
        self.published = self.failed = 0  # since the last tick
        self.begun_at = self.stored_at = float("-inf")  # the last batch; the last progress
        self.lot.forget()
        self.careful.forget()
        self.news.set()

    @property
    def unstored(self) -> int:
        """So many events were settled, and no tick says so yet."""
        return sum(way.unstored for way in self.route.ways)

    def stored(self) -> None:
        """Note that progress was stored, if it was that of all ways."""
        if all(way.unstored <= 0 for way in self.route.ways):
            self.stored_at = now()

    def same(self, generation: int) -> None:
        """Raise if everything was forgotten while we waited for an answer."""
        if generation != self.generation:
            raise LaneLost("the lanes were lost meanwhile")

    def require_lanes(self) -> None:
        if not self.route.ways:
            raise LaneLost("no lanes are held")

    def rests_on(self, anchors: Iterable[Anchor]) -> list[Any]:
        """Give the parameters of `HELD`."""
        epochs = self.lanes.epochs
        ticks = list(anchors)
        return [
            array_of(epochs), array_of(epochs.values()),
            array_of(tick.n for tick in ticks), array_of(tick.token for tick in ticks), self.cluster,
        ]  # fmt: skip

    def put_first(self, position: int) -> None:
        """Let one that nobody got be settled before what was given out on other ways and is in flight."""
        way = self.given.get(position)
        if way is not None and position == next(id for id, of in self.given.items() if of is way):
            self.given = {position: way} | self.given

    def take_back(self, positions: Iterable[int]) -> None:
        """Note that these are settled."""
        deque(map(self.given.pop, positions), maxlen=0)  # a loop without Python's own
        for way in self.route.ways:
            if way.waits_for:
                way.waits_for &= self.given.keys()
        if not self.given:
            self.news.set()


def now() -> float:
    return asyncio.get_running_loop().time()
