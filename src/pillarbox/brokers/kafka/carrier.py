"""The carrier: the thread that has the producer. It hands over what is sent, collects the reports, gives up in time,
and finds out which record was meant when the broker refuses a batch.

Prefix-safe, because nothing in the client ever gives up on a record while those behind it go on: records have no
timeout of their own, a gap is a fatal error, and at our own deadline the whole producer is purged and thrown away.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, repeat, starmap
from operator import length_hint, methodcaller
from queue import Empty, SimpleQueue

from pillarbox.brokers.kafka.client import (
    RECORD_REFUSED,
    TOPIC_REFUSED,
    TOPIC_UNKNOWN,
    Journal,
    KafkaError,
    KafkaException,
    Producer,
    error_of,
    make_producer,
)
from pillarbox.brokers.kafka.flight import Flight
from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.core.message import Message
from pillarbox.core.retry import words_of
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected
from pillarbox.ports import Outcome

SLICE = 0.05
"""How many seconds at most until reports are passed on, and until what was sent meanwhile is handed over."""
HUSH = 0.1
"""So many seconds before somebody's time is up nothing new is handed over: it would be purged too."""
IDLE = 1.0
MOST_AT_ONCE = 20_000
ANYWHERE, NOW = -1, 0
"""The partition that the key says, and the time: what `produce` takes by default."""
PURGING = 0.5
CLOSING = 1.0
"""How many seconds those who are on their way have when the publisher is closed."""
SMALLEST_BATCH = 4096
ALONE = {"batch.num.messages": "1", "max.in.flight.requests.per.connection": "1"}
"""One record a batch, one batch at a time: what the broker then says, it says of that record."""

Answers = list[tuple[Flight, list[Outcome], PublishError | None]]
"""What is known of flights; an error is the answer for all the rest of one."""


class Carrier:
    """Carries flights to the brokers. `answer` is called with what has become of them."""

    def __init__(self, options: KafkaOptions, publish_timeout: float, answer: Callable[[Answers], None]) -> None:
        self._options, self._timeout, self._answer = options, publish_timeout, answer
        self._waiting: SimpleQueue[Flight | None] = SimpleQueue()
        self._flights: list[Flight] = []
        self._batch_size = 0
        self._journal = Journal()
        self._producer: Producer | None = self._make()
        self._acknowledges = self._broken = self._closing = False
        self._abandoned = threading.Event()
        self.came_back_at = time.monotonic()
        """When the client last came back from a call."""
        self._looked_up: dict[str, PublishError] = {}

    def send(self, flight: Flight) -> None:
        """Queue a flight; called on the loop."""
        self._waiting.put(flight)

    def stop(self) -> None:
        """Let the thread end soon; called on the loop."""
        self._waiting.put(None)

    def abandon(self) -> None:
        """Send nothing more, whenever the client may come back; called on the loop, while the thread is in a call."""
        self._abandoned.set()
        if (producer := self._producer) is not None:
            producer.purge(blocking=False)

    def run(self) -> None:
        """Carry until told to stop. Everything below runs in this thread."""
        try:
            while self._turn():
                pass
        finally:
            self._producer = None

    def _turn(self) -> bool:
        if self._abandoned.is_set():
            return False
        self._looked_up.clear()
        flights = self._gather()
        self.came_back_at = time.monotonic()
        for flight in flights:
            if not self._flights and not self._acknowledges and self._journal.all_down:
                self._throw_away()  # nobody was there when it was made; that may be long ago
            self._flights.append(flight)
            self._hand_over(flight, flight.messages, set())
        if not self._flights:
            self._listen()
            return not self._closing
        self._flush(SLICE)
        if self._broken or any(flight.failed for flight in self._flights):
            self._judge()
        self._pass_on()
        self._give_up_in_time()
        return True

    def _gather(self) -> list[Flight]:
        """Wait for a send, if there is nothing else to do, and take along those that wait behind it."""
        flights: list[Flight] = []
        count = 0
        if self._flights and time.monotonic() > self._first_deadline() - HUSH:
            return flights
        try:
            while count < MOST_AT_ONCE and not self._closing:
                wait = not flights and not self._flights
                flight = self._waiting.get(timeout=IDLE) if wait else self._waiting.get_nowait()
                if flight is None:
                    self._close()
                    break
                flights.append(flight)
                count += len(flight.messages)
        except Empty:
            pass  # nobody waits behind them: what there is goes now
        return flights

    def _close(self) -> None:
        self._closing = True
        for flight in self._flights:
            flight.deadline = min(flight.deadline, time.monotonic() + CLOSING)

    def _first_deadline(self) -> float:
        return min(flight.deadline for flight in self._flights)

    def _hand_over(self, flight: Flight, messages: Sequence[Message], held: set[tuple[str, str | None]]) -> None:
        """Give messages to the client, in order; of a key nothing goes behind what it does not take."""
        if self._abandoned.is_set():
            return  # another one has these by now
        produce, report = self._ready().produce, flight.report
        handed = self._hand_over_together(flight, messages) if not held and _are_ready(messages) else 0
        for message in messages[handed:]:
            if self._abandoned.is_set():
                break
            topic, key, headers, body, ticket = message
            if held and key is not None and (topic, key) in held:
                flight.refuse(ticket, _held_back(message))
                continue
            try:
                produce(topic, body, key, headers=_fields(headers), on_delivery=partial(report, ticket))
                handed += 1
            except BufferError:
                handed += self._insist(flight, message, held)
            except (KafkaException, ValueError, TypeError) as error:
                held.add((topic, key))
                flight.refuse(ticket, self._refusal(message, error))
        flight.handed += handed

    def _hand_over_together(self, flight: Flight, messages: Sequence[Message]) -> int:
        """Give messages to the client without a loop of Python's, which would take as long as the client; say how many
        it took before the first that it does not take."""
        topics, keys, headers, bodies, tickets = zip(*messages, strict=True)
        left = iter(tickets)
        reports = map(partial, repeat(flight.report), left)
        calls = zip(topics, bodies, keys, repeat(ANYWHERE), reports, repeat(None), repeat(NOW), headers)
        try:
            deque(starmap(self._ready().produce, calls), maxlen=0)
        except (BufferError, KafkaException, ValueError, TypeError):
            return len(messages) - length_hint(left) - 1
        return len(messages)

    def _insist(self, flight: Flight, message: Message, held: set[tuple[str, str | None]]) -> int:
        """The client's queue is full: wait until there is room. Give how many messages were handed over."""
        topic, key, headers, body, ticket = message
        while time.monotonic() < flight.deadline and not self._broken:
            self._flush(SLICE)
            self._pass_on()
            try:
                self._ready().produce(
                    topic, body, key, headers=_fields(headers), on_delivery=partial(flight.report, ticket)
                )
                return 1
            except BufferError:
                continue
            except KafkaException as error:
                held.add((topic, key))
                flight.refuse(ticket, self._refusal(message, error))
                return 0
        held.add((topic, key))
        flight.refuse(ticket, BrokerUnavailable("the client's queue is full and does not get emptier"))
        return 0

    def _refusal(self, message: Message, error: Exception) -> PublishError:
        """Say what it means that the client does not take a message."""
        if not isinstance(error, KafkaException):
            return PublishRejected(f"event {_id(message)} cannot be a record of Kafka: {words_of(error)}")
        if error_of(error).code() == KafkaError._INVALID_ARG:  # such as a topic with too long a name: it will never do
            return PublishRejected(
                f"event {_id(message)} cannot be a record of the topic {message.topic[:40]!r}: {error_of(error).str()};"
                " a topic's name has at most 249 characters, of which none is outside ASCII"
            )
        return self._meaning(message, error_of(error)) or BrokerUnavailable(f"Kafka's client: {error_of(error).str()}")

    def _meaning(self, message: Message, error: KafkaError) -> PublishError | None:
        """Say what an error means for the message; None if it is not about this one."""
        code = error.code()
        if code in TOPIC_UNKNOWN:
            return self._look_up(message.topic)
        if code in TOPIC_REFUSED:
            return PublishRejected(f"the topic {message.topic!r} is refused: {error.str()}")
        if code in RECORD_REFUSED:
            return PublishRejected(f"event {_id(message)}, {_size(message):,} bytes, is refused: {error.str()}")
        if error.fatal() or code == KafkaError._FATAL:
            self._broken = True
        return None

    def _look_up(self, topic: str) -> PublishError:
        """Ask the broker itself whether it does not know a topic."""
        if topic not in self._looked_up:
            self._looked_up[topic] = self._asked(topic)
        return self._looked_up[topic]

    def _asked(self, topic: str) -> PublishError:
        try:
            error = self._ready().list_topics(topic, timeout=min(2.0, self._timeout / 2)).topics[topic].error
        except KafkaException as failure:
            return BrokerUnavailable(f"whether there is a topic {topic!r} nobody answers: {error_of(failure).str()}")
        if error is not None and error.code() in TOPIC_UNKNOWN:
            return PublishRejected(f"there is no topic {topic!r}: {error.str()}; create it, and retry the event")
        if error is not None and error.code() in TOPIC_REFUSED:
            return PublishRejected(f"the topic {topic!r} is refused: {error.str()}")
        return BrokerUnavailable(f"the topic {topic!r} was not there a moment ago; it is tried again by itself")

    def _judge(self) -> None:
        """Look at what failed. One record that is refused fails its batch, and the producer with it: whatever else
        failed is tried again, each record alone."""
        if self._broken:
            self._drain()
        undecided: list[tuple[Flight, list[Message]]] = []
        alone = too_large = False
        for flight in self._flights:
            rest = []
            for message, error in flight.take_failed():
                alone |= error.code() in RECORD_REFUSED
                too_large |= error.code() == KafkaError.MSG_SIZE_TOO_LARGE
                meaning = None if error.code() in RECORD_REFUSED else self._meaning(message, error)
                if meaning is None:
                    rest.append(message)
                else:
                    flight.refuse(message.ticket, meaning)
            undecided.append((flight, rest))
        words = self._words()
        if alone:
            self._drain()  # where gaps are allowed the producer is still at work
            accepted = [self._try_alone(flight, rest) for flight, rest in undecided if rest]
            if too_large and any(accepted):
                self._shrink_batches()
        else:
            for flight, rest in undecided:
                for message in rest:
                    flight.refuse(message.ticket, BrokerUnavailable(f"Kafka did not take it: {words}"))
        if self._broken or alone:
            self._throw_away()

    def _drain(self) -> None:
        """Keep what is only queued from going, and wait until what is at the brokers is answered."""
        producer = self._ready()
        producer.purge(in_queue=True, in_flight=False)
        while any(flight.pending for flight in self._flights) and time.monotonic() < self._first_deadline():
            self._flush(SLICE)
        self._purge()

    def _purge(self) -> None:
        self._ready().purge()
        for _ in range(3):  # one that is broken says so once more
            self._flush(PURGING)

    def _try_alone(self, flight: Flight, messages: list[Message]) -> bool:
        """Send each record in a batch of its own until each is taken or refused; say whether any was taken."""
        held: set[tuple[str, str | None]] = set()
        waiting, taken = messages, False
        while waiting and time.monotonic() < flight.deadline:
            left = self._round_alone(flight, waiting, held)
            if left == waiting:
                break
            taken |= flight.acknowledged
            waiting = left
        for message in waiting:
            flight.refuse(message.ticket, BrokerUnavailable(f"Kafka did not take it: {self._words()}"))
        return taken

    def _round_alone(self, flight: Flight, messages: list[Message], held: set[tuple[str, str | None]]) -> list[Message]:
        """Send until the first refusal, which ends this producer too; give what is left."""
        self._throw_away()
        self._producer = self._make(**ALONE)
        self._hand_over(flight, messages, held)
        while flight.pending and time.monotonic() < flight.deadline and not self._broken:
            self._flush(SLICE)
        self._drain() if self._broken else self._purge()
        left = []
        for message, error in flight.take_failed():
            if message.key is not None and (message.topic, message.key) in held:
                flight.refuse(message.ticket, _held_back(message))
            elif (meaning := self._meaning(message, error)) is not None:
                held.add((message.topic, message.key))
                flight.refuse(message.ticket, meaning)
            else:
                left.append(message)
        self._pass_on()
        return left

    def _shrink_batches(self) -> None:
        """A batch was too large though its records are not: some topic takes less at once than we send."""
        size = self._batch_size or int(self._options.properties.get("batch.size", 1_000_000))
        self._batch_size = max(SMALLEST_BATCH, size // 4)

    def _pass_on(self) -> None:
        """Tell the loop what is known, all of it in one go; forget the flights that are over."""
        answers: Answers = []
        for flight in self._flights:
            if flight.stored():
                self._acknowledges = True
            if outcomes := flight.outcomes():
                answers.append((flight, outcomes, None))
        self._flights = [flight for flight in self._flights if flight.unanswered > 0]
        if answers:
            self._answer(answers)

    def _give_up_in_time(self) -> None:
        """When somebody's time is up, or nobody was ever there, throw away the producer and all that is in it."""
        now = time.monotonic()
        nobody = self._journal.all_down and not self._acknowledges
        if not self._flights or (now < self._first_deadline() and not nobody):
            return
        words = self._words()
        self._purge()
        flights, self._flights = self._flights, []
        self._answer([(flight, flight.outcomes(), self._too_late(flight, words)) for flight in flights])
        self._throw_away()

    def _too_late(self, flight: Flight, words: str) -> BrokerUnavailable:
        """Say what it means that nobody answered for a record. It is never the record's fault: decision 0016."""
        if flight.acknowledged:
            words = "others of the same send were answered: the leader of its partition is away, or slow"
        return BrokerUnavailable(f"Kafka at {self._options.servers} does not answer: {words}")

    def _words(self) -> str:
        return self._journal.last_words() or f"nothing was heard for {self._timeout:g} s; it is tried again by itself"

    def _flush(self, seconds: float) -> None:
        """Let the client send what it has, and collect reports; it raises when its producer is beyond repair."""
        try:
            self._ready().flush(seconds)
        except (KafkaException, SystemError):
            self._broken = True
        self.came_back_at = time.monotonic()

    def _listen(self) -> None:
        """Hear what an idle client has to say, so that it does not pile up."""
        try:
            if self._producer is not None:
                self._producer.poll(0)
        except (KafkaException, SystemError):
            self._throw_away()

    def _ready(self) -> Producer:
        if self._producer is None:
            self._producer = self._make()
        return self._producer

    def _make(self, **more: str) -> Producer:
        self._journal = Journal()
        if self._batch_size:
            more = {"batch.size": str(self._batch_size)} | more
        return make_producer(self._options, self._timeout, self._journal, **more)

    def _throw_away(self) -> None:
        self._producer = None
        self._acknowledges = self._broken = False


def _are_ready(messages: Sequence[Message]) -> bool:
    """Say whether the client can take all headers as they are: it knows a dictionary, and reads a text up to NUL."""
    headers = [message.headers for message in messages]
    if set(map(type, headers)) != {dict}:
        return False
    values = chain.from_iterable(map(_values, headers))
    return "\0" not in "".join(values) and "\0" not in "".join(chain.from_iterable(headers))


def _fields(headers: Mapping[str, str]) -> dict[str, str | bytes | None]:
    """Write header values as bytes, which may hold anything; a name cannot."""
    if "\0" in "".join(headers):
        raise ValueError("the name of a header holds NUL")
    return {name: value.encode() for name, value in headers.items()}


_values = methodcaller("values")


def _held_back(message: Message) -> PublishError:
    return PublishError(f"held back: an earlier message of the key {message.key!r} was refused")


def _id(message: Message) -> str:
    return message.headers.get("id") or message.headers.get("ce_id") or "without an id"


def _size(message: Message) -> int:
    headers = sum(len(name.encode()) + len(value.encode()) for name, value in message.headers.items())
    return len(message.body) + len((message.key or "").encode()) + headers
