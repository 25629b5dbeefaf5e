"""The `outbox` fixture that users get: what was added in a transaction that is never committed."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from pillarbox import Event
from pillarbox import psycopg as psycopg_door
from pillarbox import sqlalchemy as sqlalchemy_door
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.sqlalchemy import AsyncInbox, AsyncOutbox
from pillarbox.sqlalchemy import Outbox as SqlalchemyOutbox
from pillarbox.testing.added import AddedEvents
from tests.integration.postgres_shop import tables

SCRIPT = files("pillarbox").joinpath("stores/sqlite/schema/0001.sql").read_text().replace("{prefix}", "pillarbox_")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.executescript(SCRIPT)
    connection.executescript("CREATE TABLE invoices (order_id)")
    connection.close()
    return tmp_path / "shop.db"


@pytest.fixture
def connection(file: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(file)
    yield connection
    connection.rollback()
    connection.close()


def place(connection: sqlite3.Connection, number: int) -> None:
    Outbox().add(connection, Event("OrderPlaced", {"order_id": number}, aggregate=("order", number)))


def test_it_sees_what_was_added_and_not_committed(outbox: AddedEvents, connection: sqlite3.Connection) -> None:
    place(connection, 7)
    [event] = outbox.events(connection)
    assert (event.type, event.payload, event.aggregate) == ("OrderPlaced", {"order_id": 7}, ("order", "7"))
    assert connection.in_transaction


def test_it_keeps_every_field_of_an_event(outbox: AddedEvents, connection: sqlite3.Connection) -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    added = Event("A", b"\x00\x01", content_type="application/avro", headers={"tenant": "x"}, occurred_at=at, topic="t")
    Outbox().add(connection, added)
    [event] = outbox.events(connection)
    assert event == added


def test_assert_added_gives_the_event_and_tells_what_else_was_there(
    outbox: AddedEvents, connection: sqlite3.Connection
) -> None:
    place(connection, 7)
    assert (
        outbox.assert_added(connection, "OrderPlaced", {"order_id": 7}, aggregate=("order", 7)).payload["order_id"] == 7
    )
    with pytest.raises(AssertionError, match=r"0 events match Event\('OrderPaid'.*added were \[Event\('OrderPlaced'"):
        outbox.assert_added(connection, "OrderPaid")
    with pytest.raises(AssertionError, match="0 events match"):
        outbox.assert_added(connection, "OrderPlaced", {"order_id": 8})
    with pytest.raises(AssertionError, match="0 events match"):
        outbox.assert_added(connection, "OrderPlaced", aggregate=("order", 8))


def test_assert_added_wants_exactly_one(outbox: AddedEvents, connection: sqlite3.Connection) -> None:
    place(connection, 7)
    place(connection, 7)
    with pytest.raises(AssertionError, match="2 events match"):
        outbox.assert_added(connection, "OrderPlaced")


def test_assert_nothing_added(outbox: AddedEvents, connection: sqlite3.Connection) -> None:
    outbox.assert_nothing_added(connection)
    place(connection, 7)
    outbox.assert_nothing_added(connection, "OrderPaid")
    with pytest.raises(AssertionError, match="expected no event 'OrderPlaced'"):
        outbox.assert_nothing_added(connection, "OrderPlaced")


def test_drain_gives_each_message_once_in_order(outbox: AddedEvents, connection: sqlite3.Connection) -> None:
    place(connection, 1)
    place(connection, 2)
    assert [message.key for message in outbox.drain(connection)] == ["1", "2"]
    place(connection, 3)
    assert [message.key for message in outbox.drain(connection)] == ["3"]
    assert outbox.drain(connection) == []


@dataclass
class Placed:
    order_id: int


def test_drain_hands_events_to_inboxes_and_drains_what_their_handlers_add(
    outbox: AddedEvents, connection: sqlite3.Connection
) -> None:
    inbox = Inbox("billing", lambda: connection)

    @inbox.handler("OrderPlaced", payload=Placed)
    def bill(transaction: sqlite3.Connection, event: Event[Placed]) -> None:
        transaction.execute("INSERT INTO invoices VALUES (?)", [event.payload.order_id])
        Outbox().add(transaction, Event("InvoiceSent", {"order_id": event.payload.order_id}))

    place(connection, 7)
    drained = outbox.drain(connection, inbox)
    assert [message.headers["type"] for message in drained] == ["OrderPlaced", "InvoiceSent"]
    assert connection.execute("SELECT order_id FROM invoices").fetchall() == [(7,)]
    outbox.drain(connection, inbox)
    assert connection.execute("SELECT count(*) FROM invoices").fetchone() == (1,)


def test_drain_gives_a_batch_handler_its_events_in_a_list(outbox: AddedEvents, connection: sqlite3.Connection) -> None:
    inbox = Inbox("billing", lambda: connection)
    seen: list[list[int]] = []

    @inbox.handler("OrderPlaced", payload=Placed, batch=True)
    def bill(transaction: sqlite3.Connection, events: list[Event[Placed]]) -> None:
        seen.append([event.payload.order_id for event in events])

    place(connection, 7)
    place(connection, 8)
    outbox.drain(connection, inbox)
    assert seen == [[7], [8]]


def test_a_sqlalchemy_session_works_too(outbox: AddedEvents, file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}")
    with Session(engine) as session:
        SqlalchemyOutbox().add(session, Event("OrderPlaced", 1))
        assert [event.payload for event in outbox.events(session)] == [1]
        assert [event.payload for event in outbox.events(session.connection())] == [1]
    engine.dispose()


async def test_an_async_session_works_through_run_sync(outbox: AddedEvents, file: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    async with AsyncSession(engine) as session:
        await AsyncOutbox().add(session, Event("OrderPlaced", 1))
        drained: list[Any] = await session.run_sync(outbox.drain)
        assert [message.body for message in drained] == [b"1"]
    await engine.dispose()


def test_a_model_is_compared_as_the_json_that_it_becomes(outbox: AddedEvents, connection: sqlite3.Connection) -> None:
    Outbox().add(connection, Event("OrderPlaced", Placed(7)))
    assert outbox.assert_added(connection, "OrderPlaced", Placed(7)).payload == {"order_id": 7}


def test_the_time_of_a_delayed_event_can_be_seen(outbox: AddedEvents, connection: sqlite3.Connection) -> None:
    later = datetime(2036, 1, 1, tzinfo=UTC)
    Outbox().add(connection, Event("Reminder", 1, available_at=later))
    assert outbox.events(connection)[0].available_at == later


async def test_async_handlers_are_refused_instead_of_passed_over(outbox: AddedEvents, file: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    inbox = AsyncInbox("billing", async_sessionmaker(engine))
    async with AsyncSession(engine) as session:
        with pytest.raises(TypeError, match="drain calls plain handlers"):
            await session.run_sync(outbox.drain, inbox)
    await engine.dispose()


FULL: Event[Any] = Event(
    "A",
    b"\x00\x01",
    aggregate=("order", 7),
    content_type="application/avro",
    headers={"tenant": "x"},
    occurred_at=datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    available_at=datetime(2036, 1, 1, tzinfo=UTC),
    topic="t",
)


@pytest.mark.parametrize("rows", [None, dict_row], ids=["tuples", "dicts"])
def test_a_psycopg_connection_is_read_with_whatever_rows_it_has(outbox: AddedEvents, migrated: str, rows: Any) -> None:
    with psycopg.connect(migrated, **({} if rows is None else {"row_factory": rows})) as connection:
        psycopg_door.Outbox().add(connection, FULL, Event("OrderPlaced", {"order_id": 7}))
        whole, placed = outbox.events(connection)
        assert whole == FULL
        assert placed.payload == {"order_id": 7}
        assert outbox.assert_added(connection, "OrderPlaced", {"order_id": 7}) == placed
        connection.rollback()
        outbox.assert_nothing_added(connection)


@pytest.mark.parametrize("batch", [False, True])
def test_drain_works_on_a_psycopg_connection(outbox: AddedEvents, migrated: str, batch: bool) -> None:
    inbox = psycopg_door.Inbox("billing", lambda: psycopg.connect(migrated))
    adds = psycopg_door.Outbox()

    def bill(transaction: psycopg.Connection[Any], given: Any) -> None:
        [event] = given if batch else [given]
        transaction.execute("INSERT INTO invoices VALUES (%s)", [event.payload["order_id"]])
        adds.add(transaction, Event("InvoiceSent", event.payload))

    inbox.handlers.register("OrderPlaced", bill, batch=batch)
    with psycopg.connect(migrated) as connection:
        connection.execute("CREATE TABLE invoices (order_id int)")
        adds.add(connection, Event("OrderPlaced", {"order_id": 7}))
        drained = outbox.drain(connection, inbox)
        assert [message.headers["type"] for message in drained] == ["OrderPlaced", "InvoiceSent"]
        assert connection.execute("SELECT order_id FROM invoices").fetchall() == [(7,)]
        assert outbox.drain(connection, inbox) == []
        connection.rollback()


def test_a_sqlalchemy_session_on_postgresql_works_too(outbox: AddedEvents, migrated: str) -> None:
    engine = create_engine(migrated.replace("postgresql", "postgresql+psycopg", 1))
    inbox = sqlalchemy_door.Inbox("billing", lambda: Session(engine))
    inbox.handlers.register("A", lambda session, event: session.execute(text("CREATE TABLE seen ()")))
    with Session(engine) as session:
        SqlalchemyOutbox().add(session, FULL)
        assert outbox.events(session) == [FULL]
        assert outbox.events(session.connection()) == [FULL]
        assert [message.body for message in outbox.drain(session, inbox)] == [b"\x00\x01"]
        assert session.scalar(text("SELECT count(*) FROM seen")) == 0
        session.rollback()
    engine.dispose()


@pytest.mark.parametrize("driver", ["postgresql+psycopg", "postgresql+asyncpg"])
async def test_an_async_session_on_postgresql_works_through_run_sync(
    outbox: AddedEvents, migrated: str, driver: str
) -> None:
    engine = create_async_engine(migrated.replace("postgresql", driver, 1))
    async with AsyncSession(engine) as session:
        await AsyncOutbox().add(session, FULL)
        events: list[Event[Any]] = await session.run_sync(outbox.events)
        assert events == [FULL]
    await engine.dispose()


def test_tables_of_another_schema_and_prefix_are_read(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(b"CREATE SCHEMA shop")
        connection.execute(tables("shop", "box_"))
    with psycopg.connect(database) as connection:
        psycopg_door.Outbox(schema="shop", prefix="box_").add(connection, FULL)
        assert AddedEvents(schema="shop", prefix="box_").events(connection) == [FULL]


async def test_what_cannot_be_read_is_refused_with_what_can(outbox: AddedEvents, migrated: str) -> None:
    async with await psycopg.AsyncConnection.connect(migrated) as connection:
        with pytest.raises(TypeError, match=r"a psycopg.AsyncConnection is nothing that the outbox fixture can read"):
            outbox.events(connection)
