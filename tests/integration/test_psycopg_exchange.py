"""How psycopg's Inbox speaks with the server: few messages, and all that a cursor would have seen to."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topics
from pillarbox.errors import StoreUnavailable
from pillarbox.inbox.consumer import Consumer
from pillarbox.psycopg import Inbox
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import SystemClock
from tests.unit.consumer_bench import TOPIC, message

Connect = Any


@pytest.fixture
def db(migrated: str) -> Iterator["psycopg.Connection[Any]"]:
    with psycopg.connect(migrated, autocommit=True) as db:
        db.execute("CREATE TABLE effects (n int NOT NULL, level text DEFAULT current_setting('transaction_isolation'))")
        yield db


async def consume(connect: Connect, handle: Any, *messages: Message) -> tuple[int, list[tuple[Moment, Facts]]]:
    """Handle messages on a connection; give how many were handled, and what was told."""
    told: list[tuple[Moment, Facts]] = []
    broker = MemoryBroker()
    broker.receive(messages)
    inbox = Inbox("o'reilly", connect)
    inbox.handler("OrderPlaced")(handle)
    consumer = Consumer(
        inbox,
        lambda: broker.subscriber("billing", [TOPIC]),
        RetryPolicy(retries=2, jitter=0),
        1,
        Topics(),
        SystemClock(),
        Hooks(lambda moment, facts: told.append((moment, facts))),
    )
    return await consumer.run_once(patience=0.02), told


def bill(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
    connection.execute("INSERT INTO effects (n) VALUES (%s)", [event.payload["n"]])


def rows(db: "psycopg.Connection[Any]", sql: str) -> list[Any]:
    return db.execute(sql.encode()).fetchall()


@pytest.mark.parametrize("level", [None, *IsolationLevel])
async def test_a_transaction_is_begun_as_the_connection_is_set(
    db: "psycopg.Connection[Any]", migrated: str, level: IsolationLevel | None
) -> None:
    def connect() -> "psycopg.Connection[Any]":
        connection = psycopg.connect(migrated)
        connection.isolation_level, connection.deferrable = level, False
        return connection

    handled, _ = await consume(connect, bill, message(1))
    name = "read committed" if level is None else level.name.replace("_", " ").lower()
    assert (handled, rows(db, "SELECT n, level FROM effects")) == (1, [(1, name)])


async def test_a_connection_that_may_only_read_is_told_of_as_away(db: "psycopg.Connection[Any]", migrated: str) -> None:
    def connect() -> "psycopg.Connection[Any]":
        connection = psycopg.connect(migrated)
        connection.read_only = True
        return connection

    with pytest.raises(Exception, match="read-only transaction"):
        await consume(connect, bill, message(1))


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SJIS", "GBK"])
async def test_texts_arrive_as_they_are_whatever_the_client_encodes_in(
    db: "psycopg.Connection[Any]", migrated: str, encoding: str
) -> None:
    odd = {"UTF8": "é表'", "LATIN1": "é'", "SJIS": "表'", "GBK": "中'"}[encoding]
    id = f"a'b\\c{odd};--\n%s {{x}} $1"
    one = message(1, f"7'\\{odd}")
    given = one._replace(headers={**one.headers, "id": id})
    handled, _ = await consume(lambda: psycopg.connect(migrated, client_encoding=encoding), bill, given, given)
    assert (handled, rows(db, "SELECT n FROM effects")) == (1, [(1,)])
    assert rows(db, "SELECT consumer, event_id FROM pillarbox_inbox") == [
        ("o'reilly", f"{TOPIC}/{id.replace('%', '%25')}")
    ]


async def test_a_connection_in_autocommit_has_transactions_all_the_same(
    db: "psycopg.Connection[Any]", migrated: str
) -> None:
    def fails(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
        bill(connection, event)
        if event.payload["n"] == 1:
            raise RuntimeError("no")

    handled, _ = await consume(lambda: psycopg.connect(migrated, autocommit=True), fails, message(1), message(2, "8"))
    assert (handled, rows(db, "SELECT n FROM effects")) == (1, [(2,)])


async def test_one_that_commits_and_goes_on_is_told_of_and_loses_nothing(
    db: "psycopg.Connection[Any]", migrated: str
) -> None:
    def commits(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
        bill(connection, event)
        connection.commit()
        connection.execute("INSERT INTO effects (n) VALUES (10)")

    def connect() -> "psycopg.Connection[Any]":
        return psycopg.connect(migrated, options="-c client_min_messages=error")

    handled, told = await consume(connect, commits, message(1))
    assert (handled, rows(db, "SELECT n FROM effects ORDER BY n")) == (1, [(1,), (10,)])
    assert [moment for moment, _ in told if moment is Moment.HANDLER_COMMITTED] == [Moment.HANDLER_COMMITTED]


async def test_one_that_rolls_back_and_goes_on_keeps_nothing(db: "psycopg.Connection[Any]", migrated: str) -> None:
    def undoes(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
        connection.rollback()
        bill(connection, event)

    handled, _ = await consume(lambda: psycopg.connect(migrated), undoes, message(1))
    assert (handled, rows(db, "SELECT n FROM effects")) == (0, [])
    [(state, error)] = rows(db, "SELECT state, last_error FROM pillarbox_inbox_parked")
    assert state == "retrying"
    assert "rolled back the transaction" in error


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_server_that_ends_the_session_is_away_and_nothing_is_lost(
    db: "psycopg.Connection[Any]", migrated: str, when: str
) -> None:
    tries: list[int] = []

    def ended(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
        tries.append(event.payload["n"])
        for step in ("before", "after"):
            if when == step and len(tries) == 1:
                db.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
            if step == "before" and not (when == "before" and len(tries) == 1):
                bill(connection, event)

    with pytest.raises(StoreUnavailable, match="PostgreSQL is away"):
        await consume(lambda: psycopg.connect(migrated), ended, message(1))
    assert rows(db, "SELECT n FROM effects") == []
    assert (await consume(lambda: psycopg.connect(migrated), ended, message(1)))[0] == 1
    assert rows(db, "SELECT n FROM effects") == [(1,)]
    assert rows(db, "SELECT state FROM pillarbox_inbox_parked") == []


async def test_one_event_takes_two_messages_beside_its_handlers(
    db: "psycopg.Connection[Any]", migrated: str, tmp_path: Path
) -> None:
    """BEGIN with our row, then what the handler does, then the check with COMMIT."""
    path = tmp_path / "trace"
    with path.open("w") as traced:

        def connect() -> "psycopg.Connection[Any]":
            connection = psycopg.connect(migrated)
            connection.pgconn.trace(traced.fileno())
            return connection

        await consume(connect, bill, *(message(n, str(n)) for n in range(10)))
    sent = [line for line in path.read_text().splitlines() if "\tF\t" in line and "Query" in line]
    assert len([line for line in sent if "BEGIN" in line and "pillarbox_receive(" in line]) == 10
    assert len([line for line in sent if "COMMIT" in line and "CASE" in line]) == 10
