"""Stores that replay what they should not, not as they should, or not from where they were."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from pillarbox.core.entry import Entry
from pillarbox.core.retry import RetryAt
from pillarbox.core.window import Blocked
from pillarbox.ports import Query, Record, Replay, Retention
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory import Parked
from pillarbox.testing.memory_records import MANY, MemoryStore

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


@breaks("test_a_replayed_event_comes_out_again_outside_the_order")
class ReplaysInOrder(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        replay = await super().replay(id)
        for row in self.database.parked:
            row.line, row.state = self._topics.line_of(row.entry), "retrying"
        return replay


@breaks("test_a_replayed_event_comes_out_again_outside_the_order")
class ReplaysUnderNewIds(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        replay = await super().replay(id)
        for row in self.database.parked:
            row.entry = row.entry._replace(event_id=str(uuid4()))
        return replay


@breaks(
    "test_a_copy_that_failed_holds_back_the_later_ones_of_its_aggregate",
    "test_it_holds_back_those_that_come_in_a_later_replay",
    "test_a_dead_copy_holds_them_back_until_somebody_cares",
)
class LetsCopiesOvertakeOneThatFailed(MemoryStore):
    def _holds_copies(self, row: Parked) -> bool:
        return False


@breaks("test_a_dead_copy_holds_them_back_until_somebody_cares")
class LetsCopiesOvertakeADeadOne(MemoryStore):
    def _holds_copies(self, row: Parked) -> bool:
        return row.state == "retrying"


@breaks("test_two_copies_of_one_event_never_come_out_together")
class GivesOutTwoCopiesOfOneEvent(MemoryStore):
    def _in_turn(self, rows: list[Parked]) -> list[Parked]:
        chosen = super()._in_turn(rows)
        positions = {row.entry.position for row in chosen}
        return [row for row in rows if row in chosen or row.entry.position in positions]


@breaks("test_a_copy_that_is_settled_once_more_settles_no_later_one")
class SettlesAnyCopyOfTheEvent(MemoryStore):
    def _row_of(self, entry: Entry) -> Parked | None:
        rows = (row for row in self.database.parked if row.id in self._memory.parked_out)
        return next((row for row in rows if row.entry.position == entry.position), None)


@breaks("test_who_retries_a_dead_copy_leaves_a_second_one_where_it_is")
class RetriesEveryCopyOfAnEvent(MemoryStore):
    async def retry(self, query: Query) -> int:
        mended = {row.entry.position for row in self._parked_by(query, ("dead",))}
        count = await super().retry(query)
        for row in self.database.parked:
            if row.entry.position in mended and row.state == "delayed":
                row.state, row.due_at = "retrying", self.database.clock.now()
        return count


@breaks("test_while_copies_of_an_aggregate_are_out_no_later_ones_come")
class GivesOutCopiesBehindCopies(MemoryStore):
    def _in_turn(self, rows: list[Parked]) -> list[Parked]:
        out, self._memory.parked_out = self._memory.parked_out, set()
        try:
            return super()._in_turn(rows)
        finally:
            self._memory.parked_out = out


@breaks("test_a_copy_that_failed_holds_back_nothing_new")
class BlocksTheLogBehindACopy(MemoryStore):
    def _refresh_blocked(self) -> None:
        super()._refresh_blocked()
        failed = [row for row in self.database.parked if row.replay is not None and row.state == "retrying"]
        self._memory.blocked |= {line for row in failed if (line := self._topics.line_of(row.entry)) is not None}

    async def entries(self, room: int) -> Sequence[Entry]:
        found = await super().entries(room)
        return [entry for entry in found if self._topics.line_of(entry) not in self.blocked]


@breaks("test_a_copy_that_failed_holds_back_the_later_ones_of_its_aggregate")
class PutsCopiesInLine(MemoryStore):
    """Parks what waits behind a copy that failed like what waits in a line; nobody ever takes it out again."""

    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        super()._settle_parked(entry, verdict)
        if row is not None and isinstance(verdict, Blocked):
            row.state = "blocked"


@breaks("test_a_replayed_event_is_published_before_and_after")
class ShowsAReplayedOneAsDelayed(MemoryStore):
    def _is_replay(self, parked: Parked) -> bool:
        return False


@breaks("test_a_replay_that_failed_for_good_can_be_dropped")
class ShowsADroppedReplayAsNeverPublished(MemoryStore):
    def _is_replay(self, parked: Parked) -> bool:
        return super()._is_replay(parked) and parked.state != "dropped"


@breaks("test_a_replay_that_failed_for_good_can_be_dropped")
class HidesAReplayThatFailed(MemoryStore):
    def _is_replay(self, parked: Parked) -> bool:
        return parked.replay is not None


@breaks("test_a_replayed_event_is_published_before_and_after", "test_only_published_events_are_replayed")
class ReplaysByMakingItPendingAgain(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        replay = self.database.replays[id].replay
        found = await self.find(replay.query)
        for row in [row for row in self.database.rows if row.entry.event_id in {record.event_id for record in found}]:
            transaction = self.database.begin()
            transaction._rows.append(row._replace(xid=transaction.xid))
            self.database.rows.remove(row)
            transaction.commit()
        return replace(replay, events=len(found), finished_at=self.database.clock.now())


@breaks("test_events_are_replayed_in_the_order_of_the_log")
class ReplaysTheNewestFirst(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        replay = await super().replay(id)
        self.database.parked.sort(key=lambda row: row.entry.position, reverse=True)
        return replay


@breaks("test_an_event_replayed_again_carries_the_id_of_the_replay", "test_all_batches_carry_the_one_id")
class ForgetsTheIdOfTheReplay(MemoryStore):
    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        return await super().begin_replay(id, query, to=to, rate=rate)


@breaks("test_an_event_replayed_again_carries_the_id_of_the_replay")
class ForgetsTheIdOfTheReplayOnceItFailed(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        super()._settle_parked(entry, verdict)
        if row is not None and isinstance(verdict, RetryAt):
            row.replay = ""


@breaks("test_an_event_that_is_only_replayed_carries_no_id_of_a_replay")
class GivesEveryReplayAnId(MemoryStore):
    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        return await super().begin_replay(id, query, again=True, to=to, rate=rate)


@breaks("test_an_event_that_is_only_replayed_carries_no_id_of_a_replay")
class KeepsTheIdOfTheFirstReplay(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        replay = await super().replay(id)
        first = next((row.replay for row in self.database.parked if row.replay), "")
        for row in self.database.parked:
            row.replay = first if row.replay is not None else None
        return replay


@breaks("test_a_replay_may_go_to_another_topic")
class ReplaysToTheOldTopic(MemoryStore):
    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        return await super().begin_replay(id, query, again=again, rate=rate)


@breaks("test_a_replay_may_go_to_another_topic")
class MovesWhatIsReplayed(MemoryStore):
    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        self.database.rows = [row._replace(entry=row.entry._replace(topic=to)) for row in self.database.rows if to]
        return await super().begin_replay(id, query, again=again, to=to, rate=rate)


@breaks("test_a_replay_comes_out_at_the_rate_asked_for")
class ReplaysAtOnce(MemoryStore):
    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        return await super().begin_replay(id, query, again=again, to=to)


@breaks("test_a_replay_comes_out_at_the_rate_asked_for")
class TakesTheRateForAPause(MemoryStore):
    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        return await super().begin_replay(id, query, again=again, to=to, rate=1 / rate if rate else None)


@breaks("test_only_published_events_are_replayed")
class ReplaysWhatWasNeverPublished(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        replay = self.database.replays[id].replay
        rows = [
            Parked(1000 + row.entry.position, row.entry, row.lane, "delayed", None, self.database.clock.now(), 0, None)
            for row in self.database.rows
        ]
        self.database.parked += rows
        return replace(replay, events=len(rows), finished_at=self.database.clock.now())


# Left off, and gone on with.


@breaks("test_a_replay_that_only_began_has_sent_nothing")
class ReplaysWhenItBegins(MemoryStore):
    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        replay = await super().begin_replay(id, query, again=again, to=to, rate=rate)
        await self.replay(id)
        return replay


@breaks("test_another_process_goes_on_where_the_first_one_was_killed")
class SendsTheLastOfABatchTwice(MemoryStore):
    """Moves its place by one too few."""

    async def replay(self, id: str) -> Replay | None:
        replay = await super().replay(id)
        if replay is not None and replay.finished_at is None:
            self.database.replays[id].replay = replace(replay, place=replay.place - 1)
        return replay


@breaks("test_another_process_goes_on_where_the_first_one_was_killed", "test_the_rate_holds_across_batches")
class SkipsWhatFollowsABatch(MemoryStore):
    """Moves its place by one too many."""

    async def replay(self, id: str) -> Replay | None:
        replay = await super().replay(id)
        if replay is not None and replay.finished_at is None:
            self.database.replays[id].replay = replace(replay, place=replay.place + 1)
        return replay


@breaks("test_another_process_goes_on_where_the_first_one_was_killed")
class KeepsItsReplaysInMemory(MemoryStore):
    async def find_replay(self, id: str) -> Replay | None:
        replay = await super().find_replay(id)
        return replay if self.owner == "operator" else None


@breaks("test_a_finished_replay_sends_nothing_more")
class BeginsAFinishedReplayAgain(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        row = self.database.replays.get(id)
        if row is not None and row.replay.finished_at is not None:
            row.replay = replace(row.replay, place=row.replay.first, finished_at=None)
        return await super().replay(id)


@breaks("test_what_is_archived_in_between_is_not_left_out")
class ReplaysFromTheLogAlone(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        archive, self.database.archive = self.database.archive, []
        try:
            return await super().replay(id)
        finally:
            self.database.archive = archive


@breaks("test_what_is_added_after_it_began_does_not_belong_to_it")
class ReplaysWhatCameLaterToo(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        if row := self.database.replays.get(id):
            row.replay = replace(row.replay, upto=MANY)
        return await super().replay(id)


@breaks("test_the_rate_holds_across_batches")
class BeginsEachBatchAtOnce(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        if row := self.database.replays.get(id):
            row.due_at = self.database.clock.now()
        return await super().replay(id)


@breaks("test_a_replay_goes_no_further_than_its_limit")
class TakesTheLimitForOneOfEachBatch(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        replay = await super().replay(id)
        if replay is not None and replay.events == replay.query.limit:
            last = max(row.entry.position for row in self.database.parked)
            self.database.replays[id].replay = replay = replace(replay, place=last, events=0, finished_at=None)
            again = await super().replay(id)
            return again and replace(again, events=again.query.limit)
        return replay


@breaks("test_a_replay_of_nothing_is_finished")
class GoesOnWithNothing(MemoryStore):
    async def replay(self, id: str) -> Replay | None:
        replay = await super().replay(id)
        return replay and replace(replay, finished_at=replay.finished_at if replay.events else None)


@breaks("test_the_audit_counts_a_replay_in_one_line_for_each_who_went_on")
class LetsTheFirstOneAnswerForAll(MemoryStore):
    async def resume_replay(self, id: str) -> None:
        pass


@breaks("test_the_audit_counts_a_replay_in_one_line_for_each_who_went_on", "test_the_audit_counts_a_prune_in_one_line")
class CountsNothing(MemoryStore):
    def _count_deed(self, deed: int, count: int) -> None:
        pass


@breaks("test_the_audit_counts_a_prune_in_one_line")
class WritesDownEachBatchOfAPrune(MemoryStore):
    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        count = await super().prune(retention)
        self._audit("prune", count)
        return count


@breaks("test_events_are_found_up_to_a_position")
class FindsBeyondAPosition(MemoryStore):
    async def find(self, query: Query) -> Sequence[Record]:
        return await super().find(replace(query, upto=None))
