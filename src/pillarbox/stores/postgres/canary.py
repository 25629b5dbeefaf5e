"""The canary in PostgreSQL: an event of our own, and a note of which one is the newest, in one statement."""

from datetime import timedelta
from typing import Any

from pillarbox.core.event import Event
from pillarbox.core.insert import EPOCH
from pillarbox.ports import CanarySeen, Query
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.records import Finder


class Canaries:
    """Adds canaries, and says what has become of the newest."""

    def __init__(self, place: str, finder: Finder) -> None:
        self._p, self._finder = place, finder

    async def add(self, connection: Connection, event: Event[Any]) -> None:
        """Add one, and note it."""
        id = str(event.id)
        await connection.run(
            f"WITH added AS (INSERT INTO {self._p}outbox"
            " (event_id, aggregate_type, aggregate_id, event_type, topic, payload)"
            " VALUES (%s::uuid, '', '', %s::text, %s::text, %s::json))"
            f" INSERT INTO {self._p}meta AS m (name, value)"
            f" VALUES ('canary', %s::text || ' ' || (extract(epoch FROM {self._p}now()) * 1000000)::bigint)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [id, event.type, event.topic, event.data, id],
        )

    async def seen(self, connection: Connection) -> CanarySeen | None:
        """Look what has become of the newest."""
        rows = await connection.run(f"SELECT value FROM {self._p}meta WHERE name = 'canary'")
        if not rows:
            return None
        id, microseconds = rows[0][0].split()
        at = EPOCH + timedelta(microseconds=int(microseconds))
        for record in await self._finder.find(connection, Query(ids=(id,))):
            return CanarySeen(id, at, record.status, record.last_error)
        return CanarySeen(id, at, "published")
