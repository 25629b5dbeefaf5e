"""What an event costs a writer: transactions a second with an event beside those without, durable commits.

The transaction is pgbench's own, five statements; beside it stands a tiny one of two statements, near the worst case:
in a larger one an event counts for less. What part of that any outbox costs, an INSERT by hand tells.
"""

import json
from collections.abc import Callable
from contextlib import closing
from random import randrange
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks import shop as events
from benchmarks.measure import Goal, Progress, Row, compared, in_turn
from benchmarks.postgres import shop
from pillarbox.bench import writing
from pillarbox.bench.places import Place
from servers.postgres import RunningPostgres

ACCOUNTS, TELLERS, BRANCHES = 100_000, 1_000, 100
TABLES = (
    "CREATE TABLE branches (id bigint PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE tellers (id bigint PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)",
    "CREATE TABLE history (teller bigint, branch bigint, account bigint, delta bigint, at timestamptz)",
    "CREATE TABLE textbook (id bigserial PRIMARY KEY, event_id uuid, aggregate_type text, aggregate_id text,"
    " event_type text, payload jsonb, created_at timestamptz DEFAULT now(), published_at timestamptz)",
    "CREATE INDEX ON textbook (id) WHERE published_at IS NULL",
    f"INSERT INTO branches SELECT n, 0 FROM generate_series(0, {BRANCHES - 1}) n",
    f"INSERT INTO tellers SELECT n, 0 FROM generate_series(0, {TELLERS - 1}) n",
    f"INSERT INTO accounts SELECT n, 0 FROM generate_series(0, {ACCOUNTS - 1}) n",
)
MOST = 1_000_000_000


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    seconds = 1.0 if quick else 4.0
    with shop.database(server) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in TABLES:
                connection.execute(statement.encode())
        shop.settle_down(url)
        return [
            _row(url, "pgbench", 8, seconds, tell, Goal(">=", 0.7)),
            _row(url, "two statements", 8, seconds, tell, Goal(">=", 0.7)),
            _row(url, "two statements", 1, seconds, tell),
            _beside_the_textbook(url, seconds, tell),
            _logged(url, seconds, tell),
        ]


def _row(url: str, kind: str, count: int, seconds: float, tell: Progress, goal: Goal | None = None) -> Row:
    """Let the same writers work both ways by turns."""
    with writing.writers(shop.place_at(url), events.event, _KINDS[kind], count) as writers:
        _measure(url, writers, seconds, with_event=True)()  # caches, prepared statements
        name = f"a transaction ({kind}) with an event, {count} {'writers' if count > 1 else 'writer'}"
        ways = {
            "with": _measure(url, writers, seconds, with_event=True),
            "without": _measure(url, writers, seconds, with_event=False),
        }
        found = in_turn(name, ways, tell)
    return compared(name, "transactions/s", found["with"], found["without"], goal)


def _beside_the_textbook(url: str, seconds: float, tell: Progress) -> Row:
    """Let as many writers write their event by hand, into a table as the textbook has it."""
    place = shop.place_at(url)
    with (
        writing.writers(place, events.event, _two_statements, 8) as ours,
        writing.writers(place, events.event, _two_statements_by_hand, 8) as by_hand,
    ):
        name = "a transaction (two statements) with an event, 8 writers, beside an event by hand into a textbook outbox"
        ways = {
            "ours": _measure(url, ours, seconds, with_event=True),
            "by hand": _measure(url, by_hand, seconds, with_event=False),
        }
        ways["ours"]()  # caches, prepared statements
        ways["by hand"]()
        found = in_turn(name, ways, tell)
    return compared(name, "transactions/s", found["ours"], found["by hand"])


def _measure(url: str, writers: writing.Writers, seconds: float, *, with_event: bool) -> Callable[[], float]:
    """Give what lets these writers work, and tells transactions a second."""

    def once() -> float:
        shop.settle_down(url)
        return writers.rate(seconds, MOST, with_event=with_event).rate

    return once


def _logged(url: str, seconds: float, tell: Progress) -> Row:
    """Count what transactions write to the WAL, of two statements, with an event and without."""
    place = shop.place_at(url)
    with closing(place.connect()) as connection, writing.writers(place, events.event, _two_statements, 1) as writers:

        def logged(with_event: bool) -> Callable[[], float]:
            def measure() -> float:
                shop.settle_down(url)
                writers.rate(seconds, MOST, with_event=with_event)  # pages are logged as a whole after a checkpoint
                before = place.written(connection)
                transactions = writers.rate(seconds, MOST, with_event=with_event).transactions
                return (place.written(connection) - before) / transactions

            return measure

        name = "WAL of a transaction (two statements) with an event"
        found = in_turn(name, {"with": logged(True), "without": logged(False)}, tell)
    return compared(f"{name}, beside none", "bytes", found["with"], found["without"])


def _pgbench(place: Place, connection: psycopg.Connection[Any]) -> None:
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


def _two_statements(place: Place, connection: psycopg.Connection[Any]) -> None:
    account = randrange(ACCOUNTS)
    connection.execute("UPDATE accounts SET balance = balance - 1 WHERE id = %s", [account])
    connection.execute("INSERT INTO history VALUES (0, 0, %s, -1, now())", [account])


def _two_statements_by_hand(place: Place, connection: psycopg.Connection[Any]) -> None:
    _two_statements(place, connection)
    n = randrange(MOST)
    connection.execute(
        "INSERT INTO textbook (event_id, aggregate_type, aggregate_id, event_type, payload)"
        " VALUES (%s, 'order', %s, 'OrderPlaced', %s)",
        [uuid4(), str(n % events.ORDERS), json.dumps(events.payload(n))],
    )


_KINDS = {"pgbench": _pgbench, "two statements": _two_statements}
