"""Positions, as the ticks have them: how far the main line and every topic with a place of its own are settled."""

import sqlite3
from typing import NamedTuple

from pillarbox.errors import StoreError


class Positions(NamedTuple):
    """`detours` are open, or closed ahead of the main position (`closed_ahead`), which then still hold."""

    main: int
    detours: dict[str, int]
    closed_ahead: frozenset[str]

    def of(self, topic: str) -> int:
        """Say up to where a topic is settled."""
        return self.detours.get(topic, self.main)

    @property
    def lowest(self) -> int:
        return min(self.main, *self.detours.values()) if self.detours else self.main


def load_positions(db: sqlite3.Connection, prefix: str) -> Positions:
    """Read the newest ticks."""
    row = db.execute(f"SELECT last_id FROM {prefix}ticks WHERE topic IS NULL ORDER BY n DESC LIMIT 1").fetchone()
    if row is None:
        raise StoreError(f"{prefix}ticks holds no position; restore the table, or everything would be published again")
    main: int = row[0]
    newest = db.execute(
        "WITH RECURSIVE detour(topic) AS ("  # from topic to topic through the index, however many ticks they have
        f" SELECT min(topic) FROM {prefix}ticks WHERE topic IS NOT NULL UNION ALL"
        f" SELECT (SELECT min(topic) FROM {prefix}ticks t WHERE t.topic > detour.topic) FROM detour"
        " WHERE detour.topic IS NOT NULL)"
        f" SELECT t.topic, t.last_id, t.closed FROM detour JOIN {prefix}ticks t"
        f" ON t.n = (SELECT max(n) FROM {prefix}ticks WHERE topic = detour.topic)"
    ).fetchall()
    detours = {topic: last_id for topic, last_id, closed in newest if not closed or last_id > main}
    return Positions(main, detours, frozenset(topic for topic, _, closed in newest if closed and topic in detours))


def published_at(prefix: str, entry: str) -> str:
    """Write SQL for the time of the first tick that covers `entry` (a table with id and topic)."""
    # A detour's tick counts, unless it is the one that opened it: then the main line had settled the entry before.
    covers = f"last_id >= {entry}.id ORDER BY last_id, n LIMIT 1"
    return (
        f"coalesce((SELECT CASE WHEN opened THEN NULL ELSE at END FROM {prefix}ticks"
        f" WHERE topic = {entry}.topic AND {covers}),"
        f" (SELECT at FROM {prefix}ticks WHERE topic IS NULL AND {covers}))"
    )
