"""Retention: deletes what has been settled for long enough, by id, in bounded batches. Never by an event's own time."""

import sqlite3
from datetime import timedelta

from pillarbox.core.insert import microseconds
from pillarbox.ports import Clock, Retention
from pillarbox.stores.sqlite.connection import writing
from pillarbox.stores.sqlite.positions import detoured_topics, load_positions, published_at
from pillarbox.stores.sqlite.rows import STORED, as_published

BATCH = 5_000
KEYS = timedelta(days=30)
FINE = timedelta(minutes=1)
"""So long every tick is kept; then the last one of each second."""


class Pruner:
    """One bounded batch per call, in one transaction."""

    def __init__(self, prefix: str, clock: Clock) -> None:
        self._p, self._clock = prefix, clock

    def prune(self, db: sqlite3.Connection, retention: Retention, deed: int | None = None) -> int:
        """Delete a batch of everything that is old enough; give how many rows went."""
        with writing(db):
            count = self._thin(db, self._ago(FINE))
            if retention.published is not None:
                old = self._ago(retention.published)
                count += self._prune_log(db, old, archive=retention.archive != timedelta(0))
                count += self._prune_parked(db, old)
                count += self._prune_ticks(db, old)
            if retention.archive is not None:
                count += self._prune_archive(db, self._ago(retention.archive))
            if retention.inbox is not None:
                old = self._ago(retention.inbox)
                count += self._prune_inbox(db, old)
                settled = "state IN ('handled', 'dropped') AND settled_at <= ?"
                count += self._delete(db, "inbox_parked", settled, old)
            count += self._prune_keys(db, self._ago(KEYS))
            db.execute(f"UPDATE {self._p}audit SET count = count + ? WHERE n = ?", (count, deed))
            return count

    def _ago(self, age: timedelta) -> int:
        return microseconds(self._clock.now() - age)

    def _delete(self, db: sqlite3.Connection, table: str, where: str, *parameters: object) -> int:
        chosen = f"SELECT rowid FROM {self._p}{table} WHERE {where} LIMIT {BATCH}"
        return db.execute(f"DELETE FROM {self._p}{table} WHERE rowid IN ({chosen})", parameters).rowcount

    def _prune_log(self, db: sqlite3.Connection, old: int, *, archive: bool) -> int:
        """Delete (or move to the archive) entries that every position has passed, and whose tick is old."""
        # In the lot: still waiting there, or settled there only lately.
        chosen = (
            f"SELECT id FROM {self._p}outbox o WHERE id <= :horizon AND NOT EXISTS"
            f" (SELECT 1 FROM {self._p}parked WHERE position = o.id AND (settled_at IS NULL OR settled_at > :old))"
            f" ORDER BY id LIMIT {BATCH}"
        )
        named = {"horizon": self._horizon(db, old), "old": old}
        if archive:
            db.execute(
                f"INSERT INTO {self._p}archive (id, {STORED}, status, attempts, last_error, published_at, archived_at)"
                f" SELECT o.id, {as_published('o', 'p')}, coalesce(p.state, 'published'), coalesce(p.attempts, 0),"
                f" p.last_error, coalesce(p.settled_at, {published_at(self._p, 'o')}), :now"
                f" FROM {self._p}outbox o LEFT JOIN {self._p}parked p"
                f" ON p.id = (SELECT max(id) FROM {self._p}parked WHERE position = o.id AND replay IS NULL)"
                f" WHERE o.id IN ({chosen})",
                named | {"now": microseconds(self._clock.now())},
            )
        return db.execute(f"DELETE FROM {self._p}outbox WHERE id IN ({chosen})", named).rowcount

    def _horizon(self, db: sqlite3.Connection, old: int) -> int:
        """Give the place up to which everything was settled by then, on the main line and on every detour."""
        newest = f"SELECT last_id FROM {self._p}ticks WHERE topic IS ? AND at <= ? ORDER BY at DESC, n DESC LIMIT 1"
        main = db.execute(newest, (None, old)).fetchone()
        places = [load_positions(db, self._p).lowest, main[0] if main else 0]
        for topic in detoured_topics(db, self._p):
            first = f"SELECT min(last_id) FROM {self._p}ticks WHERE topic = ? AND at > ?"
            [lately] = db.execute(first, (topic, old)).fetchone()
            if lately is not None:
                before = db.execute(newest, (topic, old)).fetchone()
                places.append(before[0] if before else lately)
        return min(places)

    def _prune_parked(self, db: sqlite3.Connection, old: int) -> int:
        """Delete copies that are settled; only after their entry, which would otherwise look published."""
        left = f"(replay IS NOT NULL OR NOT EXISTS (SELECT 1 FROM {self._p}outbox WHERE id = position))"
        return self._delete(db, "parked", f"state IN ('published', 'dropped') AND settled_at <= ? AND {left}", old)

    def _prune_archive(self, db: sqlite3.Connection, old: int) -> int:
        """Delete what was archived; not while a replayed copy waits or is dead, which nobody could find then."""
        copied = f"SELECT 1 FROM {self._p}parked WHERE position = {self._p}archive.id AND settled_at IS NULL"
        return self._delete(db, "archive", f"archived_at <= ? AND NOT EXISTS ({copied})", old)

    def _prune_ticks(self, db: sqlite3.Connection, old: int) -> int:
        """Delete ticks that no entry in the log needs for its time; the newest of every line stays."""
        [first] = db.execute(f"SELECT min(id) FROM {self._p}outbox").fetchone()
        first = load_positions(db, self._p).lowest if first is None else first
        newest = f"SELECT max(n) FROM {self._p}ticks WHERE topic IS :topic"
        chosen = (
            f"SELECT n FROM {self._p}ticks INDEXED BY {self._p}ticks_last WHERE topic IS :topic AND last_id < :first"
            f" AND at <= :old AND n < ({newest}) LIMIT {BATCH}"
        )
        return sum(
            db.execute(
                f"DELETE FROM {self._p}ticks WHERE n IN ({chosen})", {"topic": topic, "first": first, "old": old}
            ).rowcount
            for topic in (None, *detoured_topics(db, self._p))
        )

    def _thin(self, db: sqlite3.Connection, old: int) -> int:
        """Leave one tick of each second, the last, with the counts of all; from where the previous call came to."""
        row = db.execute(f"SELECT value FROM {self._p}meta WHERE name = 'thinned'").fetchone()
        rows = db.execute(
            f"SELECT n, topic, at / 1000000, published, failed FROM {self._p}ticks WHERE n > ? AND at < ?"
            f" AND NOT opened AND NOT closed ORDER BY n LIMIT {BATCH}",
            (int(row[0]) if row else 0, old // 1_000_000 * 1_000_000),
        ).fetchall()
        kept: dict[tuple[str | None, int], tuple[int, int, int]] = {}
        gone = []
        for n, topic, second, published, failed in rows:
            if earlier := kept.get((topic, second)):
                gone.append((earlier[0],))
                published, failed = published + earlier[1], failed + earlier[2]
            kept[topic, second] = n, published, failed
        if gone:
            db.executemany(f"DELETE FROM {self._p}ticks WHERE n = ?", gone)
            counts = [(published, failed, n) for n, published, failed in kept.values()]
            db.executemany(f"UPDATE {self._p}ticks SET published = ?, failed = ? WHERE n = ?", counts)
        if rows:
            # A full batch may have cut a second in two: what is left of it comes again the next time.
            last = rows[-1][2]
            reached = min(n for (_, second), (n, _, _) in kept.items() if second == last) - 1
            self._note_thinned(db, reached if len(rows) == BATCH else rows[-1][0])
        return len(gone)

    def _note_thinned(self, db: sqlite3.Connection, n: int) -> None:
        db.execute(
            f"INSERT INTO {self._p}meta (name, value) VALUES ('thinned', ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (str(n),),
        )

    def _prune_inbox(self, db: sqlite3.Connection, old: int) -> int:
        # A dead letter whose handler committed by itself is known by its row here: it must not run again when retried.
        kept = f"SELECT consumer, event_id FROM {self._p}inbox_parked WHERE state NOT IN ('handled', 'dropped')"
        chosen = (
            f"SELECT consumer, event_id FROM {self._p}inbox WHERE handled_at <= ?"
            f" AND (consumer, event_id) NOT IN ({kept}) LIMIT {BATCH}"
        )
        return db.execute(f"DELETE FROM {self._p}inbox WHERE (consumer, event_id) IN ({chosen})", (old,)).rowcount

    def _prune_keys(self, db: sqlite3.Connection, old: int) -> int:
        chosen = f"SELECT key FROM {self._p}keys WHERE created_at <= ? LIMIT {BATCH}"
        return db.execute(f"DELETE FROM {self._p}keys WHERE key IN ({chosen})", (old,)).rowcount
