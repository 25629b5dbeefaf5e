"""Stores that show people what is not so."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pillarbox.core.entry import Entry
from pillarbox.ports import Query, Record, Stats, Status
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory import Parked, Row
from pillarbox.testing.memory_records import MemoryStore

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


# Stats.


@breaks("test_what_was_added_is_pending")
class CountsOnlyItsOwnLanes(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return stats if self._memory.epochs else replace(stats, pending=0, oldest_pending_at=None)


@breaks("test_what_was_added_is_pending", "test_a_paused_event_is_pending")
class PutsEveryTopicTogether(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, pending_by_topic={"": stats.pending})


@breaks("test_what_was_added_is_pending")
class IsNeverSureOfItsCount(MemoryStore):
    async def stats(self) -> Stats:
        return replace(await super().stats(), pending_exact=False)


@breaks("test_what_was_paused_is_counted_when_it_is_published")
class CountsNothingAfterAPause(MemoryStore):
    resumed = False

    async def resume(self, topic: str) -> bool:
        self.resumed = True
        return await super().resume(topic)

    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, published_lately=0) if self.resumed else stats


@breaks("test_the_age_of_what_is_pending_is_that_of_the_oldest")
class ShowsTheNewestAsTheOldest(MemoryStore):
    async def stats(self) -> Stats:
        pending = await self.find(Query(status=("pending",)))
        newest = max((record.created_at for record in pending), default=None)
        return replace(await super().stats(), oldest_pending_at=newest)


@breaks("test_the_age_of_what_is_pending_is_that_of_the_oldest")
class ShowsTheOldestOfAllAsPending(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        oldest = min((row.entry.created_at for row in self.database.rows), default=None)
        return replace(stats, oldest_pending_at=oldest if stats.pending else None)


@breaks("test_the_oldest_of_each_topic_is_known")
class ShowsAnotherAgeForEveryTopic(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        oldest = max(stats.oldest_by_topic.values(), default=self.database.clock.now()) + timedelta(seconds=1)
        return replace(stats, oldest_by_topic=dict.fromkeys(stats.oldest_by_topic, oldest))


@breaks("test_what_was_added_in_the_last_minute_is_counted_by_its_topic")
class CountsAllThatWasEverAdded(MemoryStore):
    async def stats(self) -> Stats:
        topics = Counter(row.entry.topic for row in self.database.rows)
        return replace(await super().stats(), added_by_topic=dict(topics))


@breaks("test_of_many_that_were_added_the_newest_are_counted")
class LooksAtTheWholeLogForWhatWasAdded(MemoryStore):
    async def stats(self) -> Stats:
        topics = Counter(row.entry.topic for row in self.database.rows)
        return replace(await super().stats(), added_by_topic=dict(topics), added_since=None)


@breaks("test_what_is_parked_is_counted_by_its_topic")
class CountsOnlyTheDeadOfATopic(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        dead: dict[str, dict[Status, int]] = {
            topic: {"dead": of["dead"]} for topic, of in stats.parked_by_topic.items() if "dead" in of
        }
        return replace(stats, parked_by_topic=dead)


@breaks("test_lines_behind_a_failure_are_counted_once_each")
class CountsEveryParkedEventAsALine(MemoryStore):
    async def stats(self) -> Stats:
        return replace(await super().stats(), blocked_lines=sum(row.active for row in self.database.parked))


@breaks("test_what_was_published_in_the_last_minute_is_counted")
class CountsAllThatWasEverPublished(MemoryStore):
    async def stats(self) -> Stats:
        published = sum(tick.published for tick in self.database.ticks)
        return replace(await super().stats(), published_lately=published)


@breaks("test_what_was_settled_is_published_with_its_time")
class ShowsTheFirstPublishingAsTheLast(MemoryStore):
    async def stats(self) -> Stats:
        first = min((tick.at for tick in self.database.ticks), default=None)
        return replace(await super().stats(), last_published_at=first)


@breaks("test_the_last_publishing_may_be_that_of_a_parked_one", "test_a_failure_is_no_publishing")
class TakesEveryMoveOfThePositionForAPublishing(MemoryStore):
    async def stats(self) -> Stats:
        moved = max((tick.at for tick in self.database.ticks if tick.covered), default=None)
        return replace(await super().stats(), last_published_at=moved)


@breaks("test_what_is_parked_is_counted_by_its_state")
class CountsDelayedOnesAsRetrying(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, retrying=stats.retrying + stats.delayed, delayed=0)


@breaks("test_what_is_delayed_is_overdue_once_its_time_has_come")
class TakesWhatIsDelayedForOverdue(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, overdue_by_topic={"orders": stats.delayed} if stats.delayed else {})


@breaks("test_copies_of_a_replay_are_counted_among_what_is_delayed")
class TakesWhatIsDelayedForCopies(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, copies=stats.delayed)


@breaks("test_copies_of_a_replay_are_counted_among_what_is_delayed")
class TakesEveryCopyForOverdue(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, copies_overdue=stats.copies)


@breaks("test_what_is_parked_is_counted_by_its_state")
class CountsBlockedOnesAsPending(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, pending=stats.pending + stats.blocked)


@breaks("test_people_see_the_heads_of_blocked_lines")
class ShowsFollowersAsHeads(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, heads=[*stats.heads, *await self.find(Query(status=("blocked",)))])


@breaks("test_people_see_the_heads_of_blocked_lines")
class ShowsOnlyRetryingHeads(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, heads=[head for head in stats.heads if head.status == "retrying"])


@breaks("test_people_see_the_oldest_20_heads_in_their_order")
class ShowsTheNewestHeadsFirst(MemoryStore):
    def _rows(self, parked: Sequence[Parked]) -> Iterator[Row]:
        return reversed(list(super()._rows(parked)))


@breaks("test_people_see_the_oldest_20_heads_in_their_order")
class ShowsHeadsAsTheyWereParked(MemoryStore):
    async def stats(self) -> Stats:
        parked = [row for head in self._heads() for row in self._rows([head])]
        return replace(await super().stats(), heads=[self._record(row) for row in parked[:20]])


@breaks("test_people_see_the_oldest_20_heads_in_their_order")
class ShowsEveryHead(MemoryStore):
    async def stats(self) -> Stats:
        heads = [self._record(row) for row in self._rows(self._heads())]
        return replace(await super().stats(), heads=heads)


@breaks("test_what_holds_nobody_back_is_no_head")
class ShowsWhateverFailedAsAHead(MemoryStore):
    def _heads(self) -> list[Parked]:
        return [row for row in self.database.parked if row.state in ("retrying", "dead")]


# Statuses and times.


@breaks(
    "test_what_was_given_out_is_pending_until_it_is_settled",
    "test_a_former_holder_cannot_settle_and_changes_nothing",
)
class TakesWhatIsInFlightForPublished(MemoryStore):
    def _covers(self, row: Row) -> bool:
        read = self._memory.read.get((row.lane, row.entry.topic)) or self._memory.read.get((row.lane, None))
        return super()._covers(row) or (read is not None and read.covers(row))


@breaks("test_what_was_settled_is_published_with_its_time", "test_a_replayed_event_is_published_before_and_after")
class DatesEverythingByTheLastTick(MemoryStore):
    def _status(self, row: Row) -> tuple[Status, datetime | None]:
        status, at = super()._status(row)
        return status, self.database.clock.now() if at else None


@breaks("test_an_event_published_after_a_pause_has_that_time")
class DatesThePublishingByTheCreation(MemoryStore):
    def _record(self, row: Row) -> Record:
        record = super()._record(row)
        return replace(record, published_at=record.created_at) if record.status == "published" else record


@breaks(
    "test_what_was_parked_is_published_with_the_time_it_went",
    "test_what_was_delayed_is_published_with_the_time_it_went",
    "test_its_age_is_that_of_the_publishing_not_of_the_parking",
)
class DatesAParkedOneByItsParking(MemoryStore):
    def _status(self, row: Row) -> tuple[Status, datetime | None]:
        status, at = super()._status(row)
        if status == "published":
            at = next(tick.at for tick in self.database.ticks if row.entry.position in tick.covered)
        return status, at


@breaks("test_what_was_parked_is_published_with_the_time_it_went")
class DatesOneOutsideTheOrderByItsParking(MemoryStore):
    """Takes whatever was parked without a line for a replay."""

    def _is_replay(self, parked: Parked) -> bool:
        free = parked.line is None and parked.entry.available_at is None
        return free and parked.state in ("delayed", "published")


@breaks(
    "test_what_was_parked_is_published_with_the_time_it_went",
    "test_what_was_delayed_is_published_with_the_time_it_went",
)
class KeepsNoTimeOfAParkedOne(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        super()._settle_parked(entry, verdict)
        if row is not None:
            row.settled_at = None


@breaks("test_what_was_delayed_is_published_with_the_time_it_went")
class DatesADelayedOneByThePlan(MemoryStore):
    def _record(self, row: Row) -> Record:
        record = super()._record(row)
        return replace(record, published_at=record.available_at if record.published_at else None)


@breaks("test_what_was_delayed_is_published_with_the_time_it_went")
class ShowsADelayedOneAsDelayedForEver(MemoryStore):
    def _record(self, row: Row) -> Record:
        record = super()._record(row)
        return replace(record, status="delayed") if record.available_at is not None else record


@breaks("test_a_dropped_event_stays_visible_as_dropped")
class DatesADroppedOneAsPublished(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), published_at=self._status(row)[1])


@breaks("test_what_was_added_is_pending", "test_events_are_found_by_their_status")
class TakesEverythingForPublished(MemoryStore):
    def _record(self, row: Row) -> Record:
        record = super()._record(row)
        return replace(record, status="published") if record.status == "pending" else record


# Records.


@breaks("test_a_blocked_event_names_the_head_of_its_line")
class BlamesABlockedEventItself(MemoryStore):
    def _record(self, row: Row) -> Record:
        record = super()._record(row)
        return replace(record, blocked_by=record.blocked_by and record.event_id)


@breaks("test_a_retrying_event_shows_when_it_is_tried_again", "test_a_delayed_entry_does_not_come_out_before")
class HidesTheNextTry(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), next_try_at=None)


@breaks("test_a_record_has_everything_that_was_added")
class ShowsNoHeaders(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), headers={})


@breaks("test_a_record_has_everything_that_was_added", "test_what_is_archived_is_shown_as_before")
class DatesTheFactByTheLook(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), occurred_at=self.database.clock.now())


@breaks("test_a_record_has_everything_that_was_added")
class ShowsNoNumber(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), number=None)


@breaks("test_a_record_has_everything_that_was_added")
class ShowsNoKey(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), idempotency_key=None)


@breaks("test_a_record_has_everything_that_was_added")
class HidesTheTimeOfTheFact(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), occurred_at=None)


@breaks("test_a_record_has_the_time_from_which_it_may_go")
class HidesTheTimeFromWhichItMayGo(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), available_at=None)


@breaks("test_a_record_of_bytes_has_them_with_their_type")
class ShowsBytesAsText(MemoryStore):
    def _record(self, row: Row) -> Record:
        record = super()._record(row)
        return replace(record, data=record.data.decode("latin-1") if isinstance(record.data, bytes) else record.data)


@breaks("test_a_record_of_bytes_has_them_with_their_type")
class ShowsOnlyText(MemoryStore):
    def _record(self, row: Row) -> Record:
        record = super()._record(row)
        return replace(record, data="" if isinstance(record.data, bytes) else record.data)


@breaks("test_a_record_of_bytes_has_them_with_their_type")
class TakesEverythingForJson(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), content_type="application/json")


@breaks("test_a_record_has_everything_that_was_added", "test_events_are_found_by_what_they_are")
class ShowsTheAggregateWithoutItsType(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), aggregate=("", row.entry.aggregate_id))
