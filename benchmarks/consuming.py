"""How fast a consumer applies events through the inbox, beside plain code with the same effects and no inbox."""

import asyncio
import json
import sqlite3
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks import shop
from benchmarks.measure import Goal, Progress, Row, in_turns, one_after_the_other
from pillarbox import Event
from pillarbox.dbapi import Inbox
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import Consumer, Relay

INVOICE = "INSERT INTO invoices (order_id, total) VALUES (?, ?)"
DEADLINE = 300.0


def rows(place: Path, quick: bool, tell: Progress) -> list[Row]:
    count = 300 if quick else 3_000
    alone = one_after_the_other(lambda at: _consumer(at, count), lambda at: _plain(at, count))
    shared = one_after_the_other(lambda at: _consumer(at, count, batch=True), lambda at: _consumer(at, count))
    return [
        in_turns("consume through the inbox, beside no inbox", "events/s", alone, place, tell, Goal(">=", 0.6)),
        in_turns("consume with batch=True, beside one per transaction", "events/s", shared, place, tell, Goal(">=", 5)),
    ]


def _prepare(at: Path, count: int) -> Path:
    """Fill the broker's file, and make a billing database with Pillarbox's tables and one of its own."""
    broker = at / "stream.db"
    relay = Relay(
        database=f"sqlite:///{shop.filled(at / 'shop.db', count)}", broker=f"sqlite:///{broker}", hooks=Hooks()
    )
    asyncio.run(relay.run_once())
    shop.migrate(at / "billing.db")
    billing = shop.connect(at / "billing.db")
    billing.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, order_id INTEGER NOT NULL, total TEXT NOT NULL)")
    billing.close()
    return broker


def _consumer(at: Path, count: int, *, batch: bool = False) -> float:
    broker, done = _prepare(at, count), asyncio.Event()
    inbox, handled = Inbox("billing", lambda: shop.connect(at / "billing.db")), 0

    async def consume() -> float:
        loop = asyncio.get_running_loop()

        def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
            connection.execute(INVOICE, (event.payload["order_id"], event.payload["total"]))
            note(1)

        def bill_all(connection: sqlite3.Connection, events: list[Event[Any]]) -> None:
            invoices = [(event.payload["order_id"], event.payload["total"]) for event in events]
            connection.executemany(INVOICE, invoices)
            note(len(events))

        def note(events: int) -> None:
            nonlocal handled
            handled += events
            if handled == count:
                loop.call_soon_threadsafe(done.set)

        if batch:
            inbox.handler("OrderPlaced", batch=True)(bill_all)
        else:
            inbox.handler("OrderPlaced")(bill)
        began = perf_counter()
        async with Consumer(inbox, broker=f"sqlite:///{broker}", topics=[shop.TOPIC], hooks=Hooks()):
            await asyncio.wait_for(done.wait(), DEADLINE)
            return perf_counter() - began

    seconds = asyncio.run(consume())
    _check(at, count)
    return count / seconds


def _plain(at: Path, count: int) -> float:
    broker, billing = shop.connect(_prepare(at, count)), shop.connect(at / "billing.db")
    began, last = perf_counter(), 0
    while messages := broker.execute(
        "SELECT id, body FROM messages WHERE id > ? ORDER BY id LIMIT 100", (last,)
    ).fetchall():
        for id, body in messages:
            order = json.loads(body)
            billing.execute("BEGIN IMMEDIATE")
            billing.execute(INVOICE, (order["order_id"], order["total"]))
            billing.execute("COMMIT")
            last = id
    seconds = perf_counter() - began
    broker.close()
    billing.close()
    _check(at, count)
    return count / seconds


def _check(at: Path, count: int) -> None:
    billing = sqlite3.connect(at / "billing.db")
    (applied,) = billing.execute("SELECT count(*) FROM invoices").fetchone()
    billing.close()
    if applied != count:
        raise RuntimeError(f"{applied} invoices were written, not {count}")
