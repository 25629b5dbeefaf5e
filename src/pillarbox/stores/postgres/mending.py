"""What an operator does: retry, edit, drop, pause, resume. Each is one statement and leaves a line in the audit."""

from collections.abc import Sequence
from datetime import datetime

from pillarbox.ports import Deed, Pause, Query, Status
from pillarbox.stores.audit import describe, user
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.records import Finder


def told(place: str) -> str:
    """Write the part of a statement that lets relays look into the parking lot: they do when this number changed."""
    return (
        f"told AS (INSERT INTO {place}meta AS m (name, value) VALUES ('mended', '1')"
        " ON CONFLICT (name) DO UPDATE SET value = (m.value::bigint + 1)::text)"
    )


class Mending:
    """Changes what becomes of events, beside running relays."""

    def __init__(self, place: str, finder: Finder) -> None:
        self._p, self._finder = place, finder
        self._told = told(place)

    async def retry(self, connection: Connection, query: Query) -> int:
        """Make dead and waiting events due now, with all their tries."""
        change = f"state = 'retrying', due_at = {self._p}now(), attempts = 0"
        if query.side == "inbox":  # whoever retries one that stands because of its number goes on from that number
            change += ", numbering = CASE WHEN numbering IS NOT NULL THEN 'accepted' END"
        return await self._change(connection, "retry", query, ("dead", "retrying", "delayed"), change)

    async def edit(self, connection: Connection, event_id: str, data: str | bytes) -> int:
        """Let a dead event carry something else, and make it due now; the log keeps what was added."""
        change = f"state = 'retrying', due_at = {self._p}now(), attempts = 0, payload = %s::json, body = %s::bytea"
        query = Query(ids=(event_id,), status=("dead",), limit=1)
        carried = [data, None] if isinstance(data, str) else [None, data]
        return await self._change(connection, "edit", query, ("dead",), change, carried)

    async def drop(self, connection: Connection, query: Query) -> int:
        """Forget dead events; those that wait too, if they are named."""
        states: Sequence[Status] = ("dead", "retrying", "blocked", "delayed") if query.ids else ("dead",)
        change = f"state = 'dropped', settled_at = {self._p}now(), due_at = NULL"
        return await self._change(connection, "drop", query, states, change)

    async def _change(
        self,
        connection: Connection,
        verb: str,
        query: Query,
        among: Sequence[Status],
        change: str,
        parameters: Sequence[str | bytes | None] = (),
    ) -> int:
        """Change the rows of the parking lot that a query means, of those in one of these states."""
        table, id = ("inbox_parked", "id") if query.side == "inbox" else ("parked", "parked_id")
        status = [state for state in among if not query.status or state in query.status]
        states = [*status, *(["suspect", "held"] if "retrying" in status else [])]  # an inbox's show as retrying
        chosen = self._finder.chosen(f"{id} AS parked", query, status)
        [[count]] = await connection.run(
            f"WITH chosen AS MATERIALIZED ({chosen.sql}),"
            # A relay may settle one of them while we wait for its row: then it is looked at again.
            f" changed AS (UPDATE {self._p}{table} k SET {change} FROM chosen"
            f" WHERE k.id = chosen.parked AND k.state = ANY (%s) RETURNING 1), {self._told}"
            f" INSERT INTO {self._p}audit (who, what, count) SELECT %s, %s, count(*) FROM changed RETURNING count",
            [*chosen.parameters, *parameters, states, user(), describe(verb, query)],
        )
        return int(count)

    async def pause(self, connection: Connection, topic: str, who: str, why: str) -> Pause | None:
        """Pause a topic; if it is paused already, change nothing and give that pause."""
        while True:
            added = await connection.run(
                f"WITH added AS (INSERT INTO {self._p}pauses (topic, who, why) VALUES (%s, %s, %s)"
                " ON CONFLICT DO NOTHING RETURNING who)"
                f" INSERT INTO {self._p}audit (who, what, count) SELECT who, %s, 1 FROM added RETURNING n",
                [topic, who, why, f"pause topic={topic}"],
            )
            if added:
                return None
            rows = await connection.run(f"SELECT topic, since, who, why FROM {self._p}pauses WHERE topic = %s", [topic])
            if rows:  # else it was resumed in between
                return Pause(*rows[0])

    async def resume(self, connection: Connection, topic: str) -> bool:
        """End a pause."""
        [[count]] = await connection.run(
            f"WITH ended AS (DELETE FROM {self._p}pauses WHERE topic = %s RETURNING 1)"
            f" INSERT INTO {self._p}audit (who, what, count) SELECT %s, %s, count(*) FROM ended RETURNING count",
            [topic, user(), f"resume topic={topic}"],
        )
        return bool(count)

    async def deeds(self, connection: Connection, since: datetime | None, limit: int) -> list[Deed]:
        """Read the audit, the newest line first."""
        rows = await connection.run(
            f"SELECT at, who, what, count FROM {self._p}audit WHERE at >= coalesce(%s::timestamptz, '-infinity')"
            " ORDER BY n DESC LIMIT %s",
            [since, limit],
        )
        return [Deed(*row) for row in rows]
