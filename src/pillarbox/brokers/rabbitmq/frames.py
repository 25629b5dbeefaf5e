"""Frames: a message as AMQP 0-9-1 writes it, and back. Pure.

    basic.publish     exchange, topic as the routing key, mandatory
    header            content type, the headers as text, persistent, the event's id as the message id
    body              in pieces, if it is larger than a frame

CloudEvents follow the RabbitMQ binding: their attributes have the prefix ce-, their content type is the property. The
key is the aggregate's id, which is a header anyway; where it is not, it has a header of its own.
"""

import json
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pillarbox.core.message import Message
from pillarbox.errors import PublishRejected

KEY_HEADER = "pillarbox-key"
COUNT_HEADER = "x-delivery-count"
"""Quorum queues write here how often they have delivered a message before."""
CHANNEL = 1
SHORT = 255
OVERHEAD = 8
"""Bytes around what a frame holds."""

_FRAME = struct.Struct(">BHI")
_LENGTH = struct.Struct(">I")
_HEADER = struct.Struct(">HHQH")
_METHOD_FRAME, _HEADER_FRAME, _BODY_FRAME, _END = 1, 2, 3, b"\xce"
_BASIC, _PUBLISH, _ACK = 60, 40, 80
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _MESSAGE_ID = 0x8000, 0x2000, 0x1000, 0x0080
_ACK_FRAME = struct.Struct(">BHIHHQBc")


class Writer:
    """Writes messages as frames for one exchange. Raises PublishRejected for what no frame can hold."""

    def __init__(self, exchange: str, *, mandatory: bool, persistent: bool, frame_max: int) -> None:
        self._exchange, self._mandatory = exchange, mandatory
        self._mode = b"\x02" if persistent else b"\x01"
        self._room = frame_max - OVERHEAD
        self._methods: dict[str, bytes] = {}

    def frames(self, message: Message, tag: int) -> bytes:
        """Write everything that publishes one message."""
        topic, key, headers, body, _ = message
        method = self._methods.get(topic) or self._method(topic)
        header = self._header(headers, key, len(body), id_of(message, tag))
        if len(header) > self._room:
            raise PublishRejected(
                f"its headers take {len(header):,} bytes, and RabbitMQ takes at most {self._room:,} (frame_max)"
            )
        parts = [method, _FRAME.pack(_HEADER_FRAME, CHANNEL, len(header)), header, _END]
        for start in range(0, len(body), self._room):
            piece = body[start : start + self._room]
            parts += (_FRAME.pack(_BODY_FRAME, CHANNEL, len(piece)), piece, _END)
        return b"".join(parts)

    def _method(self, topic: str) -> bytes:
        exchange, routing_key = self._exchange.encode(), topic.encode()
        if len(routing_key) > SHORT:
            raise PublishRejected(f"its topic takes {len(routing_key)} bytes, and RabbitMQ takes at most {SHORT}")
        payload = struct.pack(">HHH", _BASIC, _PUBLISH, 0) + _short(exchange) + _short(routing_key)
        payload += bytes([self._mandatory])
        if len(self._methods) >= 10_000:
            self._methods.clear()
        self._methods[topic] = frame = _FRAME.pack(_METHOD_FRAME, CHANNEL, len(payload)) + payload + _END
        return frame

    def _header(self, headers: Mapping[str, str], key: str | None, size: int, id: str) -> bytes:
        content_type, headers = _on_the_wire(headers)
        if key is not None and key != _key_in(headers):
            headers = {**headers, KEY_HEADER: key}
        fields: list[bytes] = []
        for name, value in headers.items():
            text = value.encode()
            fields += (_field(name), _LENGTH.pack(len(text)), text)
        table = b"".join(fields)
        flags = _HEADERS | _DELIVERY_MODE | _MESSAGE_ID
        parts = [_LENGTH.pack(len(table)), table, self._mode, _short(id.encode())]
        if content_type is not None:
            flags |= _CONTENT_TYPE
            parts.insert(0, _short(content_type.encode()))
        return _HEADER.pack(_BASIC, 0, size, flags) + b"".join(parts)


def _on_the_wire(headers: Mapping[str, str]) -> tuple[str | None, Mapping[str, str]]:
    """Give the property content_type and the headers as this protocol spells them."""
    plain = headers.get("content_type")
    if plain is not None:
        return (plain if _is_short(plain) else None), headers
    if "ce_specversion" in headers:
        headers = {f"ce-{name[3:]}" if name.startswith("ce_") else name: value for name, value in headers.items()}
    content_type = headers.get("content-type")
    if content_type is None or not _is_short(content_type):
        return None, headers
    return content_type, {name: value for name, value in headers.items() if name != "content-type"}


def id_of(message: Message, tag: int) -> str:
    """Give the message's id in the protocol: the event's, or one that holds as long as the channel."""
    id = message.headers.get("id") or message.headers.get("ce_id")
    return id if id and _is_short(id) else f"#{tag}"


def _key_in(headers: Mapping[str, str]) -> str | None:
    return headers.get("aggregate_id") or headers.get("ce-partitionkey")


def _is_short(text: str) -> bool:
    return 4 * len(text) <= SHORT or len(text.encode()) <= SHORT


def _short(data: bytes) -> bytes:
    return bytes([len(data)]) + data


@lru_cache(maxsize=4096)
def _field(name: str) -> bytes:
    data = name.encode()
    if len(data) > SHORT:
        raise PublishRejected(f"the name of its header {name[:40]!r}… takes {len(data)} bytes; RabbitMQ takes {SHORT}")
    return _short(data) + b"S"


def ack(tag: int, *, multiple: bool) -> bytes:
    """Write the acknowledgement of a delivery, or of all up to it."""
    return _ACK_FRAME.pack(_METHOD_FRAME, CHANNEL, 13, _BASIC, _ACK, tag, multiple, _END)


def read(topic: str, fields: Mapping[str, Any], content_type: str | None, body: bytes) -> tuple[Message, int]:
    """Read a message off a delivery, and which attempt it is, as far as the server says."""
    headers = {name: _text(value) for name, value in fields.items()}
    attempt = 1
    if isinstance(count := fields.get(COUNT_HEADER), int):
        del headers[COUNT_HEADER]
        attempt += count
    key = headers.pop(KEY_HEADER, None) or _key_in(headers) or headers.get("ce_partitionkey")
    if content_type is not None and "content_type" not in headers:
        headers.setdefault("content-type", content_type)
    return Message(topic, key, headers, body), attempt


def _text(value: Any) -> str:
    """Other programs' headers may be of any type; ours are text."""
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="backslashreplace")
    return value if isinstance(value, str) else json.dumps(value, default=str)
