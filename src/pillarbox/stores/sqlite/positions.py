"""Positions, as the ticks have them: how far the main line and every topic with a place of its own are settled."""

import sqlite3
from typing import NamedTuple

from pillarbox.errors import StoreError

_COUNTED = 10_000
"""How many rows a message counts: looking through the whole log would hold up the relay that it stops."""


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

    @property
    def highest(self) -> int:
        return max(self.main, *self.detours.values()) if self.detours else self.main


def load_positions(db: sqlite3.Connection, prefix: str) -> Positions:
    """Read the newest ticks."""
    row = _newest(db, prefix, None)
    if row is None:
        raise StoreError(f"{prefix}ticks holds no position; restore the table, or everything would be published again")
    main: int = row[0]
    newest = {topic: _newest(db, prefix, topic) or (0, 1) for topic in detoured_topics(db, prefix)}
    detours = {topic: last_id for topic, (last_id, closed) in newest.items() if not closed or last_id > main}
    return Positions(main, detours, frozenset(topic for topic in detours if newest[topic][1]))


def begun_again(db: sqlite3.Connection, prefix: str, position: int) -> str | None:
    """Say so, with the cure, if ids are given anew that lie at or below a position: nobody would ever read those."""
    outbox = f"{prefix}outbox"
    [newest] = db.execute(
        "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = ?), 0),"
        f" coalesce((SELECT max(id) FROM {outbox}), 0))",
        (outbox,),
    ).fetchone()
    if newest >= position:
        return None
    # What stands in the parking lot is not new: it keeps its place.
    new = (
        f"id <= {position} AND NOT EXISTS (SELECT 1 FROM {prefix}parked p"
        f" WHERE p.position = {outbox}.id AND p.event_id = {outbox}.event_id)"
    )
    [count] = db.execute(f"SELECT count(*) FROM (SELECT 1 FROM {outbox} WHERE {new} LIMIT {_COUNTED + 1})").fetchone()
    many = f"more than {_COUNTED:,}" if count > _COUNTED else str(count)
    return (
        f"the ids of {outbox} have begun again: the newest is {newest}, but everything up to {position} is settled, so"
        f" {many} {'row' if count == 1 else 'rows'} below would never be published. The table was rebuilt or emptied"
        " together with its row in sqlite_sequence. Move the rows above the position, in their order, with this SQL:"
        f" BEGIN IMMEDIATE; UPDATE {outbox} SET id = id + {position} WHERE {new};"
        f" DELETE FROM sqlite_sequence WHERE name = '{outbox}';"
        f" INSERT INTO sqlite_sequence (name, seq) SELECT '{outbox}', max({position}, coalesce(max(id), 0))"
        f" FROM {outbox}; COMMIT;"
    )


def _newest(db: sqlite3.Connection, prefix: str, topic: str | None) -> tuple[int, int] | None:
    sql = f"SELECT last_id, closed FROM {prefix}ticks WHERE topic IS ? ORDER BY n DESC LIMIT 1"
    row: tuple[int, int] | None = db.execute(sql, (topic,)).fetchone()
    return row


def detoured_topics(db: sqlite3.Connection, prefix: str) -> list[str]:
    """List the topics that have ticks of their own: from one to the next through the index, however many they have."""
    topics: list[str] = []
    while topic := db.execute(f"SELECT min(topic) FROM {prefix}ticks WHERE topic > ?", topics[-1:] or [""]).fetchone()[
        0
    ]:
        topics.append(topic)
    return topics


def published_at(prefix: str, entry: str) -> str:
    """Write SQL for the time of the first tick that covers `entry` (a table with id and topic)."""
    # A detour's tick counts, unless it is the one that opened it: then the main line had settled the entry before.
    covers = f"last_id >= {entry}.id ORDER BY last_id, n LIMIT 1"
    return (
        f"coalesce((SELECT CASE WHEN opened THEN NULL ELSE at END FROM {prefix}ticks"
        f" WHERE topic = {entry}.topic AND {covers}),"
        f" (SELECT at FROM {prefix}ticks WHERE topic IS NULL AND {covers}))"
    )
