"""Gauges: how far the shop, the broker and billing are, by plain SQL over their files while they work."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple


class Reading(NamedTuple):
    """Counts of events at one moment; copies on the wire count once in `published`."""

    committed: int = 0
    published: int = 0
    copies: int = 0
    applied: int = 0

    @property
    def unpublished(self) -> int:
        """The relay's backlog."""
        return self.committed - self.published

    @property
    def unapplied(self) -> int:
        """The consumer's backlog."""
        return self.published - self.applied


class Gauges:
    """Reads the three files; what it has read of the stream it does not read again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._last_message = 0
        self._messages = 0
        self._ids: set[str] = set()

    def read(self) -> Reading:
        # Against the flow, so that a backlog may look larger than it is, and never negative.
        [[applied]] = self._rows("billing.db", "SELECT count(*) FROM ledger") or [[0]]
        self._read_stream()
        [[committed]] = self._rows("shop.db", "SELECT coalesce(sum(events), 0) FROM journal") or [[0]]
        return Reading(committed, len(self._ids), self._messages - len(self._ids), applied)

    def all_delivered(self) -> bool:
        """Say whether the consumer has acknowledged everything on the wire, copies too."""
        return not self._rows(
            "stream.db",
            "SELECT 1 FROM messages LEFT JOIN positions USING (topic, partition)"
            " WHERE messages.id > coalesce(positions.position, 0) LIMIT 1",
        )

    def _read_stream(self) -> None:
        new = self._rows(
            "stream.db",
            "SELECT id, json_extract(headers, '$.id') FROM messages WHERE id > ? ORDER BY id",
            self._last_message,
        )
        for position, event_id in new:
            self._last_message = position
            self._messages += 1
            self._ids.add(event_id)

    def _rows(self, name: str, sql: str, *parameters: object) -> list[Any]:
        file = self._directory / name
        if not file.exists():
            return []
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            try:
                return connection.execute(sql, parameters).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" in str(error):
                    return []
                raise
