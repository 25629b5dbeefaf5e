"""The canary in an SQLite file: an event of our own, and a note of which one is the newest."""

import sqlite3
from typing import Any

from pillarbox.core.event import Event
from pillarbox.core.insert import Place, insertion, microseconds
from pillarbox.ports import CanarySeen, Clock, Query
from pillarbox.stores.sqlite.connection import writing
from pillarbox.stores.sqlite.records import Finder
from pillarbox.stores.sqlite.rows import instant


class Canaries:
    """Adds canaries, and says what has become of the newest."""

    def __init__(self, prefix: str, finder: Finder, clock: Clock) -> None:
        self._p, self._finder, self._clock = prefix, finder, clock
        self._place = Place(prefix=prefix)

    def add(self, db: sqlite3.Connection, event: Event[Any]) -> None:
        """Add one, and note it."""
        with writing(db):
            for statement in insertion((event,), self._place):
                db.executemany(statement.sql, statement.rows or ())
            db.execute(
                f"INSERT INTO {self._p}meta (name, value) VALUES ('canary', ?)"
                " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (f"{event.id} {microseconds(self._clock.now())}",),
            )

    def seen(self, db: sqlite3.Connection) -> CanarySeen | None:
        """Look what has become of the newest."""
        row = db.execute(f"SELECT value FROM {self._p}meta WHERE name = 'canary'").fetchone()
        if row is None:
            return None
        id, at = row[0].split()
        for record in self._finder.find(db, Query(ids=(id,))):
            return CanarySeen(id, instant(int(at)), record.status, record.last_error)
        return CanarySeen(id, instant(int(at)), "published")
