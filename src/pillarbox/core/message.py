"""Messages: an entry ⇄ what goes over the wire, in three formats.

    plain                     headers id, type, aggregate_type, …; the body is the payload, byte for byte
    cloudevents               the same body; the attributes are headers with the prefix ce_ (binary mode)
    cloudevents-structured    one JSON document that holds the attributes and the payload

A reader recognises the format from the message itself, never from settings. Brokers whose own CloudEvents binding
spells the prefix otherwise rename it in their file; the reader knows all of the spellings. CloudEvents have one time:
where an event does not say when it occurred, that is when it was added.

What Debezium's EventRouter carried out of the same table is plain too, but for one thing: it cannot spread a column
over many headers, so the event's own ones are all in PACKED_HEADERS, as the JSON object of the column.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID, uuid5

from pillarbox.core.chunk import Chunk
from pillarbox.core.entry import Entry
from pillarbox.core.event import RESERVED_HEADERS, RESERVED_PREFIXES, Event
from pillarbox.core.payload import JSON, check_json, from_bytes, is_json
from pillarbox.errors import DecodeError, EncodeError

STRUCTURED = "application/cloudevents+json"
REPLAY_HEADER = "pillarbox-replay"
PACKED_HEADERS = "pillarbox-headers"
_CE_PREFIXES = ("ce_", "ce-", "cloudEvents:", "cloudEvents_")
_CE_EXTENSIONS = {
    "aggregatetype": "aggregate_type",
    "partitionkey": "aggregate_id",
    "idempotencykey": "idempotency_key",
    "number": "number",
}


_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_FOREIGN = UUID("8d3f6c52-5f0e-5a0b-9c5e-2f6f3c1b7a44")
"""The namespace in which ids that are no UUID become one; written down for ever."""


class Message(NamedTuple):
    """Bytes on the wire. `ticket` is the relay's own mark: it comes back with the outcome and is never sent."""

    topic: str
    key: str | None
    headers: Mapping[str, str]
    body: bytes
    ticket: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message received. `place` is the broker's own handle, needed to acknowledge it."""

    message: Message
    place: Any = None
    redelivered: bool = False
    attempt: int = 1

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def replay(self) -> str | None:
        """The id of the replay that sent it again on purpose; None in normal life."""
        return self.message.headers.get(REPLAY_HEADER)


def encode(entry: Entry, ticket: int, format: str = "plain") -> Message:
    """Make the message for an entry. Raises EncodeError for names, headers or JSON that a plain INSERT got wrong."""
    topic, data = entry.topic, entry.data
    names = (entry.event_id, entry.aggregate_type, entry.aggregate_id, entry.event_type, topic)
    if "\0" in "".join((*names, entry.content_type or "", entry.idempotency_key or "")):
        raise EncodeError(f"event {ascii(entry.event_id)[1:-1]}: its names hold a NUL character, which is no text")
    try:
        body = data if isinstance(data, bytes) else data.encode()
        headers, body = _plain(entry, body) if format == "plain" else _FORMATS[format](entry, body)
        if not (topic.isascii() and all(map(_is_ascii, headers.values()))):
            "".join((topic, *headers.values())).encode()
        if entry.headers:
            headers = _own_headers(entry) | headers
        if entry.replay:
            headers[REPLAY_HEADER] = entry.replay
    except UnicodeEncodeError as error:
        found = ascii(error.object[error.start : error.start + 20])
        raise EncodeError(f"event {ascii(entry.event_id)[1:-1]}: it has text that is no UTF-8: {found}") from error
    return _new(Message, (topic, entry.aggregate_id or None, headers, body, ticket))


def encode_all(entries: Sequence[Entry], first_ticket: int) -> list[Message]:
    """Make plain messages of entries, with tickets in a row: what `encode` does one by one, at half of its price."""
    if isinstance(entries, Chunk):
        if _have_fixed_headers_alone(entries.columns):
            return _encode_simple(entries.columns, first_ticket)
    elif (columns := tuple(zip(*entries, strict=True))) and _are_simple(columns):
        try:
            return _encode_simple(columns, first_ticket)
        except UnicodeEncodeError:
            pass  # one by one it is said of whom
    return [encode(entry, ticket) for ticket, entry in enumerate(entries, first_ticket)]


def _encode_simple(columns: Sequence[tuple[Any, ...]], first_ticket: int) -> list[Message]:
    bodies = map(_encoded, columns[_DATA])
    _, ids, aggregate_types, keys, types, topics, _, content_types, *_ = columns
    headers = [
        {"id": id, "type": type, "content_type": content or JSON, "aggregate_type": aggregate_type, "aggregate_id": key}
        for id, type, content, aggregate_type, key in zip(ids, types, content_types, aggregate_types, keys, strict=True)
    ]
    return list(map(_message, zip(topics, keys, headers, bodies, count(first_ticket))))


def _are_simple(columns: Sequence[tuple[Any, ...]]) -> bool:
    """Say whether entries, by columns, can be encoded by column: with texts that are surely well."""
    _, ids, aggregate_types, keys, types, topics, _, content_types, *_ = columns
    shown = (ids, aggregate_types, keys, types, topics, filter(None, set(content_types)))
    return _have_fixed_headers_alone(columns) and not any(columns[_REPLAY]) and all(map(_is_plain, map("".join, shown)))


def _have_fixed_headers_alone(columns: Sequence[tuple[Any, ...]]) -> bool:
    """Say whether entries, by columns, have an aggregate, a text and no more headers than every event has."""
    _, ids, _, keys, _, _, data, _, own, idempotency_keys, numbers, _, occurred, *_ = columns
    rare = (own, idempotency_keys, numbers, occurred)
    return all(column.count(None) == len(ids) for column in rare) and all(keys) and set(map(type, data)) == {str}


def _is_plain(text: str) -> bool:
    return text.isascii() and "\0" not in text


_DATA, _REPLAY = map(Entry._fields.index, ("data", "replay"))
_is_ascii, _encoded = str.isascii, str.encode
_new = tuple.__new__  # what Message() calls in the end: the way there takes longer than the rest
_message: Callable[[tuple[Any, ...]], Message] = partial(_new, Message)


def _own_headers(entry: Entry) -> dict[str, str]:
    try:
        return _unpacked(entry.headers or "{}")
    except ValueError as error:
        raise EncodeError(f"event {entry.event_id}: its headers {error}") from error


def _unpacked(text: str) -> dict[str, str]:
    """Read an event's own headers off the JSON of the column; the names that are ours are not for others to use."""
    try:
        own = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in json.loads(text).items()
            if name.lower() not in RESERVED_HEADERS and not name.lower().startswith(RESERVED_PREFIXES)
        }
        # Half a character, from an escape or from bytes that are no UTF-8, could be given to no broker.
        if "\\u" in text or not text.isascii():
            "".join((*own, *own.values())).encode()
        return own
    except UnicodeEncodeError as error:
        raise ValueError("hold a lone surrogate, which is no text") from error
    except (ValueError, AttributeError, RecursionError) as error:
        raise ValueError("are no JSON object") from error


def _plain(entry: Entry, body: bytes) -> tuple[dict[str, str], bytes]:
    headers = {"id": entry.event_id, "type": entry.event_type, "content_type": entry.content_type or JSON}
    if entry.aggregate_id:
        headers["aggregate_type"] = entry.aggregate_type
        headers["aggregate_id"] = entry.aggregate_id
    if entry.number is not None:
        headers["number"] = str(entry.number)
    if entry.idempotency_key is not None:
        headers["idempotency_key"] = entry.idempotency_key
    if entry.occurred_at is not None:
        headers["occurred_at"] = instant(entry.occurred_at)
    return headers, body


def _attributes(entry: Entry) -> dict[str, str]:
    attributes = {
        "specversion": "1.0",
        "id": entry.event_id,
        "source": "/" + quote(entry.aggregate_type, safe=""),
        "type": entry.event_type,
        "time": instant(entry.occurred_at or entry.created_at),
    }
    if entry.aggregate_id:
        attributes |= {
            "subject": entry.aggregate_id,
            "aggregatetype": entry.aggregate_type,
            "partitionkey": entry.aggregate_id,
        }
    if entry.number is not None:
        attributes["number"] = str(entry.number)
    if entry.idempotency_key is not None:
        attributes["idempotencykey"] = entry.idempotency_key
    return attributes


def _cloudevents(entry: Entry, body: bytes) -> tuple[dict[str, str], bytes]:
    headers = {f"ce_{name}": value for name, value in _attributes(entry).items()}
    headers["content-type"] = entry.content_type or JSON
    return headers, body


def _structured(entry: Entry, body: bytes) -> tuple[dict[str, str], bytes]:
    content_type = entry.content_type or JSON
    document = json.dumps(_attributes(entry) | {"datacontenttype": content_type}, ensure_ascii=False).encode()
    # The payload is put in as it stands: parsing and writing it again could change its bytes.
    if is_json(content_type):
        data = b'"data":' + _checked(entry, body)
    else:
        data = b'"data_base64":"%b"' % base64.b64encode(body)
    return {"content-type": f"{STRUCTURED}; charset=UTF-8"}, document[:-1] + b"," + data + b"}"


def _checked(entry: Entry, body: bytes) -> bytes:
    try:
        check_json(body.decode())
    except (UnicodeDecodeError, EncodeError) as error:
        raise EncodeError(
            f"event {entry.event_id}: its payload is not {entry.content_type or JSON}: {error}"
        ) from error
    return body


_FORMATS: dict[str, Callable[[Entry, bytes], tuple[dict[str, str], bytes]]] = {
    "plain": _plain,
    "cloudevents": _cloudevents,
    "cloudevents-structured": _structured,
}


def decode(delivery: Delivery, model_for: Callable[[str], Any] = lambda _: None) -> Event[Any]:
    """Read an event off a delivery, whatever its format; `model_for` names the payload's model by event type. An id
    that is no UUID becomes one, always the same, and stays readable as the header `id`."""
    fields, own_headers, body = _parse(delivery.message)
    try:
        (id, as_it_came), type = _uuid(fields["id"], delivery.topic), fields["type"]
        number = _number(fields["number"]) if "number" in fields else None
        occurred_at = _moment(fields["occurred_at"]) if "occurred_at" in fields else None
    except KeyError as error:
        raise DecodeError(f"the message on {delivery.topic!r} has no {error} header, so it is not an event") from error
    except (ValueError, OverflowError) as error:
        raise _unreadable(f"a header of the message on {delivery.topic!r} is malformed", error) from error
    content_type = fields.get("content_type", JSON)
    aggregate_id = fields.get("aggregate_id")
    return Event.received(
        id=id,
        type=type,
        payload=from_bytes(body, content_type, model_for(type)),
        aggregate=(fields.get("aggregate_type", ""), aggregate_id) if aggregate_id else None,
        topic=delivery.topic,
        headers=_with_unpacked(own_headers, delivery.topic) | as_it_came,
        content_type=content_type,
        idempotency_key=fields.get("idempotency_key"),
        occurred_at=occurred_at,
        number=number,
        data=body.decode() if is_json(content_type) else body,
        delivery=delivery,
    )


def _unreadable(what: str, error: Exception) -> DecodeError:
    """Say why it cannot be read; the why may have what the message carries."""
    brief = error.brief if isinstance(error, DecodeError) else None
    return DecodeError(f"{what}: {error}", what if brief is None else f"{what}: {brief}")


def _with_unpacked(headers: dict[str, str], topic: str) -> dict[str, str]:
    """Put an event's own headers in the place of the one that Debezium packed them into."""
    if PACKED_HEADERS not in headers:
        return headers
    packed = headers.pop(PACKED_HEADERS)
    try:
        return headers | _unpacked(packed)
    except ValueError as error:
        what = f"the headers in {PACKED_HEADERS} of the message on {topic!r}"
        raise DecodeError(f"{what} {error}", f"{what} cannot be read") from error


def _uuid(text: str, topic: str) -> tuple[UUID, dict[str, str]]:
    """Give an id as a UUID; if it is none, one for it within its topic, and the header under which it stays as it
    came."""
    if not text:
        raise ValueError("the id is empty")
    if (id := uuid_of(text)) is not None:
        return UUID(id), {}
    return uuid5(_FOREIGN, f"{topic}/{text}"), {"id": text}


def uuid_of(text: str) -> str | None:
    """Read a UUID in its usual form; None if it is anything else: Python's own reading takes many texts for one."""
    return text.lower() if _UUID.fullmatch(text) else None


def restated(message: Message, its: Mapping[str, str]) -> Message:
    """Make a plain message of one that says elsewhere what `its` id, type and aggregate are. Whatever has an id of its
    own is not ours, so that no other header of it means what it means in ours; all stay the event's own headers."""
    fields, own, body = _parse(message)
    if "id" in its:
        own = {name: value for name, value in message.headers.items() if name != REPLAY_HEADER}
        content_type = fields.get("content_type") or message.headers.get("content-type") or JSON
        fields = {"content_type": content_type}
    headers = {**fields, **its}
    if REPLAY_HEADER in message.headers:
        headers[REPLAY_HEADER] = message.headers[REPLAY_HEADER]
    if own:
        headers[PACKED_HEADERS] = json.dumps(own)
    return message._replace(headers=headers, body=body)


def type_of(message: Message) -> str:
    """Read the type alone; '' if it is absent."""
    return _parse(message)[0].get("type", "")


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 1 << 63):
        raise ValueError(f"the number {text!r:.40} is not a whole number from 0 to 2^63 - 1")
    return int(text)


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError(f"the time {text!r:.40} has no time zone")
    return moment.astimezone(UTC)


class Identity(NamedTuple):
    """What order and recognition need of a message; texts are '' if they are absent."""

    id: str
    type: str
    aggregate_type: str
    aggregate_id: str
    number: int | None


def identity(message: Message) -> Identity:
    """Read what order and recognition need, without the body."""
    fields = _parse(message)[0]
    try:
        number = _number(fields["number"]) if "number" in fields else None
    except ValueError as error:
        raise _unreadable(f"a header of the message on {message.topic!r} is malformed", error) from error
    return Identity(
        fields.get("id", ""),
        fields.get("type", ""),
        fields.get("aggregate_type", ""),
        fields.get("aggregate_id", ""),
        number,
    )


_PLAIN_FIELDS = frozenset(
    ("id", "type", "content_type", "aggregate_type", "aggregate_id", "number", "idempotency_key", "occurred_at")
)


def _parse(message: Message) -> tuple[dict[str, str], dict[str, str], bytes]:
    """Split a message into our fields, the event's own headers and the body."""
    headers = message.headers
    content_type = headers.get("content-type") or headers.get("content_type") or JSON
    prefix = None if _CE_MARKS.isdisjoint(headers) else _prefix(headers)
    if prefix is None and headers.keys() <= _PLAIN_FIELDS and content_type == JSON:
        return dict(headers), {}, message.body  # as most are
    if content_type.partition(";")[0].strip().lower() == STRUCTURED and _holds_itself(message, prefix):
        return _parse_structured(message)
    if prefix is not None:
        return _parse_binary(message, prefix, content_type)
    fields = {name: value for name, value in headers.items() if name in _PLAIN_FIELDS}
    own = {name: value for name, value in headers.items() if name not in _PLAIN_FIELDS and name != REPLAY_HEADER}
    return fields, own, message.body


_CE_MARKS = frozenset(f"{prefix}specversion" for prefix in _CE_PREFIXES)


def _prefix(headers: Mapping[str, str]) -> str:
    """Say how the attributes of a CloudEvent are spelt."""
    return next(prefix for prefix in _CE_PREFIXES if f"{prefix}specversion" in headers)


def _holds_itself(message: Message, prefix: str | None) -> bool:
    """Say whether a body that is a CloudEvent is this event: somebody's CloudEvent may also be the payload of ours."""
    headers = message.headers
    if prefix is None:
        return not ("id" in headers and "content_type" in headers)  # as only the plain format has them
    # A structured message may repeat its attributes as headers.
    try:
        document = from_bytes(message.body, JSON)
    except DecodeError:
        return False
    same = ("id", "type", "source")
    return isinstance(document, dict) and all(document.get(n) == headers.get(f"{prefix}{n}") for n in same)


def _from_attributes(attributes: Mapping[str, str], content_type: str) -> dict[str, str]:
    fields = {"content_type": content_type}
    for name, value in attributes.items():
        if name in ("id", "type"):
            fields[name] = value
        elif name == "time":
            fields["occurred_at"] = value
        elif name in _CE_EXTENSIONS:
            fields[_CE_EXTENSIONS[name]] = value
    return fields


def _parse_binary(message: Message, prefix: str, content_type: str) -> tuple[dict[str, str], dict[str, str], bytes]:
    attributes = {n.removeprefix(prefix): v for n, v in message.headers.items() if n.startswith(prefix)}
    own = {
        n: v
        for n, v in message.headers.items()
        if not n.startswith(prefix) and n not in ("content-type", "content_type", REPLAY_HEADER)
    }
    body = message.body or (b"null" if is_json(content_type) else b"")  # a CloudEvent may have no data
    return _from_attributes(attributes, content_type), own, body


def _parse_structured(message: Message) -> tuple[dict[str, str], dict[str, str], bytes]:
    try:
        document = from_bytes(message.body, JSON)
        if not isinstance(document, dict):
            raise ValueError("it is not an object")
        attributes = {n: str(v) for n, v in document.items() if v is not None and n not in ("data", "data_base64")}
        content_type = attributes.get("datacontenttype", JSON)
        body = _structured_body(document, content_type)
    except (DecodeError, ValueError, TypeError) as error:
        raise _unreadable(f"the message on {message.topic!r} is no CloudEvent", error) from error
    own = {n: v for n, v in message.headers.items() if n not in ("content-type", "content_type", REPLAY_HEADER)}
    return _from_attributes(attributes, content_type), own, body


def _structured_body(document: Mapping[str, Any], content_type: str) -> bytes:
    if document.get("data_base64") is not None:
        return base64.b64decode(document["data_base64"], validate=True)
    data = document.get("data")
    if isinstance(data, str) and not is_json(content_type):
        return data.encode()
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()


def instant(value: datetime) -> str:
    """Write an instant as RFC 3339 in UTC with a Z; always to the microsecond, as Debezium writes it."""
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
