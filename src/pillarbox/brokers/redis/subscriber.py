"""The far end: waits for news on a connection of its own, and hands out what its member was given."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pillarbox.brokers.redis.member import LEASE, PATIENCE, Member
from pillarbox.brokers.redis.options import read_options
from pillarbox.brokers.redis.wire import Wire, is_error, meaning, packed
from pillarbox.core.message import Delivery
from pillarbox.errors import BrokerUnavailable, ConfigError

LONGEST_WAIT = 0.5
"""After so many seconds without news the member looks all the same: others may have left it their partitions."""
PAUSE = 0.05


class RedisSubscriber:
    """One member of the group `consumer` on these streams. A new group begins at the oldest entry."""

    def __init__(
        self,
        url: str,
        *,
        consumer: str,
        topics: Sequence[str],
        options: Mapping[str, Any] | None = None,
        lease: timedelta = LEASE,
    ) -> None:
        self._options = read_options(url, options or {})
        self._topics = tuple(dict.fromkeys(topics))
        self._member = Member(self._options, consumer, self._topics, lease)
        self._lease = lease.total_seconds()
        self._bell = Wire(self._options)
        self._hung_at = 0
        """The member's meeting at which the bell was hung up."""
        self._looking: asyncio.Task[list[Delivery]] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._heard: dict[str, str] = {}
        """From where we listened when it last rang."""
        self._read: deque[Delivery] = deque()
        self._closed = False

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            if not self._read:
                await self._look(room)
            left = deadline - loop.time()
            if self._read or left <= 0 or room <= 0:
                return [self._read.popleft() for _ in range(min(room, len(self._read)))]
            await self._wait(min(left, LONGEST_WAIT))

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check()
        await asyncio.shield(self._member.acknowledge([delivery.place for delivery in deliveries]))

    async def close(self) -> None:
        if not self._closed:
            await self._stop()
            await self._member.leave()

    async def vanish(self) -> None:
        """Die without a word; what was given out and not acknowledged comes again to others."""
        await self._stop()
        await self._member.vanish()

    async def _stop(self) -> None:
        self._closed = True
        tasks = [task for task in (self._looking, self._waiting, self._beating) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._bell.finish()

    def _check(self) -> None:
        if self._closed:
            raise BrokerUnavailable("this subscriber is closed: make a new one")

    async def _look(self, room: int) -> None:
        self._check()
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat(), name="lease of a redis consumer")
        # A caller that is cancelled here leaves the looking to the next one: what was read is not lost.
        looking = self._looking or asyncio.create_task(self._member.poll(room), name="poll of a redis consumer")
        self._looking = looking
        try:
            await asyncio.shield(looking)
        finally:
            if looking.done():  # also for a caller that was cancelled in the very moment
                self._looking = None
                if not looking.cancelled() and looking.exception() is None:
                    self._read.extend(looking.result())

    async def _wait(self, seconds: float) -> None:
        """Wait until something is added to one of the streams, at most so long."""
        if self._heard == self._member.last:  # it rang for what others have to take: do not run in circles
            await asyncio.sleep(min(seconds, PAUSE))
        waiting = self._waiting or asyncio.create_task(self._listen(seconds), name="bell of a redis consumer")
        self._waiting = waiting
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(waiting)
        except TimeoutError:
            pass  # it goes on listening for the next one who waits
        finally:
            if waiting.done():
                self._waiting = None

    async def _listen(self, seconds: float) -> None:
        if self._hung_at != self._member.meetings:  # it must ring where the member looks
            await self._bell.close()
            self._hung_at = self._member.meetings
        last = dict(self._member.last)
        block = max(1, int(seconds * 1000))
        command = packed("XREAD", "COUNT", 1, "BLOCK", block, "STREAMS", *last.keys(), *last.values())
        (answer,) = await self._bell.ask([command], 1, seconds + PATIENCE)
        if is_error(answer):
            await self._bell.close()
            trouble = meaning(answer, self._options)
            raise trouble if isinstance(trouble, BrokerUnavailable | ConfigError) else BrokerUnavailable(str(trouble))
        if answer:
            self._heard = last

    async def _beat(self) -> None:
        """Prolong the lease while handlers are at work and nobody asks for more."""
        while True:
            await asyncio.sleep(self._lease / 3)
            try:
                await self._member.poll(0)
            except (BrokerUnavailable, ConfigError):
                continue  # whoever asks next meets it
