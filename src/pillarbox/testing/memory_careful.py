"""Careful mode of the memory store: how an event that kills the relay is found. The rules are those on PostgreSQL.

Lanes count holders in a row that died. From the third on, one event goes at a time, and which one is written down
before it is given out. One that is found written down at two takeovers in a row is parked as dead. What a lane counts
begins anew when everything that was visible at the takeover is settled: the guilty one was.
"""

from collections.abc import Callable

from pillarbox.core.entry import Entry
from pillarbox.testing.memory import MemoryDatabase, Row, Snapshot

CRASHES = 3
CRASHED = "crashed the relay: two in a row died as they were about to send it"


class MemoryCareful:
    """Knows with which of our lanes relays died, and which event is found guilty: gone with whoever knows it."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._lanes, self._snapshot = database.lanes, database.snapshot
        self._seen: dict[int, Snapshot] = {}
        self._condemned: set[int] = set()

    @property
    def lanes(self) -> set[int]:
        """The lanes whose events go one at a time."""
        return {lane for lane in self._seen if self._lanes[lane].crashes >= CRASHES}

    def take(self, lane: int, owner: str) -> None:
        """Count a holder that did not release a lane which is about to be taken."""
        row = self._lanes[lane]
        row.crashes += row.owner not in (None, owner)
        if row.crashes:
            self._seen[lane] = self._snapshot()
        if row.suspect is not None and row.suspected >= 2:
            self._condemned.add(row.suspect)

    def release(self, lane: int) -> None:
        """Who lives to say this was not killed by what it was about to send."""
        self._lanes[lane].suspect, self._lanes[lane].suspected = None, 0
        self._seen.pop(lane, None)

    def condemns(self, entry: Entry) -> bool:
        """Tell whether an event is found guilty."""
        return entry.position in self._condemned

    def suspect(self, entry: Entry, lane: int) -> None:
        """Write down which event is about to be given out."""
        row = self._lanes[lane]
        row.suspected = row.suspected + 1 if row.suspect == entry.position else 1
        row.suspect = entry.position

    def landed(self, entry: Entry, lane: int) -> None:
        """Note that an event is settled: it killed nobody, or is parked for it; whoever retries it wants it tried."""
        self._condemned.discard(entry.position)
        if self._lanes[lane].suspect == entry.position:
            self._lanes[lane].suspect, self._lanes[lane].suspected = None, 0

    def relax(self, waits: Callable[[int, Callable[[Row], bool]], bool]) -> None:
        """Let lanes count anew of which nothing `waits` that their former holders have seen."""
        for lane, seen in list(self._seen.items()):
            if not waits(lane, lambda row, seen=seen: seen.sees(row.xid)):  # type: ignore[misc]
                self.release(lane)
                self._lanes[lane].crashes = 0
