"""Stores that read or settle the log wrongly."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from pillarbox.core.entry import Entry
from pillarbox.core.retry import Published
from pillarbox.core.window import Settlement
from pillarbox.errors import LaneLost
from pillarbox.testing.contracts.store_defect import Broken, StoreDefect, into
from pillarbox.testing.memory import NOTHING, MemoryDatabase, Parked, Position, Row, Snapshot, Tick, Transaction
from pillarbox.testing.memory_records import MemoryStore

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


class _Changes(MemoryStore):
    """Changes every entry on its way out."""

    def change(self, entry: Entry) -> Entry:
        raise NotImplementedError

    async def entries(self, room: int) -> Sequence[Entry]:
        return [self.change(entry) for entry in await super().entries(room)]


@breaks("test_an_entry_has_everything_that_was_added")
class LosesTheHeaders(_Changes):
    def change(self, entry: Entry) -> Entry:
        return entry._replace(headers=None)


@breaks("test_an_entry_has_everything_that_was_added")
class ReadsAndWritesTheJsonAgain(_Changes):
    def change(self, entry: Entry) -> Entry:
        return entry._replace(data=json.dumps(json.loads(entry.data)))


@breaks("test_an_entry_has_everything_that_was_added")
class CutsInstantsToMilliseconds(_Changes):
    def change(self, entry: Entry) -> Entry:
        at = entry.occurred_at
        return (
            entry if at is None else entry._replace(occurred_at=at.replace(microsecond=at.microsecond // 1000 * 1000))
        )


@breaks("test_bytes_come_out_as_bytes")
class ReadsBytesAsText(_Changes):
    def change(self, entry: Entry) -> Entry:
        return entry._replace(data=entry.data.decode("latin-1") if isinstance(entry.data, bytes) else entry.data)


@breaks("test_an_aggregate_comes_out_in_the_order_of_its_commits")
class ReadsTheNewestFirst(MemoryStore):
    async def entries(self, room: int) -> Sequence[Entry]:
        return (await super().entries(room))[::-1]


@breaks("test_at_most_as_many_come_out_as_there_is_room")
class IgnoresTheRoom(MemoryStore):
    async def entries(self, room: int) -> Sequence[Entry]:
        return await super().entries(1000)


@breaks("test_no_room_gives_nothing_and_loses_nothing")
class GivesOutOneWithoutRoom(MemoryStore):
    async def entries(self, room: int) -> Sequence[Entry]:
        return await super().entries(max(room, 1))


@breaks("test_no_room_gives_nothing_and_loses_nothing")
class LosesWhatHasNoRoom(MemoryStore):
    """Reads whole pages, and notes all of a page as given out."""

    async def entries(self, room: int) -> Sequence[Entry]:
        return (await super().entries(max(room, 10)))[:room]


class _WritesAtOnce(Transaction):
    """A transaction whose rows are there before it ends."""

    def run(self, *statement: Any) -> list[Any]:
        answer = super().run(*statement)
        self.database.rows += [row for row in self._rows if row not in self.database.rows]
        return list(answer)

    def commit(self) -> None:
        self._rows = []
        super().commit()


@breaks(
    "test_what_was_rolled_back_never_comes_out",
    "test_a_transaction_that_commits_late_is_not_missed",
    "test_a_late_commit_is_not_missed_by_the_next_relay",
    "test_an_open_transaction_does_not_stall_others",
)
class ReadsWhatIsNotCommitted(MemoryStore):
    """Gives out rows of open transactions, and keeps them when they are rolled back."""

    def __init__(self, database: MemoryDatabase, *more: Any, **others: Any) -> None:
        super().__init__(database, *more, **others)
        database.begin = self._begin  # type: ignore[method-assign]

    def _begin(self) -> Transaction:
        database = self.database
        transaction = database._open[database._next_xid] = _WritesAtOnce(database, database._next_xid)
        database._next_xid += 1
        return transaction

    def _turn_pages(self, snapshot: Snapshot) -> None:
        super()._turn_pages(Snapshot(snapshot.xmax, frozenset()))


@breaks(
    "test_what_was_given_out_is_not_given_out_again",
    "test_an_aggregate_comes_out_in_the_order_of_its_commits",
    "test_taking_again_keeps_what_is_held_and_what_was_given_out",
)
class GivesOutWhatIsNotSettled(MemoryStore):
    """Reads from the stored position every time, as a query for unsettled rows does."""

    async def entries(self, room: int) -> Sequence[Entry]:
        self._memory.read.update({key: self.database.positions[key] for key in self._memory.read})
        return await super().entries(room)


@breaks(
    "test_what_was_not_settled_comes_out_again_after_a_crash",
    "test_the_position_moves_only_over_what_is_settled",
    "test_what_is_settled_later_moves_the_position_on",
    "test_a_former_holder_cannot_settle_and_changes_nothing",
    "test_after_a_release_taking_starts_from_what_is_stored",
    "test_through_a_chain_of_crashes_everything_comes_out",
    "test_what_was_resumed_but_not_settled_comes_out_again_after_a_crash",
)
class SettlesWhatItGivesOut(MemoryStore):
    def _give(self, row: Row, topic: str | None) -> Entry:
        entry = super()._give(row, topic)
        self.database.positions[row.lane, topic] = self._memory.read[row.lane, topic]
        return entry

    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        await super().settle(settlements)
        self.database.positions.update(self._memory.read)


@breaks(
    "test_the_position_moves_only_over_what_is_settled",
    "test_what_is_settled_later_moves_the_position_on",
    "test_through_a_chain_of_crashes_everything_comes_out",
)
class MovesThePositionPastUnsettledOnes(MemoryStore):
    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        await super().settle(settlements)
        for given in self._memory.given:
            self.database.positions[given.lane, given.topic] = given.reaches


@breaks(
    "test_what_was_settled_does_not_come_out_again_after_a_crash",
    "test_the_position_moves_only_over_what_is_settled",
    "test_what_is_settled_later_moves_the_position_on",
    "test_after_settling_twice_the_next_ones_follow",
    "test_pruning_moves_no_position",
)
class KeepsThePositionInMemory(MemoryStore):
    def _settle_given(self, entry: Entry, verdict: object) -> None:
        stored = dict(self.database.positions)
        super()._settle_given(entry, verdict)
        self.database.positions.update(stored)


@breaks("test_the_position_moves_only_over_what_is_settled", "test_what_is_settled_later_moves_the_position_on")
class StoresThePositionAtTheEndOfABatch(MemoryStore):
    def _settle_given(self, entry: Entry, verdict: object) -> None:
        stored = dict(self.database.positions)
        super()._settle_given(entry, verdict)
        if self._memory.given:
            self.database.positions.update(stored)


@breaks("test_settling_twice_parks_once")
class ParksAgainWhenSettledTwice(MemoryStore):
    def _settle_given(self, entry: Entry, verdict: object) -> None:
        again = not any(given.entry.position == entry.position for given in self._memory.given)
        super()._settle_given(entry, verdict)
        if again and not isinstance(verdict, Published):
            for row in [row for row in self.database.parked if row.entry.position == entry.position]:
                self.database.parked.append(Parked(row.id + 1000, entry, row.lane, row.state, row.line, None, 1, None))


@breaks("test_after_settling_twice_the_next_ones_follow")
class SettlesByCounting(MemoryStore):
    """Moves the position on by as many entries as were settled, whichever they are."""

    def _settle_given(self, entry: Entry, verdict: object) -> None:
        if self._memory.given:
            super()._settle_given(self._memory.given[0].entry, verdict)


@breaks("test_settling_a_retried_entry_twice_counts_one_attempt")
class CountsAgainWhenSettledTwice(MemoryStore):
    def _row_of(self, entry: Entry) -> Parked | None:
        return next((row for row in self.database.parked if row.entry.position == entry.position), None)


@breaks("test_settling_twice_parks_once", "test_after_settling_twice_the_next_ones_follow")
class TakesASecondSettlingForALoss(MemoryStore):
    def _settle_given(self, entry: Entry, verdict: object) -> None:
        if not self._memory.given or self._memory.given[0].entry.position != entry.position:
            raise LaneLost("somebody else has settled this")
        super()._settle_given(entry, verdict)


@breaks("test_settling_a_retried_entry_twice_counts_one_attempt")
class RefusesToSettleAParkedOneTwice(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        if self._row_of(entry) is None:
            raise Broken("that one is settled already")
        super()._settle_parked(entry, verdict)


@breaks("test_settling_nothing_changes_nothing")
class TakesNothingForEverything(MemoryStore):
    """Moves the position as far as it has read when no entry names a place."""

    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        await super().settle(settlements)
        if not settlements:
            self.database.positions.update(self._memory.read)


@breaks("test_settling_nothing_changes_nothing")
class WritesATickForNothing(MemoryStore):
    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        await super().settle(settlements)
        if not settlements:
            self.database.ticks.append(Tick(self.database.clock.now(), self.owner, frozenset(), 1))


@breaks("test_waiting_ends_when_its_time_is_up")
class WaitsUntilSomethingComes(MemoryStore):
    async def wait(self, seconds: float) -> None:
        await asyncio.Event().wait()


@breaks(
    "test_a_transaction_that_commits_late_is_not_missed",
    "test_a_late_commit_is_not_missed_by_the_next_relay",
)
class ReadsByAPlainCursor(MemoryStore):
    """Asks each lane for `id > last`, so that what commits late is behind the cursor."""

    def _turn(self, key: tuple[int, str | None], upto: Snapshot) -> None:
        self._memory.read[key] = self._memory.read[key]._replace(upto=upto)


@breaks("test_a_late_commit_is_not_missed_by_the_next_relay")
class StoresOnlyTheLastId(MemoryStore):
    """Reads by snapshots, but a position in the table is one number."""

    def _load(self, lane: int) -> None:
        super()._load(lane)
        for key, position in self._memory.read.items():
            if key[0] == lane and position.last:
                self._memory.read[key] = Position(NOTHING, self.database.snapshot(), position.last)


@breaks("test_a_transaction_that_commits_late_is_not_missed", "test_an_open_transaction_does_not_stall_others")
class ReadsUpToTheOldestOpenTransaction(MemoryStore):
    def _turn_pages(self, snapshot: Snapshot) -> None:
        super()._turn_pages(Snapshot(min(snapshot.in_progress, default=snapshot.xmax), frozenset()))
