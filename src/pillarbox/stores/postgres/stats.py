"""The outbox at a glance. Every count has a bound, and none walks over the settled part of the log."""

from datetime import datetime
from typing import Any

from pillarbox.core.routing import LANES
from pillarbox.ports import LATELY, NEWEST, Away, FullLot, Pause, RelaySeen, Stats, Status
from pillarbox.stores.postgres.begun_again import begun_again
from pillarbox.stores.postgres.canary import Canaries
from pillarbox.stores.postgres.careful import CRASHES
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.parking import IN_LINE, ROOM
from pillarbox.stores.postgres.records import Finder
from pillarbox.stores.postgres.slot import Slot

RECEIVED = ("stored", "held", "retrying", "blocked")
"""States of received events that wait."""
PARKED: tuple[Status, ...] = ("retrying", "blocked", "delayed", "dead")
GROWING = ("outbox", "ticks", "parked", "archive", "inbox", "inbox_parked")
COUNTED = 10_000
WALK = 100_000
"""So many rows beyond a position are looked at: behind an old position of a paused topic lies everybody else's log."""
HEADS = 20
ELSEWHERE = (
    "this database was copied from another cluster, whose transaction ids mean nothing here: make sure that no relay"
    " runs on the old one, then run `pillarbox adopt`"
)


class Overview:
    """Counts, the heads of blocked lines, pauses and relays."""

    def __init__(self, place: str, finder: Finder) -> None:
        self._p, self._finder, self._slot = place, finder, Slot(place)
        self._canaries = Canaries(place, finder)

    async def stats(self, connection: Connection) -> Stats:
        """Look at the whole."""
        stopped = await self._stopped(connection)
        by_topic, exact, oldest = await self._pending(connection, copied=stopped == ELSEWHERE)
        added, added_since = await self._added(connection)
        inbox_dead, waits, receives, last_published, lately, lines, copies = await self._counts(connection)
        parked, overdue = await self._parked(connection), await self._overdue(connection)
        return Stats(
            pending=sum(by_topic.values()),
            pending_exact=exact,
            oldest_pending_at=min(oldest.values(), default=None),
            retrying=_total(parked, "retrying"),
            blocked=_total(parked, "blocked"),
            delayed=_total(parked, "delayed"),
            dead=_total(parked, "dead"),
            last_published_at=last_published,
            heads=await self._finder.heads(connection, HEADS),
            pauses=await self._pauses(connection),
            relays=await self._relays(connection),
            pending_by_topic=by_topic,
            oldest_by_topic=oldest,
            added_by_topic=added,
            added_since=added_since,
            pending_about=None if exact or stopped else await self._about(connection),
            parked_by_topic=parked,
            overdue_by_topic={topic: count for topic, count, _, _ in overdue},
            oldest_due_at=min((since for _, _, since, _ in overdue), default=None),
            copies=copies,
            copies_overdue=sum(copies for _, _, _, copies in overdue),
            blocked_lines=lines,
            published_lately=lately,
            table_bytes=await self._bytes(connection),
            inbox_dead=inbox_dead,
            inbox_waiting=waits,
            receives=receives,
            stopped=stopped,
            full=await self._full(connection),
            suspect_lanes=await self._suspect_lanes(connection),
            slot=await self._slot.seen(connection),
            canary=await self._canaries.seen(connection),
        )

    async def _pending(
        self, connection: Connection, *, copied: bool
    ) -> tuple[dict[str, int], bool, dict[str, datetime]]:
        """Count what is beyond the positions, by topic, up to COUNTED; whether that is all, and the oldest of each."""
        found = f"SELECT * FROM {self._p}pending(%s, %s)"
        parameters = [COUNTED + 1, WALK]
        if copied:
            found += f" WHERE id IS NULL OR id <= ({self._copied_up_to}) UNION ALL ({self._written_here})"
            parameters.append(COUNTED + 1)
        rows = await connection.run(
            f"WITH found AS MATERIALIZED ({found}),"
            " first AS (SELECT * FROM found WHERE id IS NOT NULL ORDER BY id LIMIT %s)"
            " SELECT topic, count(*), min(created_at),"
            " (SELECT count(*) FROM found WHERE id IS NOT NULL), EXISTS (SELECT 1 FROM found WHERE id IS NULL)"
            " FROM first GROUP BY topic UNION ALL"
            " SELECT NULL, 0, NULL, 0, EXISTS (SELECT 1 FROM found WHERE id IS NULL)",
            [*parameters, COUNTED],
        )
        by_topic = {row[0]: row[1] for row in rows if row[0] is not None}
        exact = not any(row[3] > COUNTED or row[4] for row in rows)
        return by_topic, exact, {row[0]: row[2] for row in rows if row[0] is not None}

    async def _added(self, connection: Connection) -> tuple[dict[str, int], datetime | None]:
        """Count what was added lately, by topic, of the newest NEWEST; and when the first was, if all of them were."""
        rows = await connection.run(
            f"WITH lately AS MATERIALIZED (SELECT {self._p}now() - interval '{LATELY.total_seconds():.0f} s' AS since),"
            f" newest AS MATERIALIZED (SELECT topic, created_at FROM {self._p}outbox ORDER BY id DESC LIMIT {NEWEST})"
            " SELECT topic, count(*), min(created_at) FROM newest, lately WHERE created_at > since GROUP BY topic"
        )
        full = sum(row[1] for row in rows) == NEWEST
        return {row[0]: row[1] for row in rows}, min(row[2] for row in rows) if full else None

    @property
    def _copied_up_to(self) -> str:
        return f"SELECT min(m2) FROM {self._p}places()"

    @property
    def _written_here(self) -> str:
        """Choose what `adopt` will publish of the ids that no snapshot of the copy can have shown: their transaction
        ids are this cluster's, and the positions are not."""
        return (
            f"SELECT o.id, o.topic, o.created_at FROM {self._p}outbox o WHERE o.id > ({self._copied_up_to}) AND NOT ("
            "SELECT o.id <= t.floor_id OR (o.id <= t.m2 AND (pg_visible_in_snapshot(o.xid, t.s1)"
            " OR (o.id <= t.last_id AND pg_visible_in_snapshot(o.xid, t.s2))))"
            f" FROM {self._p}places() t WHERE (t.lanes >> o.lane) & 1 = 1 AND (t.topic IS NULL OR t.topic = o.topic)"
            " ORDER BY t.topic LIMIT 1) ORDER BY o.id LIMIT %s"
        )

    async def _about(self, connection: Connection) -> int | None:
        """Estimate by ids how much lies beyond the main positions, each by its share of the lanes; what a detour keeps
        cannot be told by ids."""
        [[about]] = await connection.run(
            f"WITH newest AS (SELECT id FROM {self._p}outbox ORDER BY id DESC LIMIT 1)"
            " SELECT sum(greatest(n.id - greatest(t.m1, t.last_id, t.floor_id), 0)"
            f" * length(replace(t.lanes::bit(64)::text, '0', '')) / {LANES})::bigint"
            f" FROM {self._p}places() t, newest n WHERE t.topic IS NULL"
        )
        return int(about) if about is not None and about > COUNTED else None

    async def _parked(self, connection: Connection) -> dict[str, dict[Status, int]]:
        """Count what is parked, by topic and state, up to COUNTED of each state."""
        states = " UNION ALL ".join(
            f"(SELECT topic, state FROM {self._p}parked WHERE state = '{state}' LIMIT {COUNTED})" for state in PARKED
        )
        rows = await connection.run(f"SELECT topic, state, count(*) FROM ({states}) them GROUP BY topic, state")
        found: dict[str, dict[Status, int]] = {}
        for topic, state, count in rows:
            found.setdefault(topic, {})[state] = count
        return found

    async def _overdue(self, connection: Connection) -> list[tuple[str, int, datetime, int]]:
        """Count the delayed ones whose time has come, by topic, of the first COUNTED that are due; since when, and how
        many of them are copies of a replay."""
        rows = await connection.run(
            "SELECT topic, count(*), min(due_at), count(replay) FROM ("
            f"SELECT topic, state, due_at, replay FROM {self._p}parked"
            f" WHERE line IS NULL AND state IN ('retrying', 'delayed') AND due_at <= (SELECT {self._p}now()) "
            f" ORDER BY due_at, id LIMIT {COUNTED}) due WHERE state = 'delayed' GROUP BY topic"
        )
        return [(topic, count, since, copies) for topic, count, since, copies in rows]

    async def _counts(self, connection: Connection) -> tuple[Any, ...]:
        def count(table: str, state: str) -> str:
            return (
                f"(SELECT count(*) FROM (SELECT 1 FROM {self._p}{table} WHERE state = '{state}' LIMIT {COUNTED}) them)"
            )

        received = " + ".join(count("inbox_parked", state) for state in RECEIVED)
        since = f"{self._p}now() - interval '{LATELY.total_seconds():.0f} s'"
        # Not max(): the newest tick is the last one that published, whatever the clock did in between.
        [row] = await connection.run(
            f"SELECT {count('inbox_parked', 'dead')}, {received},"
            f" EXISTS (SELECT 1 FROM {self._p}inbox) OR EXISTS (SELECT 1 FROM {self._p}inbox_parked), greatest("
            f"(SELECT at FROM {self._p}ticks WHERE published > 0 ORDER BY n DESC LIMIT 1),"
            f" (SELECT settled_at FROM {self._p}parked WHERE state = 'published' AND settled_at IS NOT NULL"
            " ORDER BY settled_at DESC LIMIT 1)),"
            f" (SELECT coalesce(sum(published), 0) FROM {self._p}ticks WHERE at > {since})::bigint,"
            f" (SELECT count(*) FROM (SELECT DISTINCT line FROM {self._p}parked WHERE {IN_LINE} LIMIT {COUNTED}) them),"
            f" (SELECT count(replay) FROM (SELECT replay FROM {self._p}parked WHERE state = 'delayed' LIMIT {COUNTED})"
            " them)"
        )
        return row

    async def _bytes(self, connection: Connection) -> dict[str, int]:
        """Look how large the tables are that grow."""
        tables = ", ".join(f"('{table}', pg_total_relation_size('{self._p}{table}'))" for table in GROWING)
        return dict(await connection.run(f"SELECT * FROM (VALUES {tables}) them"))

    async def _pauses(self, connection: Connection) -> list[Pause]:
        rows = await connection.run(f"SELECT topic, since, who, why FROM {self._p}pauses ORDER BY topic")
        return [Pause(*row) for row in rows]

    async def _relays(self, connection: Connection) -> list[RelaySeen]:
        rows = await connection.run(
            f"SELECT r.name, r.seen_at, CASE WHEN r.expires_at > {self._p}now() AND NOT {self._p}lives(r)"
            " THEN r.seen_at ELSE r.expires_at END,"
            f" (SELECT count(*) FROM {self._p}lanes l WHERE l.owner = r.name), r.away_since, r.away_error"
            f" FROM {self._p}relays r ORDER BY r.seen_at DESC, r.name"
        )
        return [
            RelaySeen(name, seen_at, until, lanes, None if since is None else Away(since, error or ""))
            for name, seen_at, until, lanes, since, error in rows
        ]

    async def _stopped(self, connection: Connection) -> str | None:
        [[with_tick, elsewhere]] = await connection.run(
            "SELECT bit_or(lanes) FILTER (WHERE topic IS NULL),"
            f" bool_or(cluster <> {self._p}cluster()) FROM {self._p}positions(-1)"
        )
        without = [lane for lane in range(LANES) if not (with_tick or 0) >> lane & 1]
        if without:
            return (
                f"{self._p}ticks holds no position for the lanes {', '.join(map(str, without))}; restore the table, or"
                " everything would be published again"
            )
        return ELSEWHERE if elsewhere else await begun_again(connection, self._p)

    async def _suspect_lanes(self, connection: Connection) -> int:
        [[count]] = await connection.run(f"SELECT count(*) FROM {self._p}lanes WHERE crashes >= %s", [CRASHES])
        return int(count)

    async def _full(self, connection: Connection) -> FullLot | None:
        """Look for a lane in which so many stand that it is read no further, and for its longest line."""
        rows = await connection.run(
            "SELECT standing, (array_agg(first ORDER BY count DESC))[1], max(count) FROM ("
            "SELECT lane, count(*) AS count, min(id) AS first,"
            " (sum(count(*)) OVER (PARTITION BY lane))::bigint AS standing"
            f" FROM {self._p}parked WHERE {IN_LINE} GROUP BY lane, line) lines"
            " WHERE standing >= %s GROUP BY lane, standing ORDER BY standing DESC LIMIT 1",
            [ROOM],
        )
        for standing, first, longest in rows:
            [[position]] = await connection.run(f"SELECT position FROM {self._p}parked WHERE id = %s", [first])
            if head := await self._finder.at(connection, position):
                return FullLot(standing, head, longest - 1)
        return None


def _total(parked: dict[str, dict[Status, int]], state: Status) -> int:
    return sum(of.get(state, 0) for of in parked.values())
