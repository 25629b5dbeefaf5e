"""Received: one delivery on its way through the consumer, off the broker or out of the parking lot."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal

from pillarbox.core.foreign import Readers, read_aggregate, read_id, read_type, readers_of
from pillarbox.core.message import Delivery, Message, identity, restated, type_of, uuid_of
from pillarbox.core.retry import sayable, words_of
from pillarbox.core.routing import LONGEST, Line, Topics
from pillarbox.errors import DecodeError, HandlerFailed
from pillarbox.inbox.inbox import Handlers

LONGEST_KEY = 2000
"""How many bytes a place in the inbox has at most: the index of a database takes no more."""
Numbering = Literal["gap", "conflict", "accepted"]


class Received:
    """A delivery, with what order and recognition need. `key` is its place in the inbox: the event's id."""

    __slots__ = (
        "abandoned",
        "aggregate",
        "applied",
        "attempts",
        "brief",
        "committed",
        "counted",
        "delivery",
        "hopeless",
        "ignored",
        "key",
        "known",
        "line",
        "locked_out",
        "number",
        "numbering",
        "parked",
        "stored",
        "trace",
        "type",
        "where",
    )

    available_at: datetime | None = None

    def __init__(self, delivery: Delivery, *, parked: bool = False, attempts: int = 0) -> None:
        self.delivery, self.parked, self.attempts = delivery, parked, attempts
        self.key = self.type = ""
        self.aggregate = ("", "")
        self.line: Line | None = None
        self.ignored = False
        """Nobody handles its type here, and it has no number that counts: it is passed over."""
        self.hopeless: DecodeError | HandlerFailed | None = None
        """Why it can never be handled, if that is known already."""
        self.counted = False
        """This try was counted durably before the handler ran."""
        self.committed = False
        """Its handler committed by itself and then failed: what it did up to there stands."""
        self.locked_out = 0
        """How often its handler found the database locked."""
        self.number: int | None = None
        """Its number within its aggregate, if it has one that counts."""
        self.numbering: Numbering | None = None
        """What is the matter with its number, if anything is."""
        self.stored = False
        """It was stored to be handled later, and nothing has happened to it since."""
        self.abandoned = False
        """A consumer had it out of the parking lot, or tried it as a suspect, and has not said what became of it."""
        self.brief: str | None = None
        """What its last failure says without anything that it carries, if that is less than the whole."""
        self.trace: str | None = None
        """The traceback of its last failure."""
        self.known: int | None = None
        """The hint says that it was handled before; and so often had the database been away by then."""
        self.where: tuple[str, str, str] | None = None
        """Where the hint may note that it was handled: in the database as it was when this came."""
        self.applied = False
        """It was handled, and that is committed."""

    @property
    def suspicious(self) -> bool:
        """A process may have died with it, so its tries are counted before they begin."""
        return self.abandoned or self.delivery.redelivered

    @property
    def deadly(self) -> bool:
        """A process has died with it and the try was counted: it is out of the parking lot, or on its way there."""
        return self.abandoned and self.attempts > 0

    @property
    def facts(self) -> dict[str, object]:
        """What is told of it: everything but what it carries."""
        topic = self.delivery.topic
        return {"type": self.type, "event_id": self.key, "topic": topic, "attempt": self.attempts + 1}

    @property
    def for_handler(self) -> Delivery:
        """The delivery as a handler sees it: its attempts are ours, if we know of more than the broker does."""
        attempt = max(self.delivery.attempt, self.attempts + 1)
        return self.delivery if attempt == self.delivery.attempt else replace(self.delivery, attempt=attempt)


def receive(delivery: Delivery, handlers: Handlers, topics: Topics, *, ignoring: bool = False) -> Received:
    """Look at a delivery from outside: whose it is, in which line, under which key. If `ignoring`, types that nobody
    handles are passed over."""
    received = Received(delivery)
    message = delivery.message
    try:
        message = _restate(received, handlers, topics)
        its = identity(message)
        received.type, received.aggregate = its.type, (its.aggregate_type, its.aggregate_id)
        if not received.type:
            raise DecodeError(_no_type(message.topic))
        received.line = line_of(topics, message.topic, received.aggregate)
        handler = handlers.get(received.type, message.topic)
        again = delivery.replay if handler is not None and handler.replays else None
        if received.line and its.aggregate_id and not again:
            received.number = its.number  # what is sent again on purpose, and what has no order, has no number
        if ignoring and handler is None and received.number is None:
            received.ignored, received.line = True, None
            return received
        if not its.id:
            raise DecodeError(f"the message on {message.topic!r} has no id, so a copy of it could not be recognised")
        if len(its.id) > LONGEST:
            raise DecodeError(f"the id of the message on {message.topic!r} is longer than {LONGEST} characters")
        received.key = _key(its.id, message.topic) + (f"/{again}" if again else "")
        _check_text(received)
    except (DecodeError, ValueError, TypeError, AttributeError) as error:
        received.hopeless = error if isinstance(error, DecodeError) else _unreadable(message.topic, error)
        received.brief = received.hopeless.brief
        received.key, received.delivery = synthetic_key(delivery.message), delivery
        received.type = sayable(str(received.type))[:LONGEST]
        kind, id = (sayable(str(part))[:LONGEST] for part in received.aggregate)
        received.aggregate, received.number = (kind, id), None
        received.line = received.line and line_of(topics, message.topic, received.aggregate)
    return received


def _restate(received: Received, handlers: Handlers, topics: Topics) -> Message:
    """Put a message that is not ours into our words; what is known before something cannot be read is kept."""
    message = received.delivery.message
    topic, bound = topics[message.topic], handlers.on(message.topic)
    readers = readers_of(message.topic, topic.id, topic.type, topic.key)
    if readers is None and not bound:
        return message
    reads = readers or Readers()
    type = read_type(reads.type, message) if reads.type else type_of(message)
    handler = bound.get(type) if type or len(bound) != 1 else next(iter(bound.values()))
    if handler is not None:
        type, reads = handler.type, Readers(handler.id, reads.type, handler.aggregate or reads.aggregate)
    received.type, its = type, {"type": type}
    if reads.aggregate:
        received.aggregate = read_aggregate(reads.aggregate, message)
        received.line = line_of(topics, message.topic, received.aggregate)
        its |= dict(zip(("aggregate_type", "aggregate_id"), received.aggregate, strict=True))
    if reads.id:
        its["id"] = read_id(reads.id, message)
    message = restated(message, its)
    received.delivery = replace(received.delivery, message=message)
    return message


def _unreadable(topic: str, error: Exception) -> DecodeError:
    return DecodeError(words_of(error), f"the message on {topic!r} cannot be read: {type(error).__name__}")


def _no_type(topic: str) -> str:
    return (
        f"the message on {topic!r} has no type, so it is not an event; if it is none of ours, say where its id and type"
        f' are ([topic."{topic}"], or topic= and id= of a handler) and have it sent again'
    )


def _key(id: str, topic: str) -> str:
    """Give an event's place in the inbox. Only a UUID is the same everywhere: what is none is known within its topic,
    or two that both count from one would be taken for copies of each other."""
    return uuid_of(id) or f"{_escaped(topic)}/{_escaped(id)}"


def _escaped(text: str) -> str:
    """Write a part of a key so that no other parts make the same key."""
    return text.replace("%", "%25").replace("/", "%2F")


def _check_text(received: Received) -> None:
    """Refuse what no table could keep: lone surrogates, NUL, endless names, and what is no text at all."""
    names = (received.type, *received.aggregate)
    together = "".join((received.key, *names))
    if len(together) <= LONGEST and together.isascii() and "\0" not in together:
        return  # as most are
    too_long = max(map(len, names)) > LONGEST or len(received.key.encode()) > LONGEST_KEY
    if too_long or "\0" in together:
        raise DecodeError(
            f"the message on {received.delivery.topic!r} has an id, a type or an aggregate that cannot be kept: with a"
            f" NUL, or of more than {LONGEST} characters"
        )
    "".join(names).encode()


def line_of(topics: Topics, topic: str, aggregate: tuple[str, str]) -> Line | None:
    """Say which deliveries this one must not overtake; None if it is free."""
    order = topics[topic].order
    if order == "aggregate" and aggregate[1]:
        return topic, *aggregate
    return (topic, "", "") if order == "global" else None


def synthetic_key(message: Message) -> str:
    """Make an id for a message that has none: the same bytes have the same one."""
    digest = sha256()
    for part in (message.topic, message.key or "", json.dumps(sorted(message.headers.items()), default=str)):
        digest.update(part.encode(errors="surrogatepass"))
        digest.update(b"\0")
    digest.update(message.body)
    return digest.hexdigest()


PARKED_COLUMNS = (
    "event_id, line, attempts, topic, key, headers, body, aggregate_type, aggregate_id, event_type, number, numbering,"
    " state"
)


def unpark(row: Sequence[Any]) -> Received:
    """Build it again out of the parking lot's row (PARKED_COLUMNS)."""
    key, line, attempts, topic, wire_key, headers, body, aggregate_type, aggregate_id, event_type, *rest = row
    delivery = Delivery(Message(topic, wire_key, json.loads(headers), bytes(body)))
    received = Received(delivery, parked=True, attempts=attempts)
    received.key, received.type, received.aggregate = key, event_type, (aggregate_type, aggregate_id)
    received.line = None if line is None else line_from(line)
    received.number, received.numbering, state = rest
    received.stored, received.abandoned = state == "stored", state == "held"
    if not event_type:
        received.hopeless = DecodeError(_no_type(topic))
    elif key == synthetic_key(delivery.message):
        received.hopeless = DecodeError(
            f"the message on {topic!r} could not be read when it came, so it has no id: have it sent again"
        )
    if line is None:
        received.number = None  # it stands outside its line: the others have gone on without it
    return received


@lru_cache(maxsize=4096)
def line_text(line: Line | None) -> str | None:
    """Write a line as the tables keep it."""
    return None if line is None else _write_line(line)


_write_line = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def line_from(text: str) -> Line:
    """Read a line as the tables keep it."""
    topic, aggregate_type, aggregate_id = json.loads(text)
    return topic, aggregate_type, aggregate_id
