"""Stores that delete what they should keep, or keep what they should delete."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from pillarbox.ports import Query, Record, Retention
from pillarbox.testing.contracts.defects_store_reading import ReadsByAPlainCursor
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory import Row
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
    async def prune(self, retention: Retention) -> int:
        return 0


@breaks("test_what_was_published_long_ago_is_deleted", "test_what_was_published_lately_is_kept")
class NeverFinishesPruning(MemoryStore):
    async def prune(self, retention: Retention) -> int:
        return await super().prune(retention) or 1


@breaks("test_what_was_published_lately_is_kept", "test_the_age_is_that_of_the_publishing_not_of_the_event")
class PrunesWhateverIsPublished(MemoryStore):
    def _prune_log(self, retention: Retention) -> int:
        return super()._prune_log(replace(retention, published=timedelta(0)))


@breaks("test_the_age_is_that_of_the_publishing_not_of_the_event")
class PrunesByTheCreation(MemoryStore):
    def _settled_before(self, row: Row, before: datetime) -> bool:
        return self._status(row)[0] in ("published", "dropped") and row.entry.created_at <= before


@breaks("test_with_no_retention_it_is_deleted_at_once")
class TakesNoRetentionForNoLimit(MemoryStore):
    async def prune(self, retention: Retention) -> int:
        published, archive = retention.published or FOR_EVER, retention.archive or FOR_EVER
        return await super().prune(replace(retention, published=published, archive=archive))


@breaks("test_without_a_limit_everything_is_kept")
class TakesNoLimitForNoRetention(MemoryStore):
    async def prune(self, retention: Retention) -> int:
        return await super().prune(replace(retention, published=retention.published or timedelta(0)))


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

    async def prune(self, retention: Retention) -> int:
        count = await super().prune(retention)
        if count:
            self.database.positions.clear()
        return count


@breaks("test_pruning_moves_no_position")
class GivesIdsAgainAfterPruning(ReadsByAPlainCursor):
    """Counts from the highest id that is left, as a table without AUTOINCREMENT does."""

    async def prune(self, retention: Retention) -> int:
        count = await super().prune(retention)
        self.database._next_id = max((row.entry.position for row in self.database.rows), default=0) + 1
        return count


@breaks("test_what_is_archived_can_be_found", "test_what_is_archived_can_be_replayed")
class ArchivesNothing(MemoryStore):
    async def prune(self, retention: Retention) -> int:
        return await super().prune(replace(retention, archive=timedelta(0)))


@breaks("test_what_is_archived_can_be_found", "test_what_is_archived_can_be_replayed")
class NeverLooksIntoTheArchive(MemoryStore):
    async def find(self, query: Query) -> Sequence[Record]:
        log = {row.entry.position for row in self.database.rows}
        return [record for record in await super().find(query) if record.position in log]


@breaks("test_the_archive_ends_too")
class KeepsTheArchiveForEver(MemoryStore):
    def _prune_archive(self, retention: Retention) -> int:
        return 0
