"""A member of a consumer group on Redis as a process of its own: writes down every delivery, then acknowledges it.

Given a number, it kills itself when it has written down so many: in the middle of what is in flight.
"""

import asyncio
import os
import signal
import sys

from pillarbox.brokers.redis import RedisSubscriber
from pillarbox.errors import BrokerUnavailable


async def main(url: str, log: str, life: int) -> None:
    subscriber = RedisSubscriber(url, consumer="billing", topics=["orders"])
    # Lines of several processes in one file do not mix: each is appended by one call of the kernel.
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while True:
        try:
            deliveries = await subscriber.deliveries(20, 0.5)
        except BrokerUnavailable:
            await asyncio.sleep(0.05)
            continue
        for delivery in deliveries:
            os.write(lines, b"%d %s\n" % (delivery.redelivered, delivery.message.body))
            life -= 1
            if life == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        while deliveries:
            try:
                await subscriber.acknowledge(deliveries)
                break
            except BrokerUnavailable:
                await asyncio.sleep(0.05)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
