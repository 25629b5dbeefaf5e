"""Retention: one bounded batch per call, in one transaction, by the database's own clock. The rules are in SQL."""

from datetime import timedelta

from pillarbox.ports import Retention
from pillarbox.stores.postgres.connection import Connection

BATCH = 5_000
ARCHIVED = 1_000
"""So many where each is copied with all that is known of it, which takes some hundred times as long."""
NOT_ARCHIVED = timedelta(0)
WALK = 100_000
"""So many rows that must stay are walked over in one transaction, before the next one goes on."""


class Pruner:
    """Deletes what has been settled for long enough; several at once do the work of one."""

    def __init__(self, place: str) -> None:
        self._p = place

    async def prune(self, connection: Connection, retention: Retention, deed: int | None = None) -> int:
        """Delete a batch of everything that is old enough; give how many rows went."""
        sql = f"SELECT pruned, unfinished FROM {self._p}prune(%s, %s, %s, %s, %s)"
        batch = ARCHIVED if retention.archive != NOT_ARCHIVED else BATCH
        kept = [retention.published, retention.archive, retention.inbox, batch, WALK]
        if deed is not None:
            counted = f"UPDATE {self._p}audit SET count = count + pruned FROM done WHERE n = %s"
            sql = f"WITH done AS MATERIALIZED ({sql}), counted AS ({counted}) SELECT * FROM done"
            kept.append(deed)
        while True:
            [[pruned, unfinished]] = await connection.run(sql, kept)
            if pruned or not unfinished:
                return int(pruned)
