"""Ways: how one relay goes through the log. In memory only; what it says is true as long as the anchors exist.

A way is a set of lanes at one position, read together:

    main      every topic but those it goes around
    detour    one topic that was paused: it keeps its place while the main line goes on
    whole     one topic for all lanes, because it is one line; held together with lane 0

A batch is what lies between two stored snapshots. The next one begins when all of this one was given out; the position
moves over a batch when all of it is settled.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from pillarbox.core.routing import LANES
from pillarbox.core.snapshot import Mark, Position, Snapshot

ALL_LANES = frozenset(range(LANES))


class Anchor(NamedTuple):
    """A tick that memory came from."""

    n: int
    token: UUID


@dataclass(slots=True)
class _Batch:
    """What lies between two snapshots: how much of it was given out and is not settled, and whether there is more."""

    position: Position
    """Up to where rows were given out."""
    late: list[int]
    """Transactions that ended late and may still have rows in this batch."""
    more: bool
    flying: int = 0


@dataclass(slots=True, eq=False)
class Way:
    """Some lanes on their way through the log, for all topics or for one."""

    lanes: frozenset[int]
    topic: str | None
    whole: bool
    around: frozenset[str]
    settled: Position
    anchors: frozenset[Anchor]
    stored: Position = field(init=False)
    """What the newest tick says."""
    unstored: int = 0
    """So many events were settled since its newest tick."""
    passed: int = 0
    """So many events were settled since its lanes were taken."""
    first_mark: Mark | None = None
    """The first snapshot that was taken after its lanes were."""
    stopped: bool = False
    """So many of its events are parked that it goes no further."""
    careful: int = 0
    """So many more events go one at a time, because something killed the relays before us."""
    waits_for: set[int] = field(default_factory=set)
    """Ids that were given out before and may come out again here: not before those are settled."""
    _batches: deque[_Batch] = field(init=False)
    """Those that are not settled, in order; the last one is being read."""

    def __post_init__(self) -> None:
        self.stored = self.settled
        self._batches = deque((_Batch(self.settled, self.settled.late_visible, not self.settled.is_at_end),))

    @property
    def read(self) -> Position:
        """Up to where rows were given out."""
        return self._batches[-1].position

    @property
    def mark(self) -> Mark:
        """Where the batch that is being read ends."""
        return self.read.upto

    @property
    def late(self) -> list[int]:
        """The transactions that ended late and may have rows in the batch that is being read."""
        return self._batches[-1].late

    @property
    def more(self) -> bool:
        """The batch that is being read may have more rows."""
        return self._batches[-1].more

    @property
    def flying(self) -> bool:
        """Something was given out and is not settled."""
        return any(batch.flying for batch in self._batches)

    @property
    def finished(self) -> bool:
        """Everything up to its mark is settled."""
        return not self.more and not self.flying

    @property
    def has_new_beginning(self) -> bool:
        """Everything that was there when its lanes were taken is settled, and stored so."""
        return self.first_mark is not None and self.stored.before.snapshot.includes(self.first_mark.snapshot)

    @property
    def lane_filter(self) -> frozenset[int]:
        """Which lanes it reads."""
        return ALL_LANES if self.whole else self.lanes

    def begin(self, mark: Mark, anchors: Iterable[Anchor], late: list[int] | None = None) -> None:
        """Begin the batch that ends at a newer snapshot."""
        position = self.read.towards(mark)
        self.first_mark = self.first_mark or mark
        self.anchors |= frozenset(anchors)
        self._batches.append(_Batch(position, position.late_visible if late is None else late, True))
        self.settle(0, 0)

    def give(self, last: int, count: int) -> None:
        """Note that rows were given out, up to the id `last`."""
        batch = self._batches[-1]
        batch.position = batch.position._replace(last=last)
        batch.flying += count

    def end(self) -> None:
        """Note that the batch has no more rows."""
        self._batches[-1].more = False
        self.settle(0, 0)

    def after(self, last: int, count: int) -> Position:
        """Say where the way is settled once `count` more rows, up to the id `last`, are."""
        settled = self.settled
        for batch in self._batches:
            here = min(count, batch.flying)
            if here < batch.flying or batch.more:
                return batch.position._replace(last=last) if here else settled
            settled, count = batch.position.at_end(), count - here
        return settled

    def settle(self, last: int, count: int) -> None:
        """Note that rows are settled."""
        self.settled = self.after(last, count)
        self.passed, self.careful = self.passed + count, max(0, self.careful - count)
        self.unstored += count
        while True:
            batch = self._batches[0]
            here = min(count, batch.flying)
            batch.flying, count = batch.flying - here, count - here
            if batch.flying or batch.more or len(self._batches) == 1:
                return
            self._batches.popleft()

    def back_to(self, position: Position, topic: str) -> "Way":
        """Give the way of a topic from an earlier position on: what was given out of it comes out again."""
        return self._like(self.lanes, topic, frozenset(), position)

    def part(self, lanes: frozenset[int], topic: str | None = None) -> "Way":
        """Give a way of its own to some lanes, or to a topic of theirs, from where this one has read up to. Nothing of
        it may be in flight."""
        batch = self._batches[-1]
        place = batch.position if batch.more else batch.position.at_end()
        around = self.around if topic is None else frozenset()
        part = self._like(lanes, topic or self.topic, around, place)
        part._batches[-1].late = list(batch.late)
        return part

    def _like(self, lanes: frozenset[int], topic: str | None, around: frozenset[str], place: Position) -> "Way":
        part = Way(lanes, topic, self.whole, around, place, self.anchors)
        part.stored, part.unstored = self.stored, self.unstored
        part.careful, part.passed, part.first_mark = self.careful, self.passed, self.first_mark
        return part


@lru_cache(maxsize=256)
def mask_of(lanes: frozenset[int]) -> int:
    """Write lanes as the signed 64 bits of a bigint."""
    mask = sum(1 << lane for lane in lanes)
    return mask - (1 << 64) if mask >= 1 << 63 else mask


def lanes_of(mask: int) -> frozenset[int]:
    """Read lanes from the signed 64 bits of a bigint."""
    return frozenset(lane for lane in ALL_LANES if mask >> lane & 1)


def array_of(values: Iterable[object]) -> str:
    """Write numbers or ids as an array's text: a driver takes long over lists of them."""
    return "{" + ",".join(map(str, values)) + "}"


def position_of(row: Any) -> Position:
    """Read s1, x1, m1, s2, x2, m2, last_id, floor_id."""
    s1, x1, m1, s2, x2, m2, last, floor = row
    before, upto = Mark(Snapshot.parse(s1), int(x1), m1), Mark(Snapshot.parse(s2), int(x2), m2)
    return Position(before, upto, last, floor)


def position_json(position: Position) -> dict[str, Any]:
    """Write a position as the columns of a tick."""
    before, upto, last, floor = position
    return {
        "s1": str(before.snapshot), "x1": str(before.x), "m1": before.m,
        "s2": str(upto.snapshot), "x2": str(upto.x), "m2": upto.m,
        "last_id": last, "floor_id": floor,
    }  # fmt: skip
