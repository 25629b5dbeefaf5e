"""PostgreSQL snapshots as values: what is visible in one, what lies between two, and where a lane stands. Pure.

A position is a place between two stored snapshots:

    everything visible in `before` is settled;
    of what is visible in `upto` and not in `before`, everything up to the id `last` is settled.

A *mark* is a snapshot as a tick keeps it: together with the tick's own transaction id `x` and the id `m` that the log's
sequence had reached, both drawn after the snapshot was taken. A row with a transaction id above x has an id above m:
so what is new lies beyond both, and only the few transactions that `late` names have to be asked for one by one.
"""

from typing import NamedTuple


class Snapshot(NamedTuple):
    """What one statement sees: every transaction below `xmax` that had ended, if it committed.

    >>> Snapshot.parse("10:14:10,12").sees(11)
    True
    >>> Snapshot.parse("10:14:10,12").sees(12)
    False
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> "Snapshot":
        """Read PostgreSQL's way of writing it: xmin:xmax:those in progress."""
        xmin, xmax, in_progress = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, in_progress.split(","))) if in_progress else frozenset())

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, sorted(self.in_progress)))}"

    def sees(self, xid: int) -> bool:
        """Tell whether the rows of a transaction that committed are visible."""
        return xid < self.xmax and xid not in self.in_progress

    def includes(self, other: "Snapshot") -> bool:
        """Tell whether everything that the other one sees is seen by this one too."""
        return self.xmax >= other.xmax and all(xid in other.in_progress for xid in self.in_progress if xid < other.xmax)


class Mark(NamedTuple):
    """A stored snapshot, the transaction id of the tick that stored it, and the id that the log had reached."""

    snapshot: Snapshot
    x: int
    m: int


class Position(NamedTuple):
    """Where a lane stands. Rows up to `floor` are never read: they came from another cluster and are settled."""

    before: Mark
    upto: Mark
    last: int = 0
    floor: int = 0

    def covers(self, xid: int, id: int) -> bool:
        """Tell whether a row is settled."""
        if id <= self.floor or self.before.snapshot.sees(xid):
            return True
        return id <= self.last and self.upto.snapshot.sees(xid)

    @property
    def late(self) -> list[int]:
        """The transactions whose rows may be new although their ids are not: those that were in progress in `before`,
        and those that had begun when its tick was written. (xmax is the latest *ended* one plus one: a transaction in
        progress above it stands in no list.)"""
        seen = self.before.snapshot
        return sorted(seen.in_progress) + list(range(seen.xmax, self.before.x + 1))

    @property
    def late_visible(self) -> list[int]:
        """Those of `late` that `upto` sees: the ones that ended in between."""
        return [xid for xid in self.late if self.upto.snapshot.sees(xid)]

    @property
    def is_at_end(self) -> bool:
        """Nothing lies between the two snapshots."""
        return self.before == self.upto

    def at_end(self) -> "Position":
        """Give the position when everything up to `upto` is settled."""
        return Position(self.upto, self.upto, 0, self.floor)

    def towards(self, mark: Mark) -> "Position":
        """Give the position at the beginning of the way from `upto`, where everything is settled, to a newer mark."""
        return Position(self.upto, mark, 0, self.floor)
