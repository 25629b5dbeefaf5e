"""RabbitMQ's near end: batches of frames out, confirmations back, hundreds in flight; one task for all of it."""

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from datetime import timedelta

from pillarbox.brokers.rabbitmq.address import Address
from pillarbox.brokers.rabbitmq.flight import Flight, Item
from pillarbox.brokers.rabbitmq.link import ERRORS, away, concerns_all, is_refusal, words_of
from pillarbox.brokers.sends import Send, Sends
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected
from pillarbox.ports import Outcome

MOST_IN_FLIGHT = 1000
WRITE_MESSAGES, WRITE_BYTES = 250, 256 << 10
"""What is written at once, at most."""
_TOPIC_REFUSED = re.compile(r"access to topic '(.*)' in exchange ")
_TOO_LARGE = re.compile(r"message size \d+ .*?larger than .*?max size (\d+)")


class RabbitPublisher:
    """Publishes with confirmations: an event is published when the server has said that every queue has it safely.

    A message that no queue takes is returned, one that a full queue rejects is refused: both for good. A server that
    closes the channel does not say for which message: those in flight are then sent again in ever smaller parts,
    until the guilty one is alone. A server that is short of memory or disk, or gone, is away.
    """

    # Not prefix-safe: what stands behind a message that was returned or refused is stored all the same.
    prefix_safe = False

    def __init__(self, address: Address, *, publish_timeout: timedelta) -> None:
        self._address = address
        self._timeout = publish_timeout.total_seconds()
        self._sends = Sends(publish_timeout)
        self._waiting: deque[Item] = deque()
        self._flight: Flight | None = None
        self._most = MOST_IN_FLIGHT
        self._largest: int | None = None
        """How many bytes the server takes, once it has said so."""
        self._room = asyncio.Event()
        self._carrying: asyncio.Task[None] | None = None
        self._partings: set[asyncio.Task[None]] = set()
        self._closed = False

    def send(self, messages: Sequence[Message]) -> None:
        send = self._sends.begin(messages)
        if self._closed:
            self._sends.fail(send, BrokerUnavailable("this publisher is closed: make a new one"))
            return
        self._waiting.extend([(send, message) for message in messages])
        self._go()

    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = await self._sends.outcomes()
        if failures := [error for _, error in outcomes if error is not None]:
            self._look_for_silence(failures)
        return outcomes

    async def close(self) -> None:
        self._closed = True
        if self._carrying is not None:
            self._carrying.cancel()
            await asyncio.wait([self._carrying])
        if self._flight is not None:
            flight, self._flight = self._flight, None
            flight.take()
            await flight.link.close()
        if self._partings:
            await asyncio.wait(self._partings)
        self._sends.fail_all(BrokerUnavailable("closed before RabbitMQ answered; it may or may not have arrived"))

    def _go(self) -> None:
        if not self._closed and self._waiting and (self._carrying is None or self._carrying.done()):
            self._carrying = asyncio.create_task(self._carry(), name="rabbitmq")

    async def _carry(self) -> None:
        """Write what waits, as long as there is any."""
        while self._waiting:
            send, message = self._waiting[0]
            if message.ticket not in send.unanswered:
                self._waiting.popleft()  # the deadline has answered for it
                continue
            here = len(self._waiting)
            try:
                flight = await self._connected(send.deadline)
                await self._publish(flight)
            except BrokerUnavailable as error:
                self._give_up(here, error)
            except ERRORS:
                pass  # the link is lost: its listener tells what became of what was in flight

    async def _connected(self, deadline: float) -> Flight:
        """Give a flight that goes. Raises BrokerUnavailable."""
        if self._flight is None:
            flight = Flight(self._address, self._answer, self._ended)
            try:
                async with asyncio.timeout_at(deadline):
                    await flight.open()
            except TimeoutError as error:
                raise away(self._address.place, TimeoutError(f"no connection in {self._timeout:g} s")) from error
            except ERRORS as error:
                raise away(self._address.place, error) from error
            self._flight = flight
        if self._flight.link.blocked:
            raise BrokerUnavailable(
                f"RabbitMQ at {self._address.place} has blocked the connection: it is short of memory or disk space"
            )
        return self._flight

    async def _publish(self, flight: Flight) -> None:
        """Write one part of what waits, once there is room for it."""
        while len(flight) >= self._most and not flight.over:
            self._room.clear()
            await self._room.wait()
        frames: list[bytes] = []
        size, most = 0, min(WRITE_MESSAGES, self._most - len(flight))
        while self._waiting and len(frames) < most and size < WRITE_BYTES and not flight.over:
            item = send, message = self._waiting.popleft()
            if message.ticket not in send.unanswered:
                continue
            try:
                self._check_size(message)
                frames.append(flight.board(item))
            except PublishRejected as error:
                self._answer(send, [Outcome(message.ticket, error)])
                continue
            size += len(frames[-1])
        if frames:
            await flight.link.write(b"".join(frames))

    def _check_size(self, message: Message) -> None:
        if self._largest is not None and len(message.body) > self._largest:
            raise PublishRejected(
                f"its body has {len(message.body):,} bytes; RabbitMQ takes at most {self._largest:,} (max_message_size)"
            )

    def _answer(self, send: Send, outcomes: Sequence[Outcome]) -> None:
        self._sends.answer(send, outcomes)
        self._most = min(MOST_IN_FLIGHT, self._most + len(outcomes))  # after a refusal, more at a time again
        self._room.set()

    def _give_up(self, count: int, error: PublishError) -> None:
        """Answer for the first that wait."""
        for _ in range(min(count, len(self._waiting))):
            send, message = self._waiting.popleft()
            self._sends.answer(send, [Outcome(message.ticket, error)])

    def _look_for_silence(self, failures: Sequence[PublishError]) -> None:
        """Break off a link if a deadline has passed on it and nothing was heard."""
        flight = self._flight
        if flight is None:
            return
        flight.forget_answered()
        self._room.set()
        silence = asyncio.get_running_loop().time() - flight.heard_at
        # A part of the time may have gone into connecting. One that is new has nothing to do with these failures.
        if silence < self._timeout / 2 or flight.link.blocked:
            return
        if any(isinstance(error, BrokerUnavailable) for error in failures):
            self._ended(flight, TimeoutError(f"nothing was heard for {silence:.1f} s"))

    def _ended(self, flight: Flight, error: BaseException | None) -> None:
        """Say what became of what was in flight on a link that is lost."""
        items = flight.take()
        if flight is self._flight:
            self._flight = None
        parting = asyncio.create_task(flight.link.close(), name="rabbitmq goodbye")
        self._partings.add(parting)
        parting.add_done_callback(self._partings.discard)
        if is_refusal(error) and items:
            self._refused(items, error)
        else:
            for send, message in items:
                self._sends.answer(send, [Outcome(message.ticket, away(self._address.place, error))])
            self._give_up(len(self._waiting), away(self._address.place, error))
        self._room.set()
        self._go()

    def _refused(self, items: list[Item], error: BaseException | None) -> None:
        """Answer for the guilty; the others go again, fewer at a time if nobody is known to be guilty."""
        words = words_of(error)
        guilty = self._guilty(items, error, words)
        for send, message in items:
            if message.ticket in guilty:
                self._sends.answer(send, [Outcome(message.ticket, PublishRejected(f"RabbitMQ refused it: {words}"))])
        if not guilty:
            self._most = max(1, len(items) // 2)
        self._waiting.extendleft(reversed([item for item in items if item[1].ticket not in guilty]))

    def _guilty(self, items: list[Item], error: BaseException | None, words: str) -> set[int]:
        messages = [message for _, message in items]
        guilty = messages if concerns_all(error) else []
        if found := _TOPIC_REFUSED.search(words):
            guilty = [message for message in messages if message.topic == found[1]]
        elif found := _TOO_LARGE.search(words):
            largest = self._largest = int(found[1])
            guilty = [message for message in messages if len(message.body) > largest]
        if not guilty and len(messages) == 1:
            guilty = messages
        return {message.ticket for message in guilty}
