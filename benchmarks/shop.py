"""The shop that every benchmark fills its outbox with: the same payload of about 310 bytes, 500 orders in turns."""

import asyncio
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

from pillarbox import Event
from pillarbox.core.routing import Topics
from pillarbox.dbapi import Outbox
from pillarbox.stores.sqlite.store import SqliteStore
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import SystemClock

ORDERS = 500
TOPIC = "order-events"


def payload(n: int) -> dict[str, Any]:
    """Give the n-th order as an application would write it."""
    return {
        "order_id": n,
        "customer": {"id": 1000 + n % 97, "name": "Marguerite Dubois", "email": "marguerite.dubois@example.org"},
        "lines": [
            {"article": "A-4711", "quantity": 2, "price": "19.90", "currency": "EUR"},
            {"article": "B-0815", "quantity": 1, "price": "249.00", "currency": "EUR"},
        ],
        "total": "288.80",
        "paid": True,
        "note": "please ring twice",
    }


def event(n: int) -> Event[Any]:
    """Give the n-th event."""
    return Event("OrderPlaced", payload(n), aggregate=("order", n % ORDERS))


def store_at(path: Path) -> SqliteStore:
    """Give the relay's access to the outbox in this file."""
    return SqliteStore(
        str(path), owner="benchmark", lease=timedelta(seconds=15), topics=Topics(), clock=SystemClock(), hooks=Hooks()
    )


def connect(path: Path) -> sqlite3.Connection:
    """Open a file as durably as Pillarbox does: write-ahead log, synchronous=FULL."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").fetchone()
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def migrate(path: Path) -> None:
    """Make Pillarbox's tables."""

    async def up() -> None:
        store = store_at(path)
        await store.open()
        await store.up()
        await store.close()

    asyncio.run(up())


def filled(path: Path, count: int) -> Path:
    """Make a shop whose outbox holds `count` events that nobody has published."""
    migrate(path)
    connection, outbox = connect(path), Outbox()
    for start in range(0, count, 1000):
        connection.execute("BEGIN IMMEDIATE")
        outbox.add(connection, *(event(n) for n in range(start, min(start + 1000, count))))
        connection.execute("COMMIT")
    connection.close()
    return path
