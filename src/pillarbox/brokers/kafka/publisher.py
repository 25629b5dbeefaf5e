"""The near end: what is sent goes to the carrier's thread, and what has become of it comes back in batches."""

import asyncio
import threading
import time
from collections.abc import Sequence
from datetime import timedelta

from pillarbox.brokers.kafka.carrier import Answers, Carrier
from pillarbox.brokers.kafka.flight import Flight
from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.brokers.sends import Sends
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Outcome

OUR_SHARE = 0.9
"""Of the publish timeout: then the carrier gives up, so that it can say in time what it knows."""
STUCK = 2
"""After so many publish timeouts in one call of the client it is given up: it waits by the wall clock, so that one that
is set back holds it for as long."""
AGAIN = 1.0
"""Seconds between the first look at one that may be stuck and the look that decides."""


class KafkaPublisher:
    """Publishes to Kafka. Published means: a delivery report without an error, from all replicas in sync."""

    def __init__(self, options: KafkaOptions, *, publish_timeout: timedelta) -> None:
        self.prefix_safe = options.prefix_safe
        self._patience = publish_timeout.total_seconds() * OUR_SHARE
        self._sends = Sends(publish_timeout)
        self._options, self._longest = options, STUCK * max(1.0, publish_timeout.total_seconds())
        self._suspected = (0.0, 0.0)
        self._carrier = Carrier(options, self._patience, self._on_the_loop)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def send(self, messages: Sequence[Message]) -> None:
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._start()
        if messages:
            self._carrier.send(Flight(self._sends.begin(messages), time.monotonic() + self._patience))

    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = await self._sends.outcomes()
        if self._is_stuck():
            self._replace()
        return outcomes

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._carrier.stop()
            await asyncio.to_thread(thread.join, 2 * self._patience)
            await asyncio.sleep(0)  # the carrier's last answers are on their way to the loop
        self._sends.fail_all(BrokerUnavailable("closed before Kafka answered; it may or may not have arrived"))

    def _start(self) -> None:
        self._carrier.came_back_at = time.monotonic()
        self._thread = threading.Thread(target=self._work, args=[self._carrier], name="publisher to kafka", daemon=True)
        self._thread.start()

    def _is_stuck(self) -> bool:
        """Say whether the client has not come back for long. It is looked at twice: where the whole process stood
        still, the thread goes on by itself, and what it hands over then must not overtake what another one does."""
        came_back_at, now = self._carrier.came_back_at, time.monotonic()
        if now - came_back_at <= self._longest:
            return False
        if self._suspected[0] != came_back_at:
            self._suspected = (came_back_at, now)
        return now - self._suspected[1] >= AGAIN

    def _replace(self) -> None:
        """Go on with another client and another thread. What the stuck one has is answered: nobody knows of it."""
        self._carrier.abandon()
        self._carrier = Carrier(self._options, self._patience, self._on_the_loop)
        self._start()

    def _work(self, carrier: Carrier) -> None:
        try:
            carrier.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, the relay must hear of it
            if carrier is self._carrier:  # one that was replaced may end as it likes
                self._call(self._sends.die, error)

    def _on_the_loop(self, answers: Answers) -> None:
        self._call(self._take, answers)

    def _call(self, work: object, *arguments: object) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(work, *arguments)  # type: ignore[arg-type]
        except RuntimeError:
            pass  # the loop has ended, and nobody waits for it

    def _take(self, answers: Answers) -> None:
        for flight, outcomes, rest in answers:
            self._sends.answer(flight.send, outcomes)
            if rest is not None:
                self._sends.fail(flight.send, rest)
