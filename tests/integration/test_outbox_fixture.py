"""The `outbox` fixture that users get: what was added in a transaction that is never committed."""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

from pillarbox import Event
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.sqlalchemy import AsyncInbox, AsyncOutbox
from pillarbox.sqlalchemy import Outbox as SqlalchemyOutbox
from pillarbox.testing.added import AddedEvents

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
