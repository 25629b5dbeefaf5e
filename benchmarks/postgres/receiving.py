"""How fast a consumer handles events through the inbox on PostgreSQL: beside the same handler with no inbox, with
events that share a transaction, and stored first. What arrives is in memory: no broker is measured."""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any
from uuid import UUID

import psycopg

from benchmarks.measure import Goal, Progress, Row, compared, in_turn
from benchmarks.postgres import shop
from pillarbox import Event
from pillarbox.core.message import Delivery, Message, decode
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topics
from pillarbox.inbox.consumer import Consumer
from pillarbox.psycopg import Inbox
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import SystemClock
from servers.postgres import RunningPostgres

TOPIC, ORDERS, WORKERS = "order-events", 200, 8
INVOICE = "INSERT INTO invoices (order_id, total) VALUES (%s, %s)"
INVOICES = "INSERT INTO invoices (order_id, total) SELECT * FROM unnest(%s::int[], %s::int[])"


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    """Compare handling with the inbox and without, one event per transaction and many."""
    count = 800 if quick else 8_000
    plain, alone, stored = "no inbox", "one per transaction", "stored first"
    shared, each = "batch=True", "batch=True with a statement for each"
    ways: dict[str, Callable[[], float]] = {
        plain: lambda: _measured(server, count, _without),
        alone: lambda: _measured(server, count, lambda url, them: _through(url, them)),
        shared: lambda: _measured(server, count, lambda url, them: _through(url, them, batch=_bill_all)),
        each: lambda: _measured(server, count, lambda url, them: _through(url, them, batch=_bill_each)),
        stored: lambda: _measured(server, count, lambda url, them: _through(url, them, stores=True)),
    }
    found = in_turn("handle on PostgreSQL", ways, tell)
    wanted = (
        (alone, plain, Goal(">=", 0.6)),
        (shared, alone, Goal(">=", 5)),
        (each, alone, None),
        (stored, alone, None),
    )
    return [
        compared(f"handle on PostgreSQL, {ours}, beside {other}", "events/s", found[ours], found[other], goal)
        for ours, other, goal in wanted
    ]


def _measured(server: RunningPostgres, count: int, handle: Callable[[str, Sequence[Delivery]], float]) -> float:
    """Handle `count` events in a database of its own; give events a second."""
    with shop.database(server) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE invoices (id bigint GENERATED ALWAYS AS IDENTITY, order_id int, total int)"
            )
        seconds = handle(url, [_delivery(n) for n in range(count)])
        with psycopg.connect(url) as connection:
            found = connection.execute("SELECT count(*) FROM invoices").fetchone()
        if found != (count,):
            raise RuntimeError(f"{found} invoices were written, not {count}")
    return count / seconds


def _delivery(n: int) -> Delivery:
    order = str(n % ORDERS)
    headers = {"id": str(UUID(int=n)), "type": "OrderPlaced", "aggregate_type": "order", "aggregate_id": order}
    return Delivery(Message(TOPIC, order, headers, json.dumps({"order": n % ORDERS, "total": n}).encode()))


def _bill(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
    connection.execute(INVOICE, (event.payload["order"], event.payload["total"]))


def _bill_all(connection: "psycopg.Connection[Any]", events: list[Event[Any]]) -> None:
    """Write the invoices of a list with one statement, as the guide advises."""
    payloads = [event.payload for event in events]
    connection.execute(INVOICES, ([one["order"] for one in payloads], [one["total"] for one in payloads]))


def _bill_each(connection: "psycopg.Connection[Any]", events: list[Event[Any]]) -> None:
    connection.cursor().executemany(INVOICE, [(event.payload["order"], event.payload["total"]) for event in events])


Bill = Callable[["psycopg.Connection[Any]", list[Event[Any]]], None]


class _Source:
    """A subscriber that has everything at hand."""

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        self._left = list(deliveries)

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        given, self._left = self._left[:room], self._left[room:]
        if not given:
            await asyncio.sleep(patience)
        return given

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Nobody counts them."""

    async def close(self) -> None:
        """There is nothing to leave."""


def _through(url: str, deliveries: Sequence[Delivery], *, batch: Bill | None = None, stores: bool = False) -> float:
    inbox = Inbox("billing", lambda: psycopg.connect(url))
    left, done = iter(range(len(deliveries) - 1, -1, -1)), asyncio.Event()

    async def consume() -> float:
        loop = asyncio.get_running_loop()

        def count(events: int) -> None:
            for _ in range(events):
                if not next(left):
                    loop.call_soon_threadsafe(done.set)

        def bill(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
            _bill(connection, event)
            count(1)

        def bill_all(connection: "psycopg.Connection[Any]", events: list[Event[Any]]) -> None:
            assert batch is not None
            batch(connection, events)
            count(len(events))

        if batch:
            inbox.handler("OrderPlaced", batch=True)(bill_all)
        else:
            inbox.handler("OrderPlaced")(bill)
        source = _Source(deliveries)
        consumer = Consumer(
            inbox, lambda: source, RetryPolicy(), WORKERS, Topics(), SystemClock(), Hooks(), stores=stores
        )
        began = perf_counter()
        async with consumer:
            await done.wait()
            consumer.stop()
        return perf_counter() - began

    return asyncio.run(consume())


def _without(url: str, deliveries: Sequence[Delivery]) -> float:
    """Call the same handler in as many threads, one transaction each, and remember nothing."""

    def work(share: Sequence[Delivery]) -> None:
        with psycopg.connect(url) as connection:
            for delivery in share:
                with connection.transaction():
                    _bill(connection, decode(delivery))

    began = perf_counter()
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(work, [deliveries[n::WORKERS] for n in range(WORKERS)]))
    return perf_counter() - began
