"""The near end of NATS: messages go out one behind the other, each with a reply subject of its own below one inbox, and
JetStream's acknowledgements come in through one subscription: no task, future or timer per message."""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from itertools import count

from pillarbox.brokers.nats import answers
from pillarbox.brokers.nats.connection import Client, Connection, Msg, Subscription, ended, errors
from pillarbox.brokers.nats.options import NatsOptions
from pillarbox.brokers.nats.streams import Streams, find_stream, no_stream
from pillarbox.brokers.nats.wire import pack
from pillarbox.brokers.sends import Send, Sends
from pillarbox.core.message import Message
from pillarbox.core.retry import words_of
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected
from pillarbox.ports import Outcome

WINDOW = 2000
"""How many messages are under way at most; JetStream turns away what exceeds 10,000 in a stream's queue."""
BREATH = 200
"""How many go out before the loop has a turn, so that answers come in meanwhile."""


class Flight:
    """A send on its way: what it was meant for, and what has been answered since the last telling."""

    __slots__ = ("number", "outcomes", "send", "streams")

    def __init__(self, number: int, send: Send) -> None:
        self.number, self.send = number, send
        self.streams: list[str] = []
        """The stream that each message was meant for."""
        self.outcomes: list[Outcome] = []


class NatsPublisher:
    """Publishes to JetStream. A message is published when the stream that takes its subject says so; also when it says
    that it had it already, which it knows by the event's id within its duplicate window."""

    # What follows a message that is refused is stored all the same.
    prefix_safe = False

    def __init__(self, options: NatsOptions, *, publish_timeout: timedelta) -> None:
        self._connection = Connection(options, "pillarbox relay", self._lost, self._heard)
        self._connection.on_open(self._listen)
        self._streams = Streams(self._connection, options)
        self._sends = Sends(publish_timeout)
        self._waiting: deque[Send] = deque()
        self._carrying: asyncio.Task[None] | None = None
        self._flights: dict[int, Flight] = {}
        self._numbers = count()
        self._prefix = ""
        self._inbox: Subscription | None = None
        self._touched: dict[Flight, None] = {}
        self._unclaimed: list[tuple[Flight, Message]] = []
        self._looking: asyncio.Task[None] | None = None
        self._under_way = 0
        self._room = asyncio.Event()

    def send(self, messages: Sequence[Message]) -> None:
        self._waiting.append(self._sends.begin(messages))
        if self._carrying is None or self._carrying.done():
            self._carrying = asyncio.create_task(self._carry(), name="publish to NATS")

    async def outcomes(self) -> Sequence[Outcome]:
        return await self._sends.outcomes()

    async def close(self) -> None:
        for task in (self._carrying, self._looking):
            if task is not None:
                await ended(task)
        await self._connection.close()
        self._sends.fail_all(BrokerUnavailable("closed before NATS answered; it may or may not have arrived"))

    async def _listen(self, client: Client) -> None:
        inbox = client.new_inbox()
        self._prefix = f"{inbox}."
        self._inbox = await client.subscribe(f"{inbox}.>", cb=self._hear)

    async def _carry(self) -> None:
        while self._waiting:
            send = self._waiting.popleft()
            if asyncio.get_running_loop().time() >= send.deadline:
                continue  # its deadline has answered for it while it waited
            try:
                client = await self._connection.ready(send.deadline)
                await self._publish(client, send)
            except BrokerUnavailable as error:
                self._sends.fail(send, error)
            except (errors.Error, OSError) as error:
                self._sends.fail(send, BrokerUnavailable(f"NATS: {words_of(error)}"))

    async def _publish(self, client: Client, send: Send) -> None:
        flight = self._begin(send)
        prefix, largest = f"{self._prefix}{flight.number}.", client.max_payload
        refused: dict[str, PublishError] = {}
        known = self._streams.known
        for index, message in enumerate(send.messages):
            stream = known.get(message.topic) or await self._stream(client, message.topic, refused)
            flight.streams.append(stream)
            try:
                if not stream:
                    raise refused[message.topic]
                headers = pack(message, stream, largest)
            except PublishError as error:
                self._sends.answer(send, [Outcome(message.ticket, error)])
                continue
            await client.publish(message.topic, message.body, f"{prefix}{index}", headers)
            self._under_way += 1
            if index % BREATH == BREATH - 1:
                await self._breathe(send.deadline)
                if not send.unanswered:
                    return  # the connection was lost meanwhile, and all of it will be sent anew

    def _begin(self, send: Send) -> Flight:
        """Note a send; those whose deadline has answered for them are forgotten here."""
        for number in [number for number, flight in self._flights.items() if not flight.send.unanswered]:
            del self._flights[number]
        self._under_way = sum(len(flight.send.unanswered) for flight in self._flights.values())
        number = next(self._numbers)
        flight = self._flights[number] = Flight(number, send)
        return flight

    async def _stream(self, client: Client, topic: str, refused: dict[str, PublishError]) -> str:
        """Give the stream of a topic that is not known yet; '' if there is none, and why is in `refused`."""
        if topic not in refused:
            found = await self._streams.find(client, topic)
            if isinstance(found, str):
                return found
            refused[topic] = found
        return ""

    async def _breathe(self, deadline: float) -> None:
        await asyncio.sleep(0)
        while self._under_way >= WINDOW:
            self._room.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._room.wait()
            except TimeoutError:
                raise BrokerUnavailable("the broker answered too slowly; it is tried again by itself") from None

    async def _hear(self, answer: Msg) -> None:
        """Take one answer; they are told together, once all that have come in are taken."""
        number, _, index = answer.subject[len(self._prefix) :].partition(".")
        flight = self._flights.get(int(number))
        if flight is not None:
            self._take(flight, int(index), answer)
        if self._inbox is None or not self._inbox.pending_msgs:
            self._tell()

    def _take(self, flight: Flight, index: int, answer: Msg) -> None:
        self._under_way -= 1
        message = flight.send.messages[index]
        if not answer.data and answers.unclaimed(answer):
            self._unclaimed.append((flight, message))
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(), name="look for streams of NATS")
            return
        stream = flight.streams[index]
        error = answers.judge(answer.data, stream)
        if error is not None:
            self._streams.forget(message.topic)
        elif not self._streams.count(stream, answers.sequence(answer.data, stream)):
            self._lost(f"the stream {stream} was made anew, and what is known of it holds no longer")
            return
        flight.outcomes.append(Outcome(message.ticket, error))
        self._touched[flight] = None

    def _tell(self) -> None:
        for flight in self._touched:
            self._sends.answer(flight.send, flight.outcomes)
            flight.outcomes = []
            if not flight.send.unanswered:
                self._flights.pop(flight.number, None)
        self._touched.clear()
        if self._under_way < WINDOW:
            self._room.set()

    async def _look(self) -> None:
        """Find out why nobody took messages: there is no stream for them, or it is away for the moment."""
        while self._unclaimed:
            unclaimed, self._unclaimed = self._unclaimed, []
            reasons: dict[str, PublishError] = {}
            for flight, message in unclaimed:
                topic = message.topic
                if topic not in reasons:
                    self._streams.forget(topic)
                    reasons[topic] = await self._why_unclaimed(topic, flight.send.deadline)
                self._sends.answer(flight.send, [Outcome(message.ticket, reasons[topic])])

    async def _why_unclaimed(self, topic: str, deadline: float) -> PublishError:
        try:
            client = await self._connection.ready(deadline)
            stream = await find_stream(self._connection, client, topic)
        except BrokerUnavailable as error:
            return error
        if stream is None:
            return no_stream(topic, " (no responders)")
        return BrokerUnavailable(f"the stream {stream} does not answer on {topic!r} at the moment (no responders)")

    def _lost(self, words: str) -> None:
        """Answer for all that is under way; what still waits to be sent is sent when the connection is back."""
        self._streams.forget_all()
        for flight in list(self._flights.values()):
            self._sends.fail(flight.send, BrokerUnavailable(f"{words}; it may or may not have arrived"))
        self._flights.clear()
        self._under_way = 0
        self._room.set()

    def _heard(self, words: str) -> None:
        """Hear what the server says beside its answers: that we may not publish on a subject comes only this way."""
        if "permissions violation for publish to" not in words.lower():
            return
        for flight in list(self._flights.values()):
            forbidden = [
                Outcome(message.ticket, PublishRejected(words))
                for message in flight.send.messages
                if f'"{message.topic}"' in words
            ]
            self._sends.answer(flight.send, forbidden)
