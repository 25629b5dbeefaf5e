"""`python shop.py 1 2 3` sends three orders, each message three times: copies, as a lost acknowledgement makes them."""

import asyncio
import json
import os
import sys
from uuid import uuid4

from aiokafka import AIOKafkaProducer

KAFKA = os.environ.get("KAFKA", "localhost:9092")


async def main(orders: list[int]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=KAFKA, acks="all") as producer:
        for order in orders:
            id, body = str(uuid4()), json.dumps({"order": order, "total": 10 * order})
            for _ in range(3):
                await producer.send_and_wait(
                    "order-events", body.encode(), key=str(order).encode(), headers=[("id", id.encode())]
                )
    print("sent", len(orders), "orders, three times each")


if __name__ == "__main__":
    asyncio.run(main([int(word) for word in sys.argv[1:]]))
