"""The route: all ways of one relay, and how they part, meet and become one. Pure: it decides, the log does.

    pause    the main way stops until nothing of it is in flight; then a detour leaves it there
    paused   the main way goes on around the topic; the detour stands still
    resume   the detour reads its topic up to where the main way heads
    meet     when both have settled everything up to the same snapshot, the detour is over

Ways that stand at the same place become one, so that a relay which took lanes from many soon reads once for all.
"""

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from pillarbox.core.routing import LANES
from pillarbox.core.snapshot import Mark
from pillarbox.stores.postgres.ways import Anchor, Way


class Opening(NamedTuple):
    """A detour that is to leave a main way."""

    main: Way
    detour: Way


class Meeting(NamedTuple):
    """A main way and the ways of a topic that have met it."""

    main: Way
    met: list[Way]
    topic: str


class Route:
    """The ways, in the order in which they are read next."""

    def __init__(self, whole: Collection[str]) -> None:
        self._whole = whole
        self.ways: list[Way] = []
        self.paused: frozenset[str] = frozenset()

    def is_open(self, way: Way) -> bool:
        """A way is read unless its topic is paused, its lot is full, or a pause is about to take effect on it."""
        if way.topic is not None:
            return way.topic not in self.paused and not way.waits_for
        return not way.stopped and not (self.paused - way.around)

    @property
    def moving(self) -> list[Way]:
        """The ways that nobody has stopped."""
        return [way for way in self.ways if way.topic not in self.paused and not way.stopped]

    def next_way(self, *, careful: bool) -> Way | None:
        """Choose a way that has more to read; the one that was read last comes last."""
        for index, way in enumerate(self.ways):
            if way.more and self.is_open(way) and (careful or not way.careful):
                self.ways.append(self.ways.pop(index))
                return way
        return None

    def may_begin(self) -> bool:
        """A batch begins when all of the last one was given out; where ways may become one, when it is settled."""
        open_ways = [way for way in self.ways if self.is_open(way)]
        together = all(way.finished for way in open_ways) if len(open_ways) > 1 else True
        return together and any(way.topic is None for way in open_ways) and not any(way.more for way in open_ways)

    def leader(self) -> tuple[Way, list[Way]]:
        """Give the main way that begins the next batch, and the others that join it."""
        self._merge()
        open_ways = [way for way in self.ways if self.is_open(way)]
        leader = max((way for way in open_ways if way.topic is None), key=lambda way: len(way.lanes))
        return leader, [way for way in open_ways if way is not leader]

    def _merge(self) -> None:
        together: dict[Any, Way] = {}
        kept: list[Way] = []
        for way in self.ways:
            place = (way.topic, way.whole, way.around, way.mark, way.read.floor, way.stopped, way.careful)
            first = together.setdefault(place, way) if way.finished else way
            if first is way:
                kept.append(way)
            else:
                first.lanes |= way.lanes
                first.anchors |= way.anchors
                first.unstored += way.unstored
                first.passed, first.first_mark = min(first.passed, way.passed), _later(first.first_mark, way.first_mark)
                if first.stored.before.snapshot.includes(way.stored.before.snapshot):
                    first.stored = way.stored  # what is not stored of one is not stored of both
        self.ways = kept

    def join(self, others: list[Way], mark: Mark, anchor: Anchor) -> None:
        """Send ways on to the snapshot that the leader's tick has stored."""
        for way in others:
            if mark.snapshot.includes(way.mark.snapshot):
                way.begin(mark, (anchor,))

    def catch_up(self) -> bool:
        """Send ways that have ended behind the main way on to where it heads; tell whether one went."""
        went = False
        for way in self.ways:
            if way.topic is None or not way.finished or not self.is_open(way):
                continue
            main = next((of for of in self.ways if of.topic is None and of.lanes >= way.lanes), None)
            if main and main.mark != way.mark and main.mark.snapshot.includes(way.mark.snapshot):
                way.begin(main.mark, main.anchors)
                went = True
        return went

    def stop(self, full: Collection[int]) -> None:
        """Part the lanes whose parking lot is full from the others, so that only they stand still."""
        for way in [way for way in self.ways if way.topic is None]:
            here = way.lanes & frozenset(full)
            if here and here != way.lanes and not way.flying:
                part = way.part(here)
                way.lanes -= here
                part.stopped, way.stopped = True, False
                self.ways.append(part)
            else:
                way.stopped = bool(here)

    def openings(self) -> Iterator[Opening]:
        """Say which detours are to be opened now."""
        for way in self.ways:
            if way.topic is None and not way.flying:
                for topic in sorted(self.paused - way.around):
                    yield Opening(way, way.part(way.lanes, topic))

    def meetings(self) -> Iterator[Meeting]:
        """Say which ways of a topic have met a main way of which they cover all lanes."""
        for way in self.ways:
            if way.topic is None and way.finished:
                for topic in sorted(way.around - self.paused - frozenset(self._whole)):
                    if met := self._met(way, topic):
                        yield Meeting(way, met, topic)

    def _met(self, way: Way, topic: str) -> list[Way]:
        here = [of for of in self.ways if of.topic == topic and of.finished and of.mark == way.mark]
        if any(of.whole for of in here):  # it was one line: others may read it again only if they are all with us
            return here if len(way.lanes) == LANES else []
        return here if frozenset[int]().union(*(of.lanes for of in here)) >= way.lanes else []

    def open(self, opening: Opening) -> None:
        """A detour has left: the main way goes around its topic."""
        assert opening.detour.topic is not None
        opening.main.around |= {opening.detour.topic}
        self.ways.append(opening.detour)

    def send_back(self, way: Way, detour: Way) -> None:
        """A topic's events went back: a detour begins with them, or is wound back to them."""
        if way.topic is None:
            self.open(Opening(way, detour))
        else:
            self.ways = [detour if of is way else of for of in self.ways]

    def close(self, meeting: Meeting) -> None:
        """A detour is over: the main way reads its topic again."""
        meeting.main.around -= {meeting.topic}
        for way in meeting.met:
            way.lanes -= meeting.main.lanes
        self.release(frozenset())

    def release(self, lanes: frozenset[int]) -> None:
        """Take lanes off all ways."""
        for way in self.ways:
            way.lanes -= lanes
        self.ways = [way for way in self.ways if way.lanes]


def _later(one: Mark | None, other: Mark | None) -> Mark | None:
    """Give the later of two snapshots; none if one of them has not been taken yet."""
    if one is None or other is None:
        return None
    return one if one.snapshot.includes(other.snapshot) else other
