"""Billing on FastStream: a middleware lets a subscriber run once for each message. `python billing.py` runs it."""

import asyncio
import os
from typing import Annotated, Any

from faststream import AckPolicy, BaseMiddleware, Context, FastStream, StreamMessage
from faststream.exceptions import RejectMessage
from faststream.rabbit import Channel, QueueType, RabbitBroker, RabbitQueue
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from pillarbox.sqlalchemy import AsyncInbox

AT_ONCE = 10
engine = create_async_engine("postgresql+psycopg:///shop", pool_size=AT_ONCE)
sessions = async_sessionmaker(engine)
inbox = AsyncInbox("billing", sessions)


class OnceEach(BaseMiddleware):
    """Opens a transaction for a message, and lets the subscriber run in it the first time that the message comes."""

    async def consume_scope(self, call_next: Any, msg: StreamMessage[Any]) -> Any:
        if "id" not in msg.headers:
            raise RejectMessage  # nothing to recognise it by: to the dead letters, if the queue has some
        async with sessions.begin() as session:  # commits at its end; FastStream acknowledges after that
            if await inbox.first_time(session, msg.headers["id"]):
                with self.context.scope("session", session):
                    return await call_next(msg)
        return None


# No more messages at once than connections: copies wait for one another, and each holds one.
broker = RabbitBroker(
    os.environ.get("RABBITMQ_URL", "amqp://guest:guest@localhost:5672/"),
    middlewares=[OnceEach],
    default_channel=Channel(prefetch_count=AT_ONCE),
)
app = FastStream(broker, after_shutdown=[engine.dispose])


class OrderPlaced(BaseModel):
    """The message, as far as billing cares."""

    order: int
    total: int


# What fails comes again. By FastStream's own default it would be rejected, and lost when the database is away.
@broker.subscriber(
    RabbitQueue("order-events", queue_type=QueueType.QUORUM, durable=True), ack_policy=AckPolicy.NACK_ON_ERROR
)
async def bill(placed: OrderPlaced, session: Annotated[AsyncSession, Context()]) -> None:
    """Write an invoice, in the transaction that also notes that this message was received."""
    sql = text("INSERT INTO invoices (order_id, total) VALUES (:order, :total)")
    await session.execute(sql, {"order": placed.order, "total": placed.total})
    print("billed order", placed.order, flush=True)


if __name__ == "__main__":
    asyncio.run(app.run())
