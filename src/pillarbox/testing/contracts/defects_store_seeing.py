"""Stores that show people what is not so, or find what was not asked for."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pillarbox.ports import Query, Record, Stats, Status
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory import Row
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


@breaks("test_what_was_settled_is_published_with_its_time")
class ShowsTheFirstPublishingAsTheLast(MemoryStore):
    async def stats(self) -> Stats:
        first = min((tick.at for tick in self.database.ticks), default=None)
        return replace(await super().stats(), last_published_at=first)


@breaks("test_what_is_parked_is_counted_by_its_state")
class CountsDelayedOnesAsRetrying(MemoryStore):
    async def stats(self) -> Stats:
        stats = await super().stats()
        return replace(stats, retrying=stats.retrying + stats.delayed, delayed=0)


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


# Statuses and times.


@breaks(
    "test_what_was_given_out_is_pending_until_it_is_settled",
    "test_a_former_holder_cannot_settle_and_changes_nothing",
)
class TakesWhatIsInFlightForPublished(MemoryStore):
    def _status(self, row: Row) -> tuple[Status, datetime | None]:
        read = self._memory.read.get((row.lane, row.entry.topic)) or self._memory.read.get((row.lane, None))
        status, at = super()._status(row)
        return ("published", at) if status == "pending" and read is not None and read.covers(row) else (status, at)


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


@breaks("test_a_record_has_everything_that_was_added", "test_events_are_found_by_what_they_are")
class ShowsTheAggregateWithoutItsType(MemoryStore):
    def _record(self, row: Row) -> Record:
        return replace(super()._record(row), aggregate=("", row.entry.aggregate_id))


# Finding.


class _Misreads(MemoryStore):
    """Takes a query for another one."""

    def misread(self, query: Query) -> Query:
        raise NotImplementedError

    async def find(self, query: Query) -> Sequence[Record]:
        return await super().find(self.misread(query))


@breaks("test_events_are_found_by_what_they_are")
class IgnoresTheIds(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, ids=())


@breaks("test_events_are_found_by_what_they_are")
class IgnoresTheType(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, type=None)


@breaks("test_events_are_found_by_what_they_are")
class IgnoresTheTopic(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, topic=None)


@breaks("test_events_are_found_by_what_they_are")
class IgnoresTheAggregate(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, aggregate=None)


@breaks("test_events_are_found_by_their_status")
class IgnoresTheStatus(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, status=())


@breaks("test_events_are_found_by_their_status")
class LooksOnlyForTheFirstStatus(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, status=query.status[:1])


@breaks("test_events_are_found_by_their_time")
class IgnoresSince(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, since=None)


@breaks("test_events_are_found_by_their_time")
class IgnoresUntil(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, until=None)


@breaks("test_events_are_listed_in_the_order_asked_for")
class IgnoresTheLimit(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, limit=1000)


@breaks("test_events_are_listed_in_the_order_asked_for")
class IgnoresAfter(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, after=None)


@breaks("test_events_are_listed_in_the_order_asked_for", "test_events_are_found_by_their_status")
class ListsTheNewestFirstAlways(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, newest_first=True)


@breaks("test_events_are_listed_in_the_order_asked_for")
class LimitsBeforeItSorts(MemoryStore):
    async def find(self, query: Query) -> Sequence[Record]:
        oldest = await super().find(replace(query, newest_first=False))
        return sorted(oldest, key=lambda record: record.position, reverse=query.newest_first)
