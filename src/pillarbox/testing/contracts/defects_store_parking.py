"""Stores whose parking lot loses, lets pass or holds what it should not."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pillarbox.core.entry import Entry
from pillarbox.core.retry import Dead, Published, RetryAt
from pillarbox.core.window import Blocked, Delayed
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory import Parked
from pillarbox.testing.memory_records import MemoryStore

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


# When something comes out.


@breaks(
    "test_a_failed_entry_comes_out_again_when_it_is_due",
    "test_every_failure_is_counted_with_its_error",
    "test_a_parked_entry_that_was_not_settled_comes_out_again_after_a_crash",
)
class NeverRetries(MemoryStore):
    def _free(self, rows: list[Parked], now: datetime) -> list[Parked]:
        return []


@breaks(
    "test_a_failed_entry_does_not_come_out_before_it_is_due",
    "test_followers_stay_while_the_head_fails_again",
)
class RetriesAtOnce(MemoryStore):
    def _free(self, rows: list[Parked], now: datetime) -> list[Parked]:
        return rows[:1] if rows[0].state == "retrying" else super()._free(rows, now)


@breaks("test_a_parked_entry_is_not_given_out_again_until_it_is_settled")
class GivesParkedOnesOutAgain(MemoryStore):
    def _due(self, room: int) -> list[Entry]:
        self._memory.parked_out.clear()
        return super()._due(room)


@breaks(
    "test_a_failed_entry_comes_out_again_when_it_is_due",
    "test_a_delayed_entry_comes_out_when_its_time_has_come",
)
class GivesParkedOnesOutLikeNewOnes(MemoryStore):
    def _out_of_the_lot(self, row: Parked) -> Entry:
        return row.entry


@breaks("test_a_parked_entry_that_was_not_settled_comes_out_again_after_a_crash")
class RemovesParkedOnesWhenItGivesThemOut(MemoryStore):
    def _out_of_the_lot(self, row: Parked) -> Entry:
        row.state = "published"
        return super()._out_of_the_lot(row)


@breaks("test_parked_entries_come_before_those_of_the_log")
class ReadsTheLogFirst(MemoryStore):
    async def entries(self, room: int) -> Sequence[Entry]:
        await self._point("entries")
        self._fence()
        self._refresh_blocked()
        entries = self._next(room)
        return entries + self._due(room - len(entries))


# What a verdict does.


@breaks("test_a_parked_entry_that_was_published_is_done", "test_a_line_is_blocked_while_something_of_it_is_parked")
class LeavesPublishedOnesInTheLot(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        super()._settle_parked(entry, verdict)
        if row is not None and isinstance(verdict, Published):
            row.state = "retrying"


@breaks("test_every_failure_is_counted_with_its_error")
class CountsOnlyTheFirstFailure(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        super()._settle_parked(entry, verdict)
        if row is not None:
            row.attempts = entry.attempts


@breaks("test_every_failure_is_counted_with_its_error", "test_people_see_the_heads_of_blocked_lines")
class KeepsNoErrors(MemoryStore):
    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        super()._park(entry, lane, replace(verdict, error="") if isinstance(verdict, RetryAt | Dead) else verdict)

    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        super()._settle_parked(entry, replace(verdict, error="") if isinstance(verdict, RetryAt | Dead) else verdict)


@breaks("test_followers_come_out_in_order_once_the_head_is_published")
class CountsAttemptsOfBlockedOnes(MemoryStore):
    def _out_of_the_lot(self, row: Parked) -> Entry:
        if row.state == "blocked":
            row.attempts += 1
        return super()._out_of_the_lot(row)


@breaks(
    "test_followers_come_out_in_order_once_the_head_is_published",
    "test_what_is_parked_is_counted_by_its_state",
    "test_followers_follow_a_dead_event_that_is_retried",
)
class ForgetsToParkFollowers(MemoryStore):
    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        if not isinstance(verdict, Blocked):
            super()._park(entry, lane, verdict)


@breaks(
    "test_a_dead_entry_that_is_skipped_holds_nobody_back",
    "test_a_retried_head_that_is_skipped_frees_its_followers",
    "test_a_skipped_event_that_is_retried_blocks_nobody",
)
class BlocksOnASkippedOne(MemoryStore):
    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        super()._park(entry, lane, Dead(verdict.error) if isinstance(verdict, Dead) else verdict)

    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        super()._settle_parked(entry, Dead(verdict.error) if isinstance(verdict, Dead) else verdict)


@breaks("test_a_dead_entry_that_is_skipped_holds_nobody_back")
class ForgetsSkippedOnes(MemoryStore):
    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        if not isinstance(verdict, Dead) or verdict.blocks:
            super()._park(entry, lane, verdict)


@breaks("test_attempts_survive_a_takeover")
class ForgetsAttemptsWhenItTakesOver(MemoryStore):
    def _load(self, lane: int) -> None:
        super()._load(lane)
        for row in self.database.parked:
            row.attempts = row.attempts if row.lane != lane else 0


# What a copy has.


class _CopiesBadly(MemoryStore):
    """Parks something else than was in the log."""

    def copy(self, entry: Entry) -> Entry:
        raise NotImplementedError

    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        super()._park(self.copy(entry), lane, verdict)


@breaks("test_a_parked_entry_is_as_it_was_in_the_log", "test_a_delayed_entry_is_as_it_was_in_the_log")
class ParksWithoutTheHeaders(_CopiesBadly):
    def copy(self, entry: Entry) -> Entry:
        return entry._replace(headers=None)


@breaks("test_a_parked_entry_is_as_it_was_in_the_log", "test_a_delayed_entry_is_as_it_was_in_the_log")
class ParksBytesAsText(_CopiesBadly):
    def copy(self, entry: Entry) -> Entry:
        return entry._replace(data=entry.data.decode("latin-1") if isinstance(entry.data, bytes) else entry.data)


@breaks("test_a_parked_entry_is_as_it_was_in_the_log", "test_a_delayed_entry_is_as_it_was_in_the_log")
class ParksWithoutTheTypeOfTheBytes(_CopiesBadly):
    def copy(self, entry: Entry) -> Entry:
        return entry._replace(content_type=None)


@breaks("test_a_parked_entry_is_as_it_was_in_the_log", "test_a_delayed_entry_is_as_it_was_in_the_log")
class ParksWithoutTheTimeItOccurred(_CopiesBadly):
    def copy(self, entry: Entry) -> Entry:
        return entry._replace(occurred_at=None)


@breaks("test_a_parked_entry_is_as_it_was_in_the_log", "test_a_delayed_entry_is_as_it_was_in_the_log")
class ParksWithoutTheKey(_CopiesBadly):
    def copy(self, entry: Entry) -> Entry:
        return entry._replace(idempotency_key=None)


@breaks("test_a_parked_entry_is_as_it_was_in_the_log")
class ParksWithoutTheNumber(_CopiesBadly):
    def copy(self, entry: Entry) -> Entry:
        return entry._replace(number=None)


@breaks("test_a_delayed_entry_is_as_it_was_in_the_log")
class ParksWithoutTheTimeFromWhichItMayGo(_CopiesBadly):
    def copy(self, entry: Entry) -> Entry:
        return entry._replace(available_at=None)


# Who waits for whom.


@breaks("test_only_the_head_comes_out_while_it_is_retried")
class LetsFollowersGoWithARetryingHead(MemoryStore):
    def _free(self, rows: list[Parked], now: datetime) -> list[Parked]:
        return rows if super()._free(rows, now) else []


@breaks(
    "test_followers_stay_while_the_head_fails_again",
    "test_a_follower_that_fails_holds_back_the_rest",
    "test_followers_that_were_put_back_come_out_in_order",
)
class ParksAFailedHeadBehindItsFollowers(MemoryStore):
    """Deletes and inserts where it should update, so that the head is the newest of its line."""

    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        super()._settle_parked(entry, verdict)
        if row is not None and isinstance(verdict, RetryAt):
            self.database.parked.remove(row)
            self.database.parked.append(row)


@breaks(
    "test_followers_come_out_in_order_once_the_head_is_published",
    "test_a_follower_that_fails_holds_back_the_rest",
    "test_a_retried_head_that_is_skipped_frees_its_followers",
    "test_a_dropped_event_lets_its_followers_go",
)
class LeavesFollowersBehind(MemoryStore):
    def _free(self, rows: list[Parked], now: datetime) -> list[Parked]:
        return [row for row in super()._free(rows, now) if row.state == "retrying"]


@breaks("test_followers_come_out_in_order_once_the_head_is_published")
class FreesTheNewestFollowerFirst(MemoryStore):
    def _free(self, rows: list[Parked], now: datetime) -> list[Parked]:
        return super()._free(rows, now)[::-1]


@breaks("test_a_follower_that_fails_holds_back_the_rest")
class TakesAFailedFollowerOutOfItsLine(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        follows = row is not None and row.state == "blocked"
        super()._settle_parked(entry, verdict)
        if row is not None and follows and isinstance(verdict, RetryAt):
            row.line = None


@breaks("test_followers_that_were_put_back_come_out_in_order")
class NeverTakesFollowersBack(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        if not isinstance(verdict, Blocked):
            super()._settle_parked(entry, verdict)


@breaks("test_a_dead_head_holds_its_line_for_ever")
class LetsFollowersPassADeadHead(MemoryStore):
    def _free(self, rows: list[Parked], now: datetime) -> list[Parked]:
        while rows and rows[0].state == "dead":
            rows = rows[1:]
        return super()._free(rows, now) if rows else []


@breaks("test_a_retried_head_that_is_skipped_frees_its_followers")
class KeepsASkippedHeadInItsLine(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        line = row.line if row is not None else None
        super()._settle_parked(entry, verdict)
        if row is not None:
            row.line = line


# What is delayed.


@breaks(
    "test_a_delayed_entry_comes_out_when_its_time_has_come",
    "test_a_delayed_entry_does_not_come_out_before",
    "test_what_is_parked_is_counted_by_its_state",
)
class ForgetsDelayedOnes(MemoryStore):
    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        if not isinstance(verdict, Delayed):
            super()._park(entry, lane, verdict)


@breaks("test_a_delayed_entry_does_not_come_out_before")
class IgnoresTheDelay(MemoryStore):
    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        now = self.database.clock.now()
        super()._park(entry, lane, Delayed(now) if isinstance(verdict, Delayed) else verdict)


@breaks("test_a_delayed_entry_comes_out_when_its_time_has_come")
class CountsADelayAsAFailure(MemoryStore):
    def _out_of_the_lot(self, row: Parked) -> Entry:
        entry = super()._out_of_the_lot(row)
        return entry._replace(attempts=1) if row.state == "delayed" else entry


@breaks("test_a_delayed_entry_holds_nobody_back", "test_a_delayed_entry_comes_out_when_its_time_has_come")
class HoldsALineBehindADelayedOne(MemoryStore):
    def _park(self, entry: Entry, lane: int, verdict: object) -> None:
        if isinstance(verdict, Delayed):
            verdict = RetryAt(verdict.until, "its time has not come")
        super()._park(entry, lane, verdict)


@breaks("test_an_entry_outside_the_order_that_goes_back_comes_out_again")
class ForgetsWhenOneThatWentBackIsDue(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        super()._settle_parked(entry, verdict)
        if row is not None and isinstance(verdict, Delayed):
            row.due_at = None


@breaks("test_a_delayed_entry_that_fails_stays_outside_the_order")
class PutsAFailedDelayedOneIntoItsLine(MemoryStore):
    def _settle_parked(self, entry: Entry, verdict: object) -> None:
        row = self._row_of(entry)
        super()._settle_parked(entry, verdict)
        if row is not None and isinstance(verdict, RetryAt):
            row.line = self._topics.line_of(row.entry)
