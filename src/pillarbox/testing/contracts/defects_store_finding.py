"""Stores that find what was not asked for, or not in the order asked for."""

import re
from collections.abc import Sequence
from dataclasses import replace

from pillarbox.ports import DeadGroup, Query, Record
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory_records import MemoryStore

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


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


@breaks("test_events_are_found_by_a_text_in_their_error")
class IgnoresTheError(_Misreads):
    def misread(self, query: Query) -> Query:
        return replace(query, error=None)


@breaks("test_events_are_found_by_a_text_in_their_error")
class TakesTheErrorForAPattern(MemoryStore):
    """As LIKE would: a percent sign and an underline stand for anything, and case is ignored."""

    async def find(self, query: Query) -> Sequence[Record]:
        found = await super().find(replace(query, error=None))
        pattern = (query.error or "").replace("%", ".*").replace("_", ".")
        return [record for record in found if re.search(pattern, record.last_error or "", re.IGNORECASE)]


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


# Groups.


@breaks(
    "test_dead_events_are_grouped_by_the_first_line_of_their_error",
    "test_errors_that_name_their_own_event_are_one_group",
)
class GroupsByTheWholeError(MemoryStore):
    async def group_dead(self, query: Query) -> Sequence[DeadGroup]:
        dead = [row for row in self.database.parked if row.state == "dead"]
        return [DeadGroup(row.last_error or "", 1, row.parked_at, row.parked_at, row.entry.event_id) for row in dead]


@breaks("test_only_the_dead_events_that_the_query_means_are_grouped")
class GroupsEverything(MemoryStore):
    async def group_dead(self, query: Query) -> Sequence[DeadGroup]:
        return await super().group_dead(Query(limit=query.limit))


@breaks("test_what_is_dead_no_more_is_in_no_group")
class GroupsWhatWasDeadOnce(MemoryStore):
    async def group_dead(self, query: Query) -> Sequence[DeadGroup]:
        before = [row.state for row in self.database.parked]
        for row in self.database.parked:
            row.state = "dead" if row.last_error else row.state
        groups = await super().group_dead(query)
        for row, state in zip(self.database.parked, before, strict=True):
            row.state = state
        return groups


@breaks("test_an_event_whose_two_replays_failed_is_one_dead_event")
class CountsEveryRowOfTheLot(MemoryStore):
    async def group_dead(self, query: Query) -> Sequence[DeadGroup]:
        groups = await super().group_dead(query)
        count = sum(row.state == "dead" for row in self.database.parked)
        return [replace(group, events=count) for group in groups]
