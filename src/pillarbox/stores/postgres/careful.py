"""Careful mode: how an event that kills the relay is found. Reading writes nothing, so nothing counts such a try.

Lanes count holders in a row that died before they had passed what may have killed the one before. From the third on,
the lanes' events go one at a time, and the id of each is written down before it is sent. One that is found written down
at two takeovers in a row is parked as dead.

The guilty one is within two windows of the stored position: one may have been in flight, and one settled but not
stored yet. And a snapshot that was taken after the death shows it. So it has passed when that many have, or when
everything in such a snapshot is settled, and that is stored; whatever came since is in flight or not. But not while
something out of the parking lot is due or in flight.
"""

from collections.abc import Iterable, Sequence

from pillarbox.core.entry import Entry
from pillarbox.errors import LaneLost
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.lanes import LaneTable, Taken
from pillarbox.stores.postgres.ways import Way

CRASHES = 3
CRASHED = "crashed the relay: two in a row died as they were about to send it; `pillarbox dead retry` tries it again"


class Careful:
    """Knows which lanes crashed relays, which event is about to be sent, and which is found guilty."""

    def __init__(self, place: str, lanes: LaneTable, window: int) -> None:
        self._p, self._lanes, self._reach = place, lanes, 2 * window
        self.forget()

    def forget(self) -> None:
        self._crashed: set[int] = set()  # lanes whose count is not 0
        self._condemned: set[int] = set()
        self.flying: set[int] = set()

    def take(self, taken: Sequence[Taken]) -> dict[int, int]:
        """Note what the lanes have been through; give those to be careful with, and for how many events."""
        self._crashed |= {lane.lane for lane in taken if lane.crashes}
        self._condemned |= {lane.suspect for lane in taken if lane.suspect is not None and lane.suspected >= 2}
        return {lane.lane: self._reach for lane in taken if lane.crashes >= CRASHES}

    def condemns(self, entry: Entry) -> bool:
        """Tell whether an event is found guilty."""
        return entry.position in self._condemned

    async def suspect(self, connection: Connection, entry: Entry, lane: int) -> None:
        """Write down, durably, which event is about to be read whole and sent."""
        written = await connection.run_sure(
            f"UPDATE {self._p}lanes SET suspected = CASE WHEN suspect = %s THEN suspected + 1 ELSE 1 END, suspect = %s"
            " FROM (SELECT set_config('synchronous_commit', 'on', true)) durable"
            " WHERE lane = %s AND epoch = %s RETURNING lane",
            [entry.position, entry.position, lane, self._lanes.epochs.get(lane)],
        )
        if not written:
            raise LaneLost("another relay has taken the lane of an event that was about to be sent")
        self.flying.add(entry.position)

    async def acquit(self, connection: Connection, entries: Iterable[Entry]) -> None:
        """Forget, durably or not, that events were suspected: they were sent, nobody took them, and we live."""
        if heard := sorted(self.flying.intersection(entry.position for entry in entries)):
            await connection.run(
                f"UPDATE {self._p}lanes SET suspect = NULL, suspected = 0 WHERE owner = %s AND suspect = ANY (%s)",
                [self._lanes.owner, heard],
            )

    def landed(self, entries: Iterable[Entry]) -> None:
        """Note that events are settled: they killed nobody, and whoever brings back one that was found guilty wants it
        to be tried. What was parked has lost its suspicion with that; what was published does not come again."""
        positions = {entry.position for entry in entries} if self.flying or self._condemned else set()
        self.flying -= positions
        self._condemned -= positions

    async def relax(self, connection: Connection, ways: Sequence[Way]) -> None:
        """Where everything that could be guilty has passed, what lanes count begins anew."""
        if not self._crashed:
            return
        passed = self._crashed.difference(*(way.lanes for way in ways if not self._has_passed(way)))
        for way in ways:
            if self._has_passed(way):
                way.careful = 0
        if passed:
            await connection.run(
                f"UPDATE {self._p}lanes SET crashes = 0, suspect = NULL, suspected = 0"
                " WHERE owner = %s AND lane = ANY (%s)",
                [self._lanes.owner, sorted(passed)],
            )
            self._crashed -= passed

    def _has_passed(self, way: Way) -> bool:
        """Tell whether nothing on this way can be what killed the holders before us; nor for who takes it from us."""
        return way.has_new_beginning or (way.settled == way.stored and way.passed >= self._reach)
