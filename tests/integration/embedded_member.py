"""A member of a consumer group as a process of its own: writes down every delivery, then acknowledges it.

Given a number, it kills itself when it has written down so many: in the middle of what is in flight.
"""

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime

from pillarbox.brokers.sqlite import SqliteSubscriber
from pillarbox.telemetry.hooks import Hooks


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)


async def main(path: str, log: str, life: int) -> None:
    subscriber = SqliteSubscriber(path, consumer="billing", topics=["orders"], hooks=Hooks(), clock=SystemClock())
    # Lines of several processes in one file do not mix: each is appended by one call of the kernel.
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while True:
        deliveries = await subscriber.deliveries(20, 0.5)
        for delivery in deliveries:
            os.write(lines, b"%d %s\n" % (delivery.redelivered, delivery.message.body))
            life -= 1
            if life == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        if deliveries:
            await subscriber.acknowledge(deliveries)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
