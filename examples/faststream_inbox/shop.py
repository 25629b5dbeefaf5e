"""`python shop.py 1 2 3` sends three orders, each message three times: copies, as a lost acknowledgement makes them."""

import asyncio
import os
import sys
from uuid import uuid4

from faststream.rabbit import RabbitBroker
from pydantic import BaseModel


class OrderPlaced(BaseModel):
    """What the shop says of an order."""

    order: int
    total: int


async def main(orders: list[int]) -> None:
    async with RabbitBroker(os.environ.get("RABBITMQ_URL", "amqp://guest:guest@localhost:5672/")) as broker:
        for order in orders:
            placed, id = OrderPlaced(order=order, total=10 * order), str(uuid4())
            for _ in range(3):
                await broker.publish(placed, "order-events", headers={"id": id}, persist=True)
    print("sent", len(orders), "orders, three times each")


if __name__ == "__main__":
    asyncio.run(main([int(word) for word in sys.argv[1:]]))
