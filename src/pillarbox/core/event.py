"""Event: the fact that an application states. The same class at both ends: added to the outbox, given to a handler.

Everything that could not be stored or published later is refused here, while the caller still has its transaction.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import UUID

from pillarbox.core.payload import JSON, check_json, is_json, to_json
from pillarbox.core.routing import LONGEST
from pillarbox.errors import EncodeError, InvalidEvent
from pillarbox.ids import new_id

if TYPE_CHECKING:
    from pillarbox.core.message import Delivery

T = TypeVar("T")

RESERVED_HEADERS = frozenset(
    (
        "id",
        "type",
        "aggregate_type",
        "aggregate_id",
        "idempotency_key",
        "number",
        "occurred_at",
        "content_type",
        "content-type",
    )
)
RESERVED_PREFIXES = ("pillarbox-", "ce_", "ce-", "cloudevents:", "cloudevents_")
MOST_OF_HEADERS = 32_768
"""So many bytes the names and values of an event's own headers have together at most: several brokers take 64 KiB, ours
and those of the trace included."""

_set = object.__setattr__
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Event(Generic[T]):
    """A fact, ready to be added to an outbox or received from an inbox.

    >>> event = Event("OrderPlaced", {"order_id": 7, "total": 42}, aggregate=("order", 7))
    >>> event.aggregate
    ('order', '7')
    """

    __slots__ = (
        "aggregate",
        "available_at",
        "content_type",
        "data",
        "delivery",
        "headers",
        "id",
        "idempotency_key",
        "number",
        "numbered",
        "occurred_at",
        "payload",
        "topic",
        "type",
    )

    type: str
    payload: T
    aggregate: tuple[str, str] | None
    id: UUID
    topic: str | None
    headers: Mapping[str, str]
    content_type: str
    idempotency_key: str | None
    available_at: datetime | None
    occurred_at: datetime | None
    numbered: bool
    number: int | None
    data: str | bytes
    """The payload as it is stored: JSON text, or bytes."""
    delivery: "Delivery | None"
    """How it arrived, on the receiving side."""

    def __init__(
        self,
        type: str,
        payload: T,
        *,
        aggregate: tuple[str, str | int | UUID] | None = None,
        id: UUID | None = None,
        topic: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        idempotency_key: str | None = None,
        available_at: datetime | None = None,
        occurred_at: datetime | None = None,
        numbered: bool = False,
        number: int | None = None,
    ) -> None:
        _set(self, "type", _name("type", type))
        _set(self, "payload", payload)
        _set(self, "aggregate", None if aggregate is None else _aggregate(aggregate))
        _set(self, "id", new_id() if id is None else _uuid(id))
        _set(self, "topic", None if topic is None else _name("topic", topic))
        _set(self, "headers", _NO_HEADERS if not headers else _headers(headers))
        _set(self, "idempotency_key", None if idempotency_key is None else _name("idempotency_key", idempotency_key))
        _set(self, "available_at", None if available_at is None else _instant("available_at", available_at))
        _set(self, "occurred_at", None if occurred_at is None else _instant("occurred_at", occurred_at))
        _set(self, "numbered", numbered)
        _set(self, "number", number)
        _set(self, "delivery", None)
        try:
            if isinstance(payload, bytes | bytearray | memoryview):
                _set(self, "content_type", _content_type_of_bytes(content_type))
                _set(self, "data", _data_of_bytes(bytes(payload), self.content_type))
            else:
                _set(self, "content_type", JSON if content_type is None else _content_type_of_json(content_type))
                _set(self, "data", to_json(payload))
        except EncodeError as error:
            raise InvalidEvent(f"payload of {type!r}: {error}") from error
        if numbered or number is not None:
            self._check_number()

    def _check_number(self) -> None:
        field = "numbered" if self.numbered else "number"
        if self.numbered and self.number is not None:
            raise InvalidEvent("numbered, number: give one of them: the database counts, or the application does")
        if self.number is not None and (type(self.number) is not int or not 0 <= self.number < 1 << 63):
            raise InvalidEvent(f"number: {self.number!r:.60} is not a whole number from 0 to 2^63 - 1")
        if self.aggregate is None:
            raise InvalidEvent(f"{field}: only an event with an aggregate has a number: name the aggregate")
        if self.available_at is not None:
            raise InvalidEvent(f"{field}, available_at: a delayed event stands outside the order and has no number")

    @classmethod
    def received(
        cls,
        *,
        id: UUID,
        type: str,
        payload: Any,
        aggregate: tuple[str, str] | None,
        topic: str,
        headers: Mapping[str, str],
        content_type: str,
        idempotency_key: str | None,
        occurred_at: datetime | None,
        number: int | None,
        data: str | bytes,
        delivery: "Delivery | None" = None,
    ) -> "Event[Any]":
        """Build an event that was checked when it was added: off the wire, or out of the tables."""
        self = cls.__new__(cls)
        for name, value in (
            ("id", id),
            ("type", type),
            ("payload", payload),
            ("aggregate", aggregate),
            ("topic", topic),
            ("headers", MappingProxyType(dict(headers)) if headers else _NO_HEADERS),
            ("content_type", content_type),
            ("idempotency_key", idempotency_key),
            ("available_at", None),
            ("occurred_at", occurred_at),
            ("numbered", False),
            ("number", number),
            ("data", data),
            ("delivery", delivery),
        ):
            _set(self, name, value)
        return self

    @staticmethod
    def key_for(aggregate_id: str | int | UUID, type: str, payload: object) -> str:
        """Give the deterministic idempotency key: two equal payloads have one key. Never a default.

        >>> Event.key_for(42, "OrderPlaced", {"total": 42})
        '307c1c1b5d6fe0ce5a8671cc245c74c8'
        """
        try:
            text = to_json(payload, canonical=True)
        except EncodeError as error:
            raise InvalidEvent(f"payload of {type!r}: {error}") from error
        return sha256(f"{aggregate_id}:{type}:{text}".encode()).hexdigest()[:32]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an Event is a value and does not change: make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an Event is a value and does not change: {name!r} stays")

    def __getstate__(self) -> dict[str, Any]:
        """Give what copying and pickling take along."""
        return {name: getattr(self, name) for name in self.__slots__} | {"headers": dict(self.headers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            _set(self, name, MappingProxyType(value) if name == "headers" else value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Event):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__ if name != "delivery")

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        of = "" if self.aggregate is None else f", aggregate={self.aggregate!r}"
        return f"Event({self.type!r}, {self.payload!r}{of}, id={str(self.id)!r})"


def carrying(event: Event[T], headers: Mapping[str, str]) -> Event[T]:
    """Give the same event with further headers, which need no check."""
    copy = event.__class__.__new__(event.__class__)
    for name in Event.__slots__:
        _set(copy, name, getattr(event, name))
    _set(copy, "headers", MappingProxyType({**event.headers, **headers}))
    return copy


def _check_text(field: str, value: object, longest: int) -> str:
    if not isinstance(value, str):
        raise InvalidEvent(f"{field}: expected text, found {type(value).__name__} {value!r:.60}")
    value = str.__str__(value)  # a member of an Enum is text, too, and prints as something else
    if not value:
        raise InvalidEvent(f"{field}: is empty; name it")
    if len(value) > longest:
        raise InvalidEvent(f"{field}: {len(value)} characters, at most {longest}: {value[:40]!r}…; shorten it")
    _check_characters(field, value)
    return value


def _check_characters(field: str, value: str) -> None:
    if "\0" in value:
        raise InvalidEvent(f"{field}: holds a NUL character, which no database keeps in text: {value!r:.60}; remove it")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidEvent(f"{field}: holds a lone surrogate: {value!r:.60}; remove it") from error


@lru_cache(maxsize=4096)
def _known_name(field: str, value: str) -> str:
    return _check_text(field, value, LONGEST)


def _name(field: str, value: object) -> str:
    # Names repeat in every event, so their checks are remembered; keys do not, and would only push names out.
    if type(value) is str and field != "idempotency_key":
        return _known_name(field, value)
    return _check_text(field, value, LONGEST)


def _aggregate(aggregate: object) -> tuple[str, str]:
    if not isinstance(aggregate, tuple) or len(aggregate) != 2:
        raise InvalidEvent(f"aggregate: expected (type, id), found {aggregate!r:.80}")
    kind, id = aggregate
    kind = _name("aggregate type", kind)
    if type(id) is int and id.bit_length() < 800:  # fewer than 255 digits, and nothing else to check
        return kind, str(id)
    if id is None:
        raise InvalidEvent(f"aggregate: {kind}.id is None: flush first, so that the database gives it its id")
    if isinstance(id, UUID):
        return kind, str(id)
    if not isinstance(id, str):
        what = "an int of hundreds of digits" if type(id) is int else f"{type(id).__name__} {id!r:.60}"
        raise InvalidEvent(f"aggregate id: expected str, int or UUID, found {what}")
    return kind, _check_text("aggregate id", id, LONGEST)


def _uuid(id: object) -> UUID:
    if not isinstance(id, UUID):
        raise InvalidEvent(f"id: expected a UUID, found {type(id).__name__} {id!r:.60}; leave it out to get a new one")
    return id


def _headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidEvent(f"headers: expected a mapping of names to texts, found {headers!r:.60}")
    checked = {}
    for name, value in headers.items():
        name = _name("header name", name)
        if name.lower() in RESERVED_HEADERS or name.lower().startswith(RESERVED_PREFIXES):
            raise InvalidEvent(f"headers: {name!r} is a reserved name that Pillarbox writes itself; choose another")
        if not name.isprintable():
            raise InvalidEvent(f"headers: the name {name!r} holds control characters; remove them")
        if not isinstance(value, str):
            raise InvalidEvent(f"headers: {name!r} is {type(value).__name__} {value!r:.60}; values are text")
        _check_characters(f"header {name!r}", value)
        checked[name] = str.__str__(value)
    if (size := sum(len(text.encode()) for pair in checked.items() for text in pair)) > MOST_OF_HEADERS:
        raise InvalidEvent(
            f"headers: {size:,} bytes together, at most {MOST_OF_HEADERS:,}: put what is large into the payload"
        )
    return MappingProxyType(checked)


def _instant(field: str, value: object) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidEvent(f"{field}: expected a datetime, found {type(value).__name__} {value!r:.60}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidEvent(f"{field}: {value.isoformat()} has no time zone: use datetime.now(UTC)")
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise InvalidEvent(f"{field}: {value.isoformat()} is outside the years that can be stored") from error


def _content_type_of_bytes(content_type: str | None) -> str:
    if content_type is None:
        raise InvalidEvent("content_type: bytes need one: say what they are, for example 'application/avro'")
    return _name("content_type", content_type)


def _data_of_bytes(payload: bytes, content_type: str) -> str | bytes:
    if not is_json(content_type):
        return payload
    try:
        return check_json(payload.decode())  # a reader takes it for JSON, and the json column of a database does
    except UnicodeDecodeError as error:
        raise EncodeError(f"it is not UTF-8: {error}") from error


def _content_type_of_json(content_type: str) -> str:
    if not is_json(_name("content_type", content_type)):
        raise InvalidEvent(f"content_type: {content_type!r} is not JSON: give the payload as bytes in that format")
    return content_type
