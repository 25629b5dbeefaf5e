"""Stores that hold back a line that is free, or let one pass that is blocked."""

from pillarbox.core.entry import Entry
from pillarbox.core.routing import Line
from pillarbox.errors import LaneLost
from pillarbox.ports import Holding
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory_records import MemoryStore
from pillarbox.testing.memory_source import _Memory

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


@breaks(
    "test_a_line_is_blocked_while_something_of_it_is_parked",
    "test_a_dead_head_holds_its_line_for_ever",
    "test_a_failure_blocks_only_its_own_aggregate_and_topic",
    "test_the_next_relay_knows_the_blocked_lines_before_it_reads",
)
class NeverBlocksALine(MemoryStore):
    def _refresh_blocked(self) -> None:
        """Believe that a failed entry is no matter of the others."""


@breaks("test_a_line_is_blocked_while_something_of_it_is_parked")
class UnblocksALineWithItsHead(MemoryStore):
    def _refresh_blocked(self) -> None:
        heads = [row for row in self.database.parked if row.state in ("retrying", "dead")]
        self._memory.blocked = frozenset(row.line for row in heads if row.line)


@breaks(
    "test_a_line_is_blocked_while_something_of_it_is_parked",
    "test_a_dropped_event_stays_visible_as_dropped",
)
class NeverUnblocksALine(MemoryStore):
    def _refresh_blocked(self) -> None:
        blocked = self._memory.blocked
        super()._refresh_blocked()
        self._memory.blocked |= blocked


@breaks("test_the_next_relay_knows_the_blocked_lines_before_it_reads")
class LoadsNoBlockedLinesWhenItTakesOver(MemoryStore):
    async def take(self) -> Holding:
        holding = await super().take()
        self._memory.blocked = frozenset()
        return holding


@breaks("test_a_waiting_relay_takes_over_the_blocked_lines_with_the_lanes")
class LooksForBlockedLinesWhenItJoins(MemoryStore):
    """Takes the lanes later with what it saw then, until it reads."""

    _seen: frozenset[Line] | None = None

    async def take(self) -> Holding:
        holding = await super().take()
        if self._seen is None:
            lines = (row.line for row in self.database.parked if row.active)
            self._seen = frozenset(line for line in lines if line is not None)
        self._memory.blocked = self._seen
        return holding


@breaks("test_a_lane_that_is_handed_over_brings_its_blocked_lines")
class LoadsBlockedLinesWithItsFirstLanesOnly(MemoryStore):
    async def take(self) -> Holding:
        held, blocked = self._held(), self._memory.blocked
        holding = await super().take()
        self._memory.blocked = blocked if held else self._memory.blocked
        return holding


@breaks("test_a_former_holder_still_knows_the_blocked_lines")
class ForgetsBlockedLinesWithItsLanes(MemoryStore):
    def _fence(self) -> None:
        try:
            super()._fence()
        except LaneLost:
            self._memory = _Memory()
            raise


class _WholeTopics(frozenset[Line]):
    """The lines of every topic that has one in the set."""

    def __contains__(self, line: object) -> bool:
        return isinstance(line, tuple) and line[0] in {topic for topic, _, _ in self}


class _WholeAggregates(frozenset[Line]):
    """The lines of every aggregate that has one in the set, whatever the topic."""

    def __contains__(self, line: object) -> bool:
        return isinstance(line, tuple) and line[1:] in {blocked[1:] for blocked in self}


@breaks("test_a_failure_blocks_only_its_own_aggregate_and_topic")
class BlocksTheWholeTopic(MemoryStore):
    @property
    def blocked(self) -> frozenset[Line]:
        return _WholeTopics(super().blocked)


@breaks("test_a_failure_blocks_only_its_own_aggregate_and_topic")
class BlocksTheAggregateInEveryTopic(MemoryStore):
    @property
    def blocked(self) -> frozenset[Line]:
        return _WholeAggregates(super().blocked)


@breaks("test_an_entry_without_an_aggregate_blocks_nobody_when_it_fails")
class MakesALineOfEventsWithoutAnAggregate(MemoryStore):
    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        super()._park(entry, lane, verdict)
        if not entry.aggregate_id:
            self.database.parked[-1].line = (entry.topic, entry.aggregate_type, entry.aggregate_id)


@breaks("test_an_entry_without_an_aggregate_blocks_nobody_when_it_fails")
class BlocksTheTopicBehindAnEventWithoutAnAggregate(MemoryStore):
    def _refresh_blocked(self) -> None:
        super()._refresh_blocked()
        free = [row.entry for row in self.database.parked if row.active and not row.entry.aggregate_id]
        self._memory.blocked |= {(entry.topic, entry.aggregate_type, entry.aggregate_id) for entry in free}
