"""The outbox at a glance. Every count has a bound, and none walks over the settled part of the log."""

import sqlite3
from collections import Counter

from pillarbox.core.insert import microseconds
from pillarbox.core.routing import LANES
from pillarbox.kernel_lock import is_free
from pillarbox.ports import LATELY, NEWEST, Away, Clock, FullLot, Pause, RelaySeen, Stats, Status
from pillarbox.stores.sqlite import parking
from pillarbox.stores.sqlite.canary import Canaries
from pillarbox.stores.sqlite.connection import reading
from pillarbox.stores.sqlite.lanes import lock_file
from pillarbox.stores.sqlite.positions import Positions, begun_again, detoured_topics, load_positions
from pillarbox.stores.sqlite.records import Finder
from pillarbox.stores.sqlite.rows import instant, maybe_instant

RECEIVED = ("stored", "held", "retrying", "blocked")
"""States of received events that wait."""
PARKED: tuple[Status, ...] = ("retrying", "blocked", "delayed", "dead")
COUNTED = 10_000
HEADS = 20


class Overview:
    """Counts, the heads of blocked lines, pauses and relays, as of one moment."""

    def __init__(self, prefix: str, finder: Finder, path: str, clock: Clock) -> None:
        self._p, self._finder, self._path, self._clock = prefix, finder, path, clock
        self._canaries = Canaries(prefix, finder, clock)

    def stats(self, db: sqlite3.Connection) -> Stats:
        """Look at the whole."""
        with reading(db):
            positions = load_positions(db, self._p)
            by_topic, oldest = self._pending(db, positions)
            added, added_since = self._added(db)
            pending = sum(by_topic.values())
            parked, overdue = self._parked(db), self._overdue(db)
            published = db.execute(
                f"SELECT at FROM {self._p}ticks WHERE published > 0 ORDER BY n DESC LIMIT 1"
            ).fetchone()
            return Stats(
                pending=min(pending, COUNTED),
                pending_exact=pending <= COUNTED,
                oldest_pending_at=maybe_instant(min(oldest.values(), default=None)),
                retrying=_total(parked, "retrying"),
                blocked=_total(parked, "blocked"),
                delayed=_total(parked, "delayed"),
                dead=_total(parked, "dead"),
                last_published_at=maybe_instant(published[0]) if published else None,
                heads=self._finder.heads(db, HEADS),
                pauses=self._pauses(db),
                relays=self._relays(db),
                pending_by_topic=by_topic,
                oldest_by_topic={topic: instant(at) for topic, at in oldest.items()},
                added_by_topic=added,
                added_since=maybe_instant(added_since),
                pending_about=self._about(db, positions) if pending > COUNTED else None,
                parked_by_topic=parked,
                overdue_by_topic={topic: count for topic, count, _, _ in overdue},
                oldest_due_at=maybe_instant(min((since for _, _, since, _ in overdue), default=None)),
                copies=self._copies(db),
                copies_overdue=sum(copies for _, _, _, copies in overdue),
                blocked_lines=self._blocked_lines(db),
                published_lately=self._published_lately(db),
                table_bytes=_bytes(db),
                inbox_dead=self._count(db, "inbox_parked", "dead"),
                inbox_waiting=sum(self._count(db, "inbox_parked", state) for state in RECEIVED),
                stopped=begun_again(db, self._p, positions.highest),
                full=self._full(db),
                receives=self._receives(db),
                canary=self._canaries.seen(db),
            )

    def _pending(self, db: sqlite3.Connection, positions: Positions) -> tuple[dict[str, int], dict[str, int]]:
        """Count what is beyond the positions, by topic, up to one more than COUNTED; and find the oldest of each."""
        rows: list[tuple[int, str, int]] = []
        for topic, position in positions.detours.items():
            rows += db.execute(
                f"SELECT id, topic, created_at FROM {self._p}outbox INDEXED BY {self._p}outbox_topic"
                " WHERE topic = ? AND id > ? ORDER BY id LIMIT ?",
                (topic, position, COUNTED + 1),
            )
        # Beyond the main position lie the detours' entries too: look at as many as there may be, and leave them out.
        rows += [
            row
            for row in db.execute(
                f"SELECT id, topic, created_at FROM {self._p}outbox WHERE id > ? ORDER BY id LIMIT ?",
                (positions.main, COUNTED + 1),
            )
            if row[1] not in positions.detours
        ]
        rows = sorted(rows)[: COUNTED + 1]
        by_topic: dict[str, int] = {}
        oldest: dict[str, int] = {}
        for _, topic, created in rows:
            by_topic[topic] = by_topic.get(topic, 0) + 1
            oldest[topic] = min(oldest.get(topic, created), created)
        return by_topic, oldest

    def _added(self, db: sqlite3.Connection) -> tuple[dict[str, int], int | None]:
        """Count what was added lately, by topic, of the newest NEWEST; and when the first was, if all of them were."""
        since = microseconds(self._clock.now() - LATELY)
        sql = f"SELECT topic, created_at FROM {self._p}outbox ORDER BY id DESC LIMIT {NEWEST}"
        rows = [row for row in db.execute(sql) if row[1] > since]
        return dict(Counter(topic for topic, _ in rows)), min(at for _, at in rows) if len(rows) == NEWEST else None

    def _about(self, db: sqlite3.Connection, positions: Positions) -> int | None:
        """Estimate by ids how much lies beyond the main position; what a detour keeps cannot be told by ids."""
        [newest] = db.execute(f"SELECT max(id) FROM {self._p}outbox").fetchone()
        about = (newest or 0) - positions.main
        return about if about > COUNTED else None

    def _parked(self, db: sqlite3.Connection) -> dict[str, dict[Status, int]]:
        """Count what is parked, by topic and state, up to COUNTED of each state."""
        found: dict[str, dict[Status, int]] = {}
        for state in PARKED:
            rows = db.execute(
                f"SELECT topic, count(*) FROM (SELECT topic FROM {self._p}parked WHERE state = ? LIMIT {COUNTED})"
                " GROUP BY topic",
                (state,),
            )
            for topic, count in rows:
                found.setdefault(topic, {})[state] = count
        return found

    def _copies(self, db: sqlite3.Connection) -> int:
        """Count the copies of replays among the first COUNTED that are delayed."""
        sql = f"SELECT count(replay) FROM (SELECT replay FROM {self._p}parked WHERE state = 'delayed' LIMIT {COUNTED})"
        count: int = db.execute(sql).fetchone()[0]
        return count

    def _overdue(self, db: sqlite3.Connection) -> list[tuple[str, int, int, int]]:
        """Count the delayed ones whose time has come, by topic, of the first COUNTED that are due; since when, and how
        many of them are copies of a replay."""
        return db.execute(
            "SELECT topic, count(*), min(due_at), count(replay) FROM ("
            f"SELECT topic, state, due_at, replay FROM {self._p}parked INDEXED BY {self._p}parked_free"
            f" WHERE line IS NULL AND state IN ('retrying', 'delayed') AND due_at <= ? ORDER BY due_at, id"
            f" LIMIT {COUNTED}) WHERE state = 'delayed' GROUP BY topic",
            (microseconds(self._clock.now()),),
        ).fetchall()

    def _blocked_lines(self, db: sqlite3.Connection) -> int:
        sql = (
            f"SELECT count(*) FROM (SELECT DISTINCT line FROM {self._p}parked INDEXED BY {self._p}parked_line"
            f" WHERE {parking.IN_LINE} LIMIT {COUNTED})"
        )
        count: int = db.execute(sql).fetchone()[0]
        return count

    def _published_lately(self, db: sqlite3.Connection) -> int:
        sql = f"SELECT coalesce(sum(published), 0) FROM {self._p}ticks WHERE topic IS ? AND at > ?"
        since = microseconds(self._clock.now() - LATELY)
        lines = (None, *detoured_topics(db, self._p))
        return sum(db.execute(sql, (topic, since)).fetchone()[0] for topic in lines)

    def _count(self, db: sqlite3.Connection, table: str, state: str) -> int:
        sql = f"SELECT count(*) FROM (SELECT 1 FROM {self._p}{table} WHERE state = ? LIMIT {COUNTED})"
        count: int = db.execute(sql, (state,)).fetchone()[0]
        return count

    def _receives(self, db: sqlite3.Connection) -> bool:
        sql = f"SELECT EXISTS (SELECT 1 FROM {self._p}inbox) OR EXISTS (SELECT 1 FROM {self._p}inbox_parked)"
        return bool(db.execute(sql).fetchone()[0])

    def _full(self, db: sqlite3.Connection) -> FullLot | None:
        lines = db.execute(
            f"SELECT count(*), min(id), position FROM {self._p}parked INDEXED BY {self._p}parked_line"
            f" WHERE {parking.IN_LINE} GROUP BY line"
        ).fetchall()
        standing = sum(count for count, _, _ in lines)
        if standing < parking.ROOM:
            return None
        longest, _, position = max(lines)
        head = self._finder.at(db, position)
        return FullLot(standing, head, longest - 1) if head else None

    def _pauses(self, db: sqlite3.Connection) -> list[Pause]:
        rows = db.execute(f"SELECT topic, since, who, why FROM {self._p}pauses ORDER BY topic")
        return [Pause(topic, instant(since), who, why) for topic, since, who, why in rows]

    def _relays(self, db: sqlite3.Connection) -> list[RelaySeen]:
        rows = db.execute(
            "SELECT r.owner, seen_at, lease_until, l.owner IS NOT NULL, locked, away_since, away_error"
            f" FROM {self._p}relays r LEFT JOIN {self._p}lanes l ON l.owner = r.owner ORDER BY seen_at DESC"
        )
        return [
            RelaySeen(
                owner,
                instant(seen),
                # A holder whose lock the kernel has freed is dead, whatever its lease says.
                instant(seen if locked and holds and is_free(lock_file(self._path, self._p)) else until),
                LANES if holds else 0,
                None if since is None else Away(instant(since), error),
            )
            for owner, seen, until, holds, locked, since, error in rows
        ]


def _total(parked: dict[str, dict[Status, int]], state: Status) -> int:
    return sum(of.get(state, 0) for of in parked.values())


def _bytes(db: sqlite3.Connection) -> dict[str, int]:
    [pages], [size] = db.execute("PRAGMA page_count").fetchone(), db.execute("PRAGMA page_size").fetchone()
    return {"file": pages * size}
