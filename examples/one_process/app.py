"""Everything in one process: an asyncio application with its relay and its consumer beside it.

A web framework's lifespan would hold the same `async with`; here a short story takes its place.
"""

import asyncio
from typing import Any

from sqlalchemy import event, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from pillarbox import Consumer, Event, Relay
from pillarbox.sqlalchemy import AsyncInbox, AsyncOutbox


class Base(DeclarativeBase):
    """The application's own tables."""


class Order(Base):
    """What somebody ordered."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


class Invoice(Base):
    """What somebody owes."""

    __tablename__ = "invoices"

    order_id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


engine = create_async_engine("sqlite+aiosqlite:///app.db")
sessions = async_sessionmaker(engine)
outbox = AsyncOutbox()
inbox = AsyncInbox("billing", sessions)


# A transaction on SQLite that reads before it writes can fail; one that begins as a writer cannot.
@event.listens_for(engine.sync_engine, "connect")
def leave_begin_to_us(connection: Any, record: object) -> None:
    connection.isolation_level = None


@event.listens_for(engine.sync_engine, "begin")
def begin_immediately(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@inbox.handler("OrderPlaced")
async def bill(session: AsyncSession, event: Event[dict[str, int]]) -> None:
    """Write an invoice."""
    session.add(Invoice(order_id=event.payload["order_id"], total=event.payload["total"]))


async def place_order(total: int) -> int:
    """Place an order: what a request would do."""
    async with sessions() as session, session.begin():
        order = Order(total=total)
        session.add(order)
        await session.flush()
        payload = {"order_id": order.id, "total": total}
        await outbox.add(session, Event("OrderPlaced", payload, aggregate=("order", order.id)))
        return order.id


async def invoices() -> int:
    """Count the invoices."""
    async with sessions() as session:
        return await session.scalar(select(func.count()).select_from(Invoice)) or 0


async def main() -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    relay = Relay(database="sqlite:///app.db", broker="sqlite:///stream.db")
    consumer = Consumer(inbox, broker="sqlite:///stream.db", topics=["order-events"])
    async with relay, consumer, asyncio.timeout(30):
        for total in range(1, 11):
            await place_order(total)
            relay.ring()
        while await invoices() < 10:  # noqa: ASYNC110 - what was committed is in the database; nobody rings for it
            await asyncio.sleep(0.05)
    print(await invoices(), "orders placed, published and billed")
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
