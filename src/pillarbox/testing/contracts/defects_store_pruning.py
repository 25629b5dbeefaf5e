"""Stores that delete what they should keep, or keep what they should delete."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pillarbox.ports import Query, Record, Retention
from pillarbox.testing.contracts.defects_store_reading import ReadsByAPlainCursor
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory import Parked, Row
from pillarbox.testing.memory_records import MemoryStore

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)
FOR_EVER = timedelta(days=36_500)


@breaks(
    "test_what_was_published_long_ago_is_deleted",
    "test_with_no_retention_it_is_deleted_at_once",
    "test_what_is_pending_is_never_deleted",
)
class NeverPrunes(MemoryStore):
    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        return 0


@breaks("test_what_was_published_long_ago_is_deleted", "test_what_was_published_lately_is_kept")
class NeverFinishesPruning(MemoryStore):
    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        return await super().prune(retention, deed) or 1


@breaks("test_what_was_published_lately_is_kept", "test_the_age_is_that_of_the_publishing_not_of_the_event")
class PrunesWhateverIsPublished(MemoryStore):
    def _prune_log(self, retention: Retention) -> int:
        return super()._prune_log(replace(retention, published=timedelta(0)))


@breaks("test_the_age_is_that_of_the_publishing_not_of_the_event")
class PrunesByTheCreation(MemoryStore):
    def _settled_before(self, row: Row, before: datetime) -> bool:
        return self._status(row)[0] in ("published", "dropped") and row.entry.created_at <= before


@breaks("test_its_age_is_that_of_the_publishing_not_of_the_parking", "test_what_was_dropped_lately_is_kept")
class PrunesByThePositionThatWentPast(MemoryStore):
    """Looks only for the tick that covers an event, which was there when it was parked."""

    def _settled_before(self, row: Row, before: datetime) -> bool:
        at = next((tick.at for tick in self.database.ticks if row.entry.position in tick.covered), None)
        return self._status(row)[0] in ("published", "dropped") and at is not None and at <= before


@breaks("test_one_that_was_parked_before_it_was_published_is_deleted", "test_what_was_dropped_long_ago_is_deleted")
class KeepsWhateverWasParked(MemoryStore):
    def _settled_before(self, row: Row, before: datetime) -> bool:
        return self._parked_row(row) is None and super()._settled_before(row, before)


@breaks("test_what_was_dropped_long_ago_is_deleted")
class KeepsDroppedOnesForEver(MemoryStore):
    def _settled_before(self, row: Row, before: datetime) -> bool:
        return self._status(row)[0] != "dropped" and super()._settled_before(row, before)


@breaks("test_what_was_dropped_lately_is_kept", "test_a_dropped_event_stays_visible_as_dropped")
class PrunesDroppedOnesAtOnce(MemoryStore):
    async def drop(self, query: Query) -> int:
        count = await super().drop(query)
        self.database.rows = [row for row in self.database.rows if self._status(row)[0] != "dropped"]
        return count


@breaks("test_with_no_retention_it_is_deleted_at_once")
class TakesNoRetentionForNoLimit(MemoryStore):
    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        published, archive = retention.published or FOR_EVER, retention.archive or FOR_EVER
        return await super().prune(replace(retention, published=published, archive=archive), deed)


@breaks("test_without_a_limit_everything_is_kept")
class TakesNoLimitForNoRetention(MemoryStore):
    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        return await super().prune(replace(retention, published=retention.published or timedelta(0)), deed)


@breaks("test_what_is_pending_is_never_deleted", "test_what_a_pause_holds_is_never_deleted")
class PrunesPendingOnes(MemoryStore):
    def _settled_before(self, row: Row, before: datetime) -> bool:
        return super()._settled_before(row, before) or (
            self._status(row)[0] == "pending" and row.entry.created_at <= before
        )


@breaks("test_what_is_parked_is_never_deleted")
class PrunesParkedOnes(MemoryStore):
    def _settled_before(self, row: Row, before: datetime) -> bool:
        return self._status(row)[0] != "pending" and row.entry.created_at <= before


@breaks("test_pruning_moves_no_position")
class PrunesThePositionsToo(MemoryStore):
    """Deletes the ticks with the log, the newest of each lane among them."""

    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        count = await super().prune(retention, deed)
        if count:
            self.database.positions.clear()
        return count


@breaks("test_pruning_moves_no_position")
class GivesIdsAgainAfterPruning(ReadsByAPlainCursor):
    """Counts from the highest id that is left, as a table without AUTOINCREMENT does."""

    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        count = await super().prune(retention, deed)
        self.database._next_id = max((row.entry.position for row in self.database.rows), default=0) + 1
        return count


@breaks("test_what_is_archived_can_be_found", "test_what_is_archived_can_be_replayed")
class ArchivesNothing(MemoryStore):
    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        return await super().prune(replace(retention, archive=timedelta(0)), deed)


@breaks("test_what_is_archived_can_be_found", "test_what_is_archived_can_be_replayed")
class NeverLooksIntoTheArchive(MemoryStore):
    async def find(self, query: Query) -> Sequence[Record]:
        log = {row.entry.position for row in self.database.rows}
        return [record for record in await super().find(query) if record.position in log]


@breaks("test_what_is_archived_is_shown_as_before")
class ForgetsTheParkingLotOfWhatItArchives(MemoryStore):
    """Deletes the parked copies with the log, and their attempts and times with them."""

    def _prune_log(self, retention: Retention) -> int:
        count = super()._prune_log(retention)
        gone = {row.entry.position for row in self.database.archive}
        self.database.parked = [row for row in self.database.parked if row.entry.position not in gone]
        return count


@breaks("test_what_is_archived_is_shown_as_before")
class ArchivesWithoutTheHeaders(MemoryStore):
    def _prune_log(self, retention: Retention) -> int:
        count = super()._prune_log(retention)
        self.database.archive = [row._replace(entry=row.entry._replace(headers=None)) for row in self.database.archive]
        return count


@breaks("test_a_replay_out_of_the_archive_that_failed_can_be_retried")
class MendsOnlyWhatIsInTheLog(MemoryStore):
    def _parked_by(self, query: Query, states: Sequence[str]) -> list[Parked]:
        in_the_log = {row.entry.position for row in self.database.rows}
        return [parked for parked in super()._parked_by(query, states) if parked.entry.position in in_the_log]


@breaks("test_what_a_replay_has_copied_is_kept_while_the_copy_waits", "test_it_is_kept_in_the_archive_too")
class ForgetsThatACopyWaits(MemoryStore):
    def _has_copy(self, row: Row) -> bool:
        return False


@breaks("test_it_is_kept_in_the_archive_too", "test_the_archive_keeps_what_has_a_dead_copy_until_that_is_dropped")
class PrunesTheArchiveByAgeAlone(MemoryStore):
    def _prune_archive(self, retention: Retention) -> int:
        if retention.archive is None:
            return 0
        before, old = self.database.clock.now() - retention.archive, self.database.archive
        self.database.archive = [row for row in old if row.entry.created_at > before]
        return len(old) - len(self.database.archive)


@breaks("test_the_archive_ends_too")
class KeepsTheArchiveForEver(MemoryStore):
    def _prune_archive(self, retention: Retention) -> int:
        return 0
