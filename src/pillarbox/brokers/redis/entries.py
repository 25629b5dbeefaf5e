"""Entries: a message ⇄ the fields of a stream's entry.

    key             the message's key; absent if it has none
    id, type, …     its headers, each under its own name
    body            its body, byte for byte

A header whose name would be taken for one of ours (`key`, `body`, `header:…`) is written as `header:<name>`.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from pillarbox.core.message import Message

KEY, BODY, ESCAPE = "key", "body", "header:"
_TAKEN = frozenset((KEY, BODY))


def fields_of(message: Message) -> list[str | bytes]:
    """Write a message as field, value, field, value, …"""
    fields: list[str | bytes] = [] if message.key is None else [KEY, message.key]
    for name, value in message.headers.items():
        fields += (_field(name), value)
    fields += (BODY, message.body)
    return fields


@lru_cache(maxsize=4096)
def _field(name: str) -> str:
    return ESCAPE + name if name in _TAKEN or name.startswith(ESCAPE) else name


def message_of(topic: str, fields: Sequence[bytes]) -> Message:
    """Read an entry, whoever wrote it: what is missing is empty, what is no UTF-8 is written as escapes."""
    key: str | None = None
    body = b""
    headers: dict[str, str] = {}
    for name, value in _pairs(fields):
        if name == BODY:
            body = value
        elif name == KEY:
            key = _text(value)
        else:
            headers[name.removeprefix(ESCAPE)] = _text(value)
    return Message(topic, key, headers, body)


def _pairs(fields: Sequence[bytes]) -> Iterable[tuple[str, bytes]]:
    return ((_text(name), value) for name, value in zip(fields[::2], fields[1::2], strict=True))


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")
