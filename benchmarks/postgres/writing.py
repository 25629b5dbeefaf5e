"""What an event costs a writer: transactions a second with an event beside those without, durable commits.

The transaction is pgbench's own, five statements; beside it stands one of two statements, near the worst case: in a
larger one an event counts for less.
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

ACCOUNTS, TELLERS, BRANCHES = 100_000, 1_000, 100
TABLES = (
    "CREATE TABLE branches (id bigint PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE tellers (id bigint PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE history (teller bigint, branch bigint, account bigint, delta bigint, at timestamptz)",
    f"INSERT INTO branches SELECT n, 0 FROM generate_series(0, {BRANCHES - 1}) n",
    f"INSERT INTO tellers SELECT n, 0 FROM generate_series(0, {TELLERS - 1}) n",
    f"INSERT INTO accounts SELECT n, 0 FROM generate_series(0, {ACCOUNTS - 1}) n",
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
            _row(url, "pgbench", 8, seconds, tell, Goal(">=", 0.7)),
            _row(url, "two statements", 8, seconds, tell),
            _row(url, "two statements", 1, seconds, tell),
        ]


def _row(url: str, kind: str, count: int, seconds: float, tell: Progress, goal: Goal | None = None) -> Row:
    """Let the same writers work both ways by turns."""
    writers = [_Writer(url, kind) for _ in range(count)]

    def together(with_event: bool) -> Callable[[], float]:
        def measure() -> float:
            shop.settle_down(url)
            for writer in writers:
                writer.begin(seconds, with_event)
            return sum(writer.result() for writer in writers)

        return measure

    name = f"a transaction ({kind}) with an event, {count} {'writers' if count > 1 else 'writer'}"
    try:
        together(True)()  # caches, prepared statements
        found = in_turn(name, {"with": together(True), "without": together(False)}, tell)
    finally:
        for writer in writers:
            writer.end()
    return compared(name, "transactions/s", found["with"], found["without"], goal)


class _Writer:
    """A process with one connection, as an application's worker has."""

    def __init__(self, url: str, kind: str) -> None:
        self._ours, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_work, args=(url, kind, theirs), daemon=True)
        self._process.start()

    def begin(self, seconds: float, with_event: bool) -> None:
        self._ours.send((seconds, with_event))

    def result(self) -> float:
        rate: float = self._ours.recv()
        return rate

    def end(self) -> None:
        self._process.kill()
        self._process.join()


def _work(url: str, kind: str, orders: Any) -> None:
    outbox, write = Outbox(), _KINDS[kind]
    with psycopg.connect(url) as connection:
        while True:
            seconds, with_event = orders.recv()
            began, count = perf_counter(), 0
            while perf_counter() < began + seconds:
                with connection.transaction():
                    write(connection)
                    if with_event:
                        outbox.add(connection, events.event(count))
                count += 1
            orders.send(count / (perf_counter() - began))


def _pgbench(connection: psycopg.Connection[Any]) -> None:
    """Do what `pgbench` does by default (TPC-B), on more branches, so that writers do not wait for one another."""
    account, teller, branch, delta = (
        randrange(ACCOUNTS),
        randrange(TELLERS),
        randrange(BRANCHES),
        randrange(-5000, 5000),
    )
    connection.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", [delta, account])
    connection.execute("SELECT balance FROM accounts WHERE id = %s", [account]).fetchone()
    connection.execute("UPDATE tellers SET balance = balance + %s WHERE id = %s", [delta, teller])
    connection.execute("UPDATE branches SET balance = balance + %s WHERE id = %s", [delta, branch])
    connection.execute("INSERT INTO history VALUES (%s, %s, %s, %s, now())", [teller, branch, account, delta])


def _two_statements(connection: psycopg.Connection[Any]) -> None:
    account = randrange(ACCOUNTS)
    connection.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", [account])
    connection.execute("INSERT INTO history VALUES (0, 0, %s, -1, now())", [account])


_KINDS = {"pgbench": _pgbench, "two statements": _two_statements}
