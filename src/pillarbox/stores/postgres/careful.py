"""Careful mode: how an event that kills the relay is found. Reading writes nothing, so nothing counts such a try.

Lanes count holders in a row that died before the position moved. From the third on, the lanes' events go one at a time,
and the id of each is written down before it is sent. One that is found written down at two takeovers in a row is parked
as dead. It ends when as many have passed as a relay can have had in flight: the guilty one would have been among them.
"""

from collections.abc import Iterable, Sequence

from pillarbox.core.entry import Entry
from pillarbox.core.routing import Topics, lane_of
from pillarbox.errors import LaneLost
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.lanes import LaneTable, Taken
from pillarbox.stores.postgres.ways import Way

CRASHES = 3
CRASHED = "crashed the relay: two in a row died as they were about to send it; `pillarbox dead retry` tries it again"


class Careful:
    """Knows which lanes crashed relays, which event is about to be sent, and which is found guilty."""

    def __init__(self, place: str, lanes: LaneTable, topics: Topics, window: int) -> None:
        self._p, self._lanes, self._topics, self._window = place, lanes, topics, window
        self.forget()

    def forget(self) -> None:
        self._crashed: set[int] = set()  # lanes whose count is not 0
        self._condemned: set[int] = set()
        self.flying: set[int] = set()

    def take(self, taken: Sequence[Taken]) -> dict[int, int]:
        """Note what the lanes have been through; give those to be careful with, and for how many events."""
        self._crashed |= {lane.lane for lane in taken if lane.crashes}
        self._condemned |= {lane.suspect for lane in taken if lane.suspect is not None and lane.suspected >= 2}
        return {lane.lane: self._window for lane in taken if lane.crashes >= CRASHES}

    def condemns(self, entry: Entry) -> bool:
        """Tell whether an event is found guilty."""
        return entry.position in self._condemned

    async def suspect(self, connection: Connection, entry: Entry) -> None:
        """Write down, durably, which event is about to be sent."""
        whole = entry.topic in self._topics.whole
        lane = 0 if whole else lane_of(entry.aggregate_type, entry.aggregate_id, entry.event_id)
        written = await connection.run_sure(
            f"UPDATE {self._p}lanes SET suspected = CASE WHEN suspect = %s THEN suspected + 1 ELSE 1 END, suspect = %s"
            " FROM (SELECT set_config('synchronous_commit', 'on', true)) durable"
            " WHERE lane = %s AND epoch = %s RETURNING lane",
            [entry.position, entry.position, lane, self._lanes.epochs.get(lane)],
        )
        if not written:
            raise LaneLost("another relay has taken the lane of an event that was about to be sent")
        self.flying.add(entry.position)

    async def landed(self, connection: Connection, entries: Iterable[Entry]) -> None:
        """Note that events are settled. One that failed, and is tried again, has killed nobody; and whoever brings
        back one that was found guilty wants it to be tried."""
        if not self.flying and not self._condemned:
            return
        positions = {entry.position for entry in entries}
        if landed := (self.flying | self._condemned) & positions:
            await connection.run(
                f"UPDATE {self._p}lanes SET suspect = NULL, suspected = 0 WHERE owner = %s AND suspect = ANY (%s)",
                [self._lanes.owner, sorted(landed)],
            )
        self.flying -= positions
        self._condemned -= positions

    async def moved(self, connection: Connection, ways: Iterable[Way]) -> None:
        """The position of these ways has moved: what their lanes count begins anew, unless they are careful."""
        if self._crashed:
            await self._acquit(connection, frozenset().union(*(way.lanes for way in ways if not way.careful)))

    async def relax(self, connection: Connection, ways: Iterable[Way]) -> None:
        """End careful mode where everything that could be guilty has passed."""
        for way in ways:
            moved = way.settled != way.began  # what killed the others may be the very next one
            if self._crashed & way.lanes and moved and (way.finished or not way.careful):
                way.careful = 0
                if way.settled == way.stored:  # not before that is stored: the next takeover must not begin before it
                    await self._acquit(connection, way.lanes)

    async def _acquit(self, connection: Connection, lanes: frozenset[int]) -> None:
        if passed := sorted(self._crashed & lanes):
            await connection.run(
                f"UPDATE {self._p}lanes SET crashes = 0, suspect = NULL, suspected = 0"
                " WHERE owner = %s AND lane = ANY (%s)",
                [self._lanes.owner, passed],
            )
            self._crashed -= set(passed)
