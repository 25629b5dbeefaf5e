"""What `outbox.add` costs, beside code that makes an id, dumps the JSON and inserts into the same table."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from uuid import uuid4

from benchmarks import shop
from benchmarks.measure import Goal, Progress, Row, in_turns
from pillarbox.dbapi import Outbox

INSERT = """
    INSERT INTO pillarbox_outbox (event_id, aggregate_type, aggregate_id, event_type, topic, payload)
    VALUES (?, ?, ?, ?, ?, ?)
"""
Add = Callable[[sqlite3.Connection, range], None]


def rows(place: Path, quick: bool, tell: Progress) -> list[Row]:
    bulk, single = (5, 100) if quick else (40, 2_000)
    return [
        in_turns(
            "outbox.add, 1,000 events a transaction", "µs/event", lambda at: _time(at, bulk, 1000), place, tell,
            Goal("<=", 1.5),
        ),
        in_turns(
            "outbox.add, one event a durable commit", "µs/event", lambda at: _time(at, single, 1), place, tell,
            Goal("<=", 1.1),
        ),
    ]  # fmt: skip


_outbox = Outbox()


def _add(connection: sqlite3.Connection, numbers: range) -> None:
    _outbox.add(connection, *[shop.event(n) for n in numbers])


def _by_hand(connection: sqlite3.Connection, numbers: range) -> None:
    connection.executemany(
        INSERT,
        [
            (str(uuid4()), "order", str(n % shop.ORDERS), "OrderPlaced", shop.TOPIC, json.dumps(shop.payload(n)))
            for n in numbers
        ],
    )


def _time(at: Path, transactions: int, events: int) -> tuple[float, float]:
    """Give microseconds an event, the commit included; the two ways alternate, each in its own file."""
    ways = [_Way(at / "ours.db", _add), _Way(at / "reference.db", _by_hand)]
    for turn in range(transactions):
        for way in ways:
            way.add(range(turn * events, (turn + 1) * events))
    ours, reference = (way.finish(transactions * events) for way in ways)
    return ours, reference


class _Way:
    """One way to add events, with its file and the time that it has taken."""

    def __init__(self, path: Path, add: Add) -> None:
        shop.migrate(path)
        self._connection, self._add, self._seconds = shop.connect(path), add, 0.0

    def add(self, numbers: range) -> None:
        began = perf_counter()
        self._connection.execute("BEGIN IMMEDIATE")
        self._add(self._connection, numbers)
        self._connection.execute("COMMIT")
        self._seconds += perf_counter() - began

    def finish(self, count: int) -> float:
        (stored,) = self._connection.execute("SELECT count(*) FROM pillarbox_outbox").fetchone()
        self._connection.close()
        if stored != count:
            raise RuntimeError(f"{stored} events were stored, not {count}")
        return self._seconds / count * 1e6
