"""The public API as its users write it: checked by mypy in strict mode, never run."""

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

from sqlalchemy import MetaData, Table, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from pillarbox import Consumer, Event, Reject, RetryLater, dbapi
from pillarbox import sqlalchemy as door
from pillarbox.core.message import Delivery


@dataclass
class OrderPlaced:
    order_id: int
    total: int


event = Event("OrderPlaced", OrderPlaced(7, 42), aggregate=("order", 7))
assert_type(event, Event[OrderPlaced])
assert_type(event.payload.total, int)
assert_type(event.aggregate, tuple[str, str] | None)
assert_type(event.id, UUID)
assert_type(Event.key_for(7, "OrderPlaced", {"total": 42}), str)

full = Event(
    "OrderPlaced",
    {"total": 42},
    aggregate=("order", UUID(int=7)),
    topic="orders",
    headers={"tenant": "blue"},
    idempotency_key="paid-7",
    occurred_at=datetime.now(UTC),
    number=7,
)
assert_type(full, Event[dict[str, int]])
bare = Event("Ping", b"...", content_type="application/avro")
assert_type(bare.payload, bytes)

SessionLocal = sessionmaker(create_engine("sqlite://"))
AsyncSessionLocal = async_sessionmaker(create_async_engine("sqlite+aiosqlite://"))


def add_with_sqlalchemy(session: Session) -> None:
    outbox = door.Outbox(schema="public", topic="{aggregate_type}-events", max_payload=262_144, prefix="pillarbox_")
    assert_type(outbox.add(session, event, full, on_duplicate="ignore"), None)
    outbox.add(session.connection(), bare)
    outbox.add(session, event, on_duplicate="sometimes")  # type: ignore[arg-type]
    outbox.add(session, "not an event")  # type: ignore[arg-type]


async def add_with_async_sqlalchemy(session: AsyncSession, connection: AsyncConnection) -> None:
    outbox = door.AsyncOutbox()
    assert_type(await outbox.add(session, event), None)
    await outbox.add(connection, event, full)
    door.Outbox().add(session, event)  # type: ignore[arg-type]


def add_with_sqlite3(connection: sqlite3.Connection) -> None:
    dbapi.Outbox().add(connection, event, full)
    dbapi.Outbox().add(connection.cursor(), event)  # type: ignore[arg-type]


inbox = door.Inbox("billing", SessionLocal)


@inbox.handler("OrderPlaced", payload=OrderPlaced)
def bill(session: Session, event: Event[OrderPlaced]) -> None:
    assert_type(event.payload.order_id, int)
    assert_type(event.number, int | None)
    assert_type(event.delivery, Delivery | None)
    if event.delivery is not None:
        assert_type(event.delivery.topic, str)
        assert_type(event.delivery.attempt, int)
        assert_type(event.delivery.redelivered, bool)
        assert_type(event.delivery.replay, str | None)
    if event.payload.total < 0:
        raise Reject("a negative total")
    raise RetryLater(timedelta(minutes=5))


@inbox.handler("OrderPaid", replays=True)
def paid(session: Session, event: Event[dict[str, Any]]) -> None:
    raise RetryLater(30)


@inbox.handler("OrderPlaced", payload=OrderPlaced)  # type: ignore[arg-type]
def wrong_model(session: Session, event: Event[int]) -> None: ...


@inbox.handler("OrderPlaced")  # type: ignore[arg-type]
async def async_in_a_sync_inbox(session: Session, event: Event[Any]) -> None: ...


@inbox.handler("OrderPlaced")  # type: ignore[arg-type]
def returns_something(session: Session, event: Event[Any]) -> int:
    return 1


@inbox.handler("OrderPlaced", topic="legacy", id=lambda message: message.headers["message-id"], payload=OrderPlaced)
def bill_theirs(session: Session, event: Event[OrderPlaced]) -> None: ...


@inbox.handler("Counted", topic="legacy", id=lambda message: 7, aggregate=lambda message: ("order", message.key or 0))
def count_theirs(session: Session, event: Event[Any]) -> None: ...


@inbox.handler("Counted", topic="legacy", id=lambda message: 7.5)  # type: ignore[arg-type, return-value]
def wrong_id(session: Session, event: Event[Any]) -> None: ...


async_inbox = door.AsyncInbox("billing", AsyncSessionLocal)


@async_inbox.handler("OrderPlaced", payload=OrderPlaced)
async def bill_async(session: AsyncSession, event: Event[OrderPlaced]) -> None:
    assert_type(event.payload.total, int)


@async_inbox.handler("OrderPaid")
def bill_in_sync(session: Session, event: Event[Any]) -> None: ...


@async_inbox.handler("OrderPlaced", payload=OrderPlaced)  # type: ignore[arg-type]
async def wrong_async_model(session: AsyncSession, event: Event[str]) -> None: ...


sqlite_inbox = dbapi.Inbox("billing", lambda: sqlite3.connect("billing.db"), prefix="shop_")


@sqlite_inbox.handler("OrderPlaced", payload=OrderPlaced)
def bill_sqlite(connection: sqlite3.Connection, event: Event[OrderPlaced]) -> None:
    connection.execute("INSERT INTO invoices VALUES (?)", [event.payload.order_id])


def own_loop(session: Session, connection: sqlite3.Connection, message_id: str) -> None:
    assert_type(inbox.first_time(session, message_id), bool)
    assert_type(inbox.first_time(session.connection(), UUID(int=1)), bool)
    assert_type(sqlite_inbox.first_time(connection, message_id), bool)


async def own_async_loop(session: AsyncSession, connection: AsyncConnection, message_id: str) -> None:
    assert_type(await async_inbox.first_time(session, message_id), bool)
    assert_type(await async_inbox.first_time(connection, message_id), bool)


@sqlite_inbox.once
def apply(connection: sqlite3.Connection, message_id: str, order: int) -> None: ...


@async_inbox.once
async def apply_async(session: AsyncSession, message_id: str | UUID) -> None: ...


@sqlite_inbox.once  # type: ignore[arg-type]
def gives_something(connection: sqlite3.Connection, message_id: str) -> int:
    return 1


async def own_loop_with_once(connection: sqlite3.Connection, session: AsyncSession) -> None:
    assert_type(apply(connection, "1", order=7), bool)
    assert_type(await apply_async(session, UUID(int=1)), bool)
    apply(connection, "1")  # type: ignore[call-arg]


async def consume() -> None:
    async with Consumer(inbox, broker="sqlite:///stream.db", topics=["order-events"]) as consumer:
        consumer.stop()
    assert_type(await Consumer(async_inbox, broker="memory:", topics=["order-events"]).run_once(), int)
    Consumer(sqlite_inbox, broker="sqlite:///stream.db", topics=["order-events"]).run_forever()


assert_type(door.outbox_table(MetaData(), prefix="shop_"), Table)
