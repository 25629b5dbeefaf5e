"""The far end: hands out what its member has read, and has it acknowledged."""

import asyncio
import threading
from collections.abc import Sequence

from pillarbox.brokers.kafka.member import PATIENCE, Member
from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.core.message import Delivery
from pillarbox.errors import BrokerUnavailable


class KafkaSubscriber:
    """One member of the group `consumer` on these topics. A new group begins at the oldest record."""

    def __init__(self, options: KafkaOptions, *, consumer: str, topics: Sequence[str]) -> None:
        self._member = Member(options, consumer, tuple(dict.fromkeys(topics)), self._rings)
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def joined(self) -> bool:
        """The group has taken us in; until then nothing comes, and that says nothing."""
        return self._member.joined

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        self._begin()
        try:
            async with asyncio.timeout(patience):
                while not (found := self._next(room)) and room > 0:
                    await self._news.wait()
        except TimeoutError:
            return []
        return found

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check()
        if self._member.away is not None:
            raise BrokerUnavailable(self._member.away)
        done = self._member.acknowledge([delivery.place for delivery in deliveries])
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.wrap_future(done)
        except TimeoutError as error:
            raise BrokerUnavailable(f"Kafka did not take an acknowledgement in {PATIENCE:g} s") from error

    async def close(self) -> None:
        await self._end(without_a_word=False)

    async def vanish(self) -> None:
        """Die without a word; what was given out and not acknowledged comes again to others."""
        await self._end(without_a_word=True)

    async def _end(self, *, without_a_word: bool) -> None:
        self._closed = True
        self._member.stop(without_a_word=without_a_word)
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, 2 * PATIENCE)

    def _begin(self) -> None:
        self._check()
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._member.run, name="subscriber of kafka", daemon=True)
            self._thread.start()

    def _check(self) -> None:
        if self._closed:
            raise BrokerUnavailable("this subscriber is closed: make a new one")

    def _next(self, room: int) -> list[Delivery]:
        self._check()
        self._news.clear()
        return self._member.take(room)

    def _rings(self) -> None:
        """Wake whoever waits; called from the member's thread."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:
            pass  # the loop has ended, and nobody waits
