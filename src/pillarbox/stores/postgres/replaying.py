"""Replays on PostgreSQL: copies of published events into the parking lot, batch by batch, beside a row that keeps the
place."""

from typing import Any

from pillarbox.ports import Query, Replay
from pillarbox.stores.audit import describe_replay, user
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.mending import told
from pillarbox.stores.postgres.records import Finder
from pillarbox.stores.replays import WALK, next_batch, read_query, selects, write_query

_COLUMNS = "id, began_at, who, query::text, again, topic, rate, first_id, place, upto_id, events, finished_at"
_EVENT = (
    "event_id, aggregate_type, aggregate_id, event_type, topic, payload, body, content_type, headers, idempotency_key,"
    " number, available_at, occurred_at, created_at"
)
# What was parked may have been edited there.
_AS_PUBLISHED = _EVENT.replace(
    "payload, body",
    "CASE WHEN parked_id IS NULL THEN payload ELSE edited END,"
    " CASE WHEN parked_id IS NULL THEN body ELSE edited_body END",
).replace("topic", "coalesce(mine.to_topic, topic)")


class Replaying:
    """Begins replays and goes on with them; each step is one transaction."""

    def __init__(self, place: str, finder: Finder) -> None:
        self._p, self._finder, self._told = place, finder, told(place)

    async def begin(
        self, connection: Connection, id: str, query: Query, again: bool, to: str | None, rate: float | None
    ) -> Replay:
        """Write a replay down."""
        [[now, low, high]] = await connection.run(
            f"SELECT {self._p}now(),"
            f" least((SELECT min(id) FROM {self._p}outbox), (SELECT min(id) FROM {self._p}archive)),"
            f" greatest((SELECT max(id) FROM {self._p}outbox), (SELECT max(id) FROM {self._p}archive))"
        )
        first = max((low or 1) - 1, query.after or 0)
        upto = (high or 0) if query.upto is None else min(high or 0, query.upto)
        upto = upto if selects(query) else first
        replay = Replay(id, now, user(), query, again, to, rate, first, first, upto, 0, now if first >= upto else None)
        await connection.run(
            f"WITH deed AS (INSERT INTO {self._p}audit (who, what, count) VALUES (%s, %s, 0) RETURNING n)"
            f" INSERT INTO {self._p}replays (id, began_at, who, query, again, topic, rate, first_id, place, upto_id,"
            " finished_at, due_at, deed)"
            " SELECT %s, %s, %s, %s::json, %s, %s, %s::float8, %s, %s, %s, %s::timestamptz, %s, n FROM deed",
            [
                *(replay.who, describe_replay(replay), id, now, replay.who, write_query(query), again, to, rate),
                *(first, first, upto, replay.finished_at, now),
            ],
        )
        return replay

    async def resume(self, connection: Connection, id: str) -> None:
        """Let what a replay does from now on have a line of its own in the audit."""
        await connection.run(
            f"WITH deed AS (INSERT INTO {self._p}audit (who, what, count) SELECT %s, %s, 0 FROM {self._p}replays"
            " WHERE id = %s AND finished_at IS NULL RETURNING n)"
            f" UPDATE {self._p}replays r SET deed = deed.n FROM deed WHERE r.id = %s",
            [user(), f"replay resume={id}", id, id],
        )

    async def find(self, connection: Connection, id: str) -> Replay | None:
        """Look how far a replay is."""
        rows = await connection.run(f"SELECT {_COLUMNS} FROM {self._p}replays WHERE id = %s", [id])
        return _replay(rows[0]) if rows else None

    async def go_on(self, connection: Connection, id: str) -> Replay | None:
        """Park copies of the next events, due now or one after the other, outside the lines, in log order."""
        bounds = ", ".join(
            f"(SELECT o.id FROM {self._p}{table} o WHERE o.id > r.place ORDER BY o.id OFFSET {WALK - 1} LIMIT 1)"
            for table in ("outbox", "archive")
        )
        rows = await connection.run(f"SELECT {_COLUMNS}, {bounds} FROM {self._p}replays r WHERE id = %s", [id])
        if not rows:
            return None
        replay = _replay(rows[0][:-2])
        if replay.finished_at is not None:
            return replay
        batch = next_batch(replay, [*rows[0][-2:]])
        chosen = self._finder.chosen("id", batch, ("published",))
        moved = await connection.run(
            # Whoever was quicker has moved the place: then nothing is mine.
            "WITH mine AS MATERIALIZED (SELECT id AS replay_id, again, topic AS to_topic, events, upto_id, deed,"
            f" coalesce(1 / rate, 0) AS gap, greatest(due_at, {self._p}now()) AS due"
            f" FROM {self._p}replays WHERE id = %s AND place = %s AND finished_at IS NULL FOR UPDATE),"
            f" chosen AS MATERIALIZED ({chosen.sql}),"
            " counted AS MATERIALIZED (SELECT count(*) AS n, max(id) AS last FROM chosen),"
            f" copied AS (INSERT INTO {self._p}parked (state, due_at, replay, position, lane, {_EVENT})"
            " SELECT 'delayed', due + (row_number() OVER (ORDER BY them.id) - 1)::float8 * make_interval(secs => gap),"
            f" CASE WHEN again THEN replay_id ELSE '' END, them.id, lane, {_AS_PUBLISHED} FROM mine CROSS JOIN ("
            f"SELECT id, lane, {_EVENT} FROM {self._p}archive WHERE id = ANY (ARRAY(SELECT id FROM chosen)) UNION ALL"
            f" SELECT id, lane, {_EVENT} FROM {self._p}outbox WHERE id = ANY (ARRAY(SELECT id FROM chosen))) them"
            " LEFT JOIN LATERAL (SELECT k.id AS parked_id, k.payload AS edited, k.body AS edited_body"
            f" FROM {self._p}parked k WHERE k.position = them.id AND k.replay IS NULL ORDER BY k.id DESC LIMIT 1) k"
            f" ON true ORDER BY them.id), {self._told},"
            f" noted AS (UPDATE {self._p}audit a SET count = a.count + counted.n FROM mine, counted"
            " WHERE a.n = mine.deed),"
            " step AS MATERIALIZED (SELECT mine.*, n, CASE WHEN events + n >= %s THEN upto_id"
            " WHEN n = %s THEN last ELSE %s END AS next FROM mine, counted)"
            f" UPDATE {self._p}replays r SET events = r.events + step.n, place = step.next,"
            " due_at = step.due + step.n::float8 * make_interval(secs => step.gap),"
            f" finished_at = CASE WHEN step.next >= step.upto_id THEN {self._p}now() END"
            " FROM step WHERE r.id = step.replay_id RETURNING 1",
            [id, replay.place, *chosen.parameters, replay.query.limit, batch.limit, batch.upto],
            # Never beside retention: it would delete what is copied here, and nobody could find a copy that dies.
            after=f"SELECT pg_advisory_xact_lock_shared(hashtextextended('{self._p}prune', 0))",
        )
        return await self.find(connection, id) if moved else replay

    async def write_down(self, connection: Connection, what: str) -> int:
        """Begin a line of the audit."""
        sql = f"INSERT INTO {self._p}audit (who, what, count) VALUES (%s, %s, 0) RETURNING n"
        [[n]] = await connection.run(sql, [user(), what])
        return int(n)


def _replay(row: Any) -> Replay:
    id, began_at, who, query, *rest = row
    return Replay(id, began_at, who, read_query(query), *rest)
