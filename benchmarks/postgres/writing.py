"""What an event costs a writer: transactions a second with an event beside those without, durable commits.

The business write is small, an UPDATE and an INSERT, so this is near the worst case: in a larger one an event counts
for less.
"""

import multiprocessing
from collections.abc import Callable
from random import randrange
from time import perf_counter
from typing import Any

import psycopg

from benchmarks import shop as events
from benchmarks.measure import Goal, Progress, Row, compared, in_turn
from benchmarks.postgres import shop
from pillarbox.psycopg import Outbox
from servers.postgres import RunningPostgres

ACCOUNTS = 10_000
TABLES = (
    "CREATE TABLE accounts (id bigint PRIMARY KEY, balance numeric NOT NULL, orders bigint NOT NULL)",
    f"INSERT INTO accounts SELECT n, 1000, 0 FROM generate_series(0, {ACCOUNTS - 1}) n",
    "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account bigint NOT NULL, total numeric)",
)
_spawn = multiprocessing.get_context("spawn")


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    seconds = 1.0 if quick else 4.0
    with shop.database(server) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in TABLES:
                connection.execute(statement.encode())
        shop.settle_down(url)
        return [
            _row(url, 8, seconds, tell, Goal(">=", 0.7)),
            _row(url, 1, seconds, tell),
        ]


def _row(url: str, count: int, seconds: float, tell: Progress, goal: Goal | None = None) -> Row:
    """Let the same writers work both ways by turns."""
    writers = [_Writer(url) for _ in range(count)]

    def together(with_event: bool) -> Callable[[], float]:
        def measure() -> float:
            shop.settle_down(url)
            for writer in writers:
                writer.begin(seconds, with_event)
            return sum(writer.result() for writer in writers)

        return measure

    name = f"a transaction with an event, {count} {'writers' if count > 1 else 'writer'}"
    try:
        together(True)()  # caches, prepared statements
        found = in_turn(name, {"with": together(True), "without": together(False)}, tell)
    finally:
        for writer in writers:
            writer.end()
    return compared(name, "transactions/s", found["with"], found["without"], goal)


class _Writer:
    """A process with one connection, as an application's worker has."""

    def __init__(self, url: str) -> None:
        self._ours, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_work, args=(url, theirs), daemon=True)
        self._process.start()

    def begin(self, seconds: float, with_event: bool) -> None:
        self._ours.send((seconds, with_event))

    def result(self) -> float:
        rate: float = self._ours.recv()
        return rate

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def _work(url: str, orders: Any) -> None:
    outbox = Outbox()
    with psycopg.connect(url) as connection:
        while True:
            seconds, with_event = orders.recv()
            began, count = perf_counter(), 0
            while perf_counter() < began + seconds:
                with connection.transaction():
                    _order(connection, randrange(ACCOUNTS))
                    if with_event:
                        outbox.add(connection, events.event(count))
                count += 1
            orders.send(count / (perf_counter() - began))


def _order(connection: psycopg.Connection[Any], account: int) -> None:
    connection.execute("UPDATE accounts SET balance = balance - 1, orders = orders + 1 WHERE id = %s", [account])
    connection.execute("INSERT INTO orders (account, total) VALUES (%s, %s)", [account, "288.80"])
