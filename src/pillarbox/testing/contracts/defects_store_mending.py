"""Stores that retry, drop or replay what they should not, or not as they should."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pillarbox.core.entry import Entry
from pillarbox.ports import Deed, Query, Record
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory import Parked, Row
from pillarbox.testing.memory_records import MemoryStore

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


# Retry.


@breaks("test_a_dead_event_that_is_retried_comes_out_with_all_its_tries")
class RetriesWithTheAttemptsOfBefore(MemoryStore):
    async def retry(self, query: Query) -> int:
        attempts = {row.id: row.attempts for row in self.database.parked}
        count = await super().retry(query)
        for row in self.database.parked:
            row.attempts = attempts[row.id]
        return count


@breaks("test_a_dead_event_that_is_retried_comes_out_with_all_its_tries", "test_only_what_the_query_says_is_retried")
class SaysNotHowManyItRetried(MemoryStore):
    async def retry(self, query: Query) -> int:
        await super().retry(query)
        return 0


@breaks("test_a_waiting_event_that_is_retried_need_not_wait")
class RetriesOnlyDeadOnes(MemoryStore):
    async def retry(self, query: Query) -> int:
        return await super().retry(replace(query, status=("dead",)))


@breaks("test_followers_stay_blocked_when_the_query_means_them_too")
class RetriesFollowersToo(MemoryStore):
    async def retry(self, query: Query) -> int:
        meant = {record.event_id for record in await self.find(query) if record.status == "blocked"}
        count = await super().retry(query)
        for row in self.database.parked:
            if row.state == "blocked" and row.entry.event_id in meant:
                row.state, row.due_at, count = "retrying", self.database.clock.now(), count + 1
        return count


@breaks("test_a_waiting_event_that_is_retried_need_not_wait")
class RetriesWhenItWouldAnyway(MemoryStore):
    async def retry(self, query: Query) -> int:
        due = {row.id: row.due_at for row in self.database.parked}
        count = await super().retry(query)
        for row in self.database.parked:
            row.due_at = due[row.id] or row.due_at
        return count


@breaks("test_followers_follow_a_dead_event_that_is_retried")
class ParksARetriedOneBehindItsFollowers(MemoryStore):
    async def retry(self, query: Query) -> int:
        count = await super().retry(query)
        self.database.parked.sort(key=lambda row: row.state == "retrying")
        return count


@breaks("test_followers_follow_a_dead_event_that_is_retried")
class RetriesOutsideTheOrder(MemoryStore):
    async def retry(self, query: Query) -> int:
        count = await super().retry(query)
        for row in self.database.parked:
            row.line = None if row.state == "retrying" else row.line
        return count


@breaks("test_a_skipped_event_that_is_retried_blocks_nobody")
class PutsASkippedOneBackIntoItsLine(MemoryStore):
    async def retry(self, query: Query) -> int:
        count = await super().retry(query)
        for row in self.database.parked:
            row.line = self._topics.line_of(row.entry)
        return count


@breaks("test_only_what_the_query_says_is_retried")
class RetriesEverything(MemoryStore):
    async def retry(self, query: Query) -> int:
        return await super().retry(Query())


@breaks("test_only_what_died_of_that_error_is_retried_or_dropped")
class RetriesWhateverItDiedOf(MemoryStore):
    async def retry(self, query: Query) -> int:
        return await super().retry(replace(query, error=None))


@breaks("test_only_what_died_of_that_error_is_retried_or_dropped")
class DropsWhateverItDiedOf(MemoryStore):
    async def drop(self, query: Query) -> int:
        return await super().drop(replace(query, error=None))


# Edit.


@breaks(
    "test_an_edited_event_goes_with_what_was_put_in_and_its_followers_follow",
    "test_a_replay_of_an_edited_event_is_of_what_was_published",
)
class RetriesWithWhatWasAdded(MemoryStore):
    async def edit(self, event_id: str, data: str | bytes) -> int:
        return await self.retry(Query(ids=(event_id,)))


@breaks("test_an_edited_event_goes_with_what_was_put_in_and_its_followers_follow")
class EditsTheWholeLine(MemoryStore):
    async def edit(self, event_id: str, data: str | bytes) -> int:
        count = await super().edit(event_id, data)
        for row in self.database.parked:
            row.entry = row.entry._replace(data=data)
        return count


@breaks("test_what_an_edited_event_carried_before_is_kept", "test_bytes_are_edited_as_bytes")
class EditsTheLog(MemoryStore):
    async def edit(self, event_id: str, data: str | bytes) -> int:
        count = await super().edit(event_id, data)
        self.database.rows = [
            row._replace(entry=row.entry._replace(data=data)) if row.entry.event_id == event_id else row
            for row in self.database.rows
        ]
        return count


@breaks("test_what_an_edited_event_carried_before_is_kept")
class EditsInSecret(MemoryStore):
    async def edit(self, event_id: str, data: str | bytes) -> int:
        count = await super().edit(event_id, data)
        self.database.audit.pop()
        return count


@breaks("test_only_a_dead_event_is_edited")
class EditsWhateverIsParked(MemoryStore):
    async def edit(self, event_id: str, data: str | bytes) -> int:
        rows = [row for row in self.database.parked if row.entry.event_id == event_id]
        for row in rows:
            row.entry = row.entry._replace(data=data)
        return await super().edit(event_id, data) or len(rows)


@breaks(
    "test_a_replay_of_an_edited_event_is_of_what_was_published",
    "test_the_archive_has_an_edited_event_as_it_was_published",
)
class ReplaysWhatWasAdded(MemoryStore):
    def _as_published(self, row: Row) -> Entry:
        return row.entry


# Drop.


@breaks("test_a_dropped_event_lets_its_followers_go")
class LeavesFollowersOfADroppedOneStuck(MemoryStore):
    def _free(self, rows: list[Parked], now: datetime) -> list[Parked]:
        dropped = {row.line for row in self.database.parked if row.state == "dropped"}
        return [] if rows[0].line in dropped else super()._free(rows, now)


@breaks("test_a_dropped_event_lets_its_followers_go")
class DropsTheWholeLine(MemoryStore):
    async def drop(self, query: Query) -> int:
        count = await super().drop(query)
        lines = {row.line for row in self.database.parked if row.state == "dropped"}
        for row in self.database.parked:
            row.state = "dropped" if row.line in lines else row.state
        return count


@breaks("test_a_dropped_event_stays_visible_as_dropped")
class DropsWithoutATrace(MemoryStore):
    """Deletes the parked row, so that the event looks published."""

    async def drop(self, query: Query) -> int:
        count = await super().drop(query)
        self.database.parked = [row for row in self.database.parked if row.state != "dropped"]
        return count


@breaks("test_only_dead_events_are_dropped_unless_named")
class DropsWhateverMatches(MemoryStore):
    async def drop(self, query: Query) -> int:
        found = await self.find(query)
        return await super().drop(replace(query, ids=[record.event_id for record in found]))


@breaks("test_only_dead_events_are_dropped_unless_named")
class DropsOnlyDeadOnes(MemoryStore):
    async def drop(self, query: Query) -> int:
        return await super().drop(replace(query, status=("dead",)))


# The audit.


@breaks("test_every_deed_is_in_the_audit")
class WritesDownOnlyWhatMetSomething(MemoryStore):
    def _audit(self, what: str, count: int, who: str | None = None) -> int:
        return super()._audit(what, count, who) if count else count


@breaks("test_every_deed_is_in_the_audit")
class ForgetsWhoPaused(MemoryStore):
    def _audit(self, what: str, count: int, who: str | None = None) -> int:
        return super()._audit(what, count)


@breaks("test_every_deed_is_in_the_audit")
class ReadsTheAuditFromItsBeginning(MemoryStore):
    async def deeds(self, since: datetime | None = None, limit: int = 100) -> Sequence[Deed]:
        return list(reversed(await super().deeds(since, limit)))


@breaks("test_every_deed_is_in_the_audit")
class ReadsTheWholeAuditAlways(MemoryStore):
    async def deeds(self, since: datetime | None = None, limit: int = 100) -> Sequence[Deed]:
        return await super().deeds()


@breaks("test_looking_and_relaying_are_not_in_the_audit")
class WritesDownWhoLooked(MemoryStore):
    async def find(self, query: Query) -> Sequence[Record]:
        self._audit("find", 0)
        return await super().find(query)
