"""Billing on aiokafka: a loop of one's own around `first_time`. `python billing.py` runs it."""

import asyncio
import json
import os
import signal
from typing import Any

import asyncpg
from aiokafka import AIOKafkaConsumer, ConsumerRecord
from aiokafka.errors import CommitFailedError

from pillarbox.asyncpg import Inbox

KAFKA = os.environ.get("KAFKA", "localhost:9092")


async def connect() -> Any:
    return await asyncpg.connect("postgresql:///shop")


inbox = Inbox("billing", connect)


async def receive(connection: Any, message: ConsumerRecord) -> None:
    """Bill an order, in the transaction that also notes that this message was received."""
    id = dict(message.headers)["id"].decode()
    async with connection.transaction():
        if await inbox.first_time(connection, id):
            await bill(connection, json.loads(message.value))


async def bill(connection: Any, placed: dict[str, int]) -> None:
    """Write an invoice."""
    sql = "INSERT INTO invoices (order_id, total) VALUES ($1, $2)"
    await connection.execute(sql, placed["order"], placed["total"])
    print("billed order", placed["order"], flush=True)


async def consume(consumer: AIOKafkaConsumer, connection: Any, stop: asyncio.Event) -> None:
    """Receive until told to stop; offsets are committed after the database's commit, never before."""
    while not stop.is_set():
        batches = await consumer.getmany(timeout_ms=500, max_records=100)
        for partition, messages in batches.items():
            for message in messages:
                await receive(connection, message)
            try:
                await consumer.commit({partition: messages[-1].offset + 1})
            except CommitFailedError:
                print("somebody else has", partition, "now, gets these again, and knows them", flush=True)


async def main() -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    connection = await connect()
    consumer = AIOKafkaConsumer(
        "order-events",
        bootstrap_servers=KAFKA,
        group_id="billing",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    async with consumer:
        print("waiting for orders", flush=True)
        await consume(consumer, connection, stop)
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
