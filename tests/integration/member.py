"""A member of a consumer group as a process of its own: writes down every delivery, then acknowledges it.

Given a number, it kills itself when it has written down so many: in the middle of what is in flight.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

from pillarbox.core.message import Delivery
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Subscriber
from pillarbox.settings import Settings
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import SystemClock, _subscriber

AGAIN_AFTER = 0.05


async def main(broker: str, log: str, life: int) -> None:
    subscriber = _subscriber(Settings(broker=broker), None, "billing", ["orders"], SystemClock(), Hooks())()
    # Lines of several processes in one file do not mix: each is appended by one call of the kernel.
    lines = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    while True:
        try:
            deliveries = await subscriber.deliveries(20, 0.5)
        except BrokerUnavailable:
            await asyncio.sleep(AGAIN_AFTER)
            continue
        for delivery in deliveries:
            os.write(lines, b"%d %s\n" % (delivery.redelivered, delivery.message.body))
            life -= 1
            if life == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        if deliveries:
            await acknowledge(subscriber, deliveries)


async def acknowledge(subscriber: Subscriber, deliveries: Sequence[Delivery]) -> None:
    """Acknowledge, whatever it takes."""
    while True:
        try:
            return await subscriber.acknowledge(deliveries)
        except BrokerUnavailable:
            await asyncio.sleep(AGAIN_AFTER)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
