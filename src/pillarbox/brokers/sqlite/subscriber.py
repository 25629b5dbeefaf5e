"""The embedded broker's far end: waits on the loop, works in a thread of its own."""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pillarbox.brokers.sqlite.member import Member
from pillarbox.brokers.worker import Worker
from pillarbox.core.message import Delivery
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Clock
from pillarbox.telemetry.hooks import Hooks

SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.02
R = TypeVar("R")


class SqliteSubscriber:
    """One member of the group `consumer` on the broker's file. A new group begins at the oldest message."""

    def __init__(
        self, path: str | os.PathLike[str], *, consumer: str, topics: Sequence[str], hooks: Hooks, clock: Clock
    ) -> None:
        self._member = Member(Path(path), consumer, tuple(dict.fromkeys(topics)), clock)
        self._worker = Worker(f"subscriber {consumer}")
        self._reading: asyncio.Future[list[Delivery]] | None = None
        self._read: deque[Delivery] = deque()
        self._closed = False

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        pause = SHORTEST_PAUSE
        while True:
            if not self._read:
                await self._look(room)
            left = deadline - loop.time()
            if self._read or left <= 0 or room <= 0:
                return [self._read.popleft() for _ in range(min(room, len(self._read)))]
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE)

    async def _look(self, room: int) -> None:
        # A caller that is cancelled here leaves the reading to the next one: what was read is not lost.
        if self._reading is None:
            self._reading = self._in_worker(lambda: self._member.poll(room))
        reading = self._reading
        try:
            await asyncio.shield(reading)
        finally:
            if reading.done():  # also for a caller that was cancelled in the very moment
                self._reading = None
                if not reading.cancelled() and reading.exception() is None:
                    self._read.extend(reading.result())

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        places = [delivery.place for delivery in deliveries]
        await asyncio.shield(self._in_worker(lambda: self._member.acknowledge(places)))

    async def close(self) -> None:
        if not self._closed:
            leaving = self._in_worker(self._member.leave)
            self._closed = True
            self._worker.stop()
            await asyncio.shield(leaving)

    def _in_worker(self, work: Callable[[], R]) -> asyncio.Future[R]:
        if self._closed:
            raise BrokerUnavailable("this subscriber is closed: make a new one")
        return self._worker.do(work)
