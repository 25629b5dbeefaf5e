"""Messages that are not ours: where they say their id, their type and their aggregate. Pure; the inbox asks.

ours              as our own messages and CloudEvents say it
key               the message's key
header NAME       a header
body PATH         a value in a JSON body, by its names with dots between them: body order.id
is TEXT           the same for every message on the topic; only a type can be that
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from pillarbox.core.payload import JSON, from_bytes
from pillarbox.core.retry import words_of
from pillarbox.core.wording import a
from pillarbox.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    from pillarbox.core.message import Message

OURS = "ours"
LONGEST = 255
Reader = Callable[["Message"], Any]
"""Takes something off a message; gives None if it is not there."""


class Readers(NamedTuple):
    """What takes id, type and aggregate off a message; None where it says them as ours do."""

    id: Reader | None = None
    type: Reader | None = None
    aggregate: Reader | None = None


@lru_cache(maxsize=1024)
def readers_of(topic: str, id: str, type: str, key: str) -> Readers | None:
    """Make the readers that a topic's settings name; None if its messages are ours in everything. What has a key is of
    the aggregate (topic, key)."""
    reads_key = reader_of("key", key)
    aggregate: Reader | None = None
    if reads_key is not None:
        aggregate = lambda message: None if (id := reads_key(message)) is None else (topic, id)  # noqa: E731
    readers = Readers(reader_of("id", id), reader_of("type", type), aggregate)
    return readers if any(readers) else None


def reader_of(setting: str, place: str) -> Reader | None:
    """Make the reader for a place; None if it is where ours have it. Raises ConfigError."""
    kind, _, rest = place.partition(" ")
    rest = rest.strip()
    match kind:
        case "ours" if not rest:
            return None
        case "key" if not rest:
            return lambda message: message.key
        case "header" if rest:
            return lambda message: message.headers.get(rest)
        case "body" if rest and all(rest.split(".")):
            return lambda message: _in_body(message, rest.split("."))
        case "is" if rest and setting == "type":
            return lambda message: rest
    constant = ', "is OrderPlaced"' if setting == "type" else ""
    raise ConfigError(
        f'{setting}: {place!r:.60} is no place in a message: write "ours", "key", "header message-id", "body order.id"'
        + constant
    )


@lru_cache(maxsize=1)
def _document(body: bytes) -> Any:
    return from_bytes(body, JSON)


def _in_body(message: "Message", names: list[str]) -> Any:
    value = _document(message.body)
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def read_id(reader: Reader, message: "Message") -> str:
    """Read an id; DecodeError if there is none, since a copy could not be recognised."""
    value = _read("id", reader, message)
    if value is None or value == "":
        raise _refused("id", message, "there is none, so a copy of it could not be recognised")
    return _text("id", value, message)


def read_type(reader: Reader, message: "Message") -> str:
    """Read a type; '' if there is none."""
    value = _read("type", reader, message)
    return "" if value is None or value == "" else _text("type", value, message)


def read_aggregate(reader: Reader, message: "Message") -> tuple[str, str]:
    """Read an aggregate; two empty texts if there is none."""
    value = _read("aggregate", reader, message)
    if value is None:
        return "", ""
    if not isinstance(value, tuple) or len(value) != 2:
        raise _refused("aggregate", message, f"{value!r:.60} is not (type, id)", "it is not (type, id)")
    return _text("aggregate", value[0], message), _text("aggregate", value[1], message)


def _read(what: str, reader: Reader, message: "Message") -> Any:
    try:
        return reader(message)
    except DecodeError as error:
        raise _refused(what, message, str(error), error.brief or type(error).__name__) from error
    except Exception as error:  # a function of the user's: whatever it raises, this message cannot be read
        name = type(error).__name__
        raise _refused(what, message, f"{name}: {words_of(error)}", name) from error


def _text(what: str, value: object, message: "Message") -> str:
    if isinstance(value, UUID) or type(value) is int:
        value = str(value)
    if not isinstance(value, str) or not value:
        no_text = "is no text, whole number or UUID"
        raise _refused(what, message, f"{value!r:.60} {no_text}", f"{a(type(value).__name__)} {no_text}")
    if len(value) > LONGEST or "\0" in value:
        length = f"has {len(value)} characters, at most {LONGEST}, or a NUL"
        raise _refused(what, message, f"{value[:40]!r}… {length}", f"it {length}")
    return value


def _refused(what: str, message: "Message", why: str, brief: str | None = None) -> DecodeError:
    refused = f"the {what} of the message on {message.topic!r} cannot be read"
    return DecodeError(f"{refused}: {why}", None if brief is None else f"{refused}: {brief}")
