"""A message → what goes over HTTP: the body as it is, and headers.

Our own headers are named `pillarbox-aggregate-id` and the like, an event's own `pillarbox-…` too, so that none of them
can pose as a header of HTTP. Values are percent-encoded UTF-8. HTTP forgets upper and lower case of names, and proxies
drop odd ones: what has such a name goes into one more header, as JSON. CloudEvents are as their HTTP binding says.
"""

import json
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote

from pillarbox.core.message import REPLAY_HEADER, Message, identity
from pillarbox.errors import DecodeError

PREFIX = "pillarbox-"
TOPIC, KEY, EXACT = f"{PREFIX}topic", f"{PREFIX}key", f"{PREFIX}exact"
_OURS = {
    name: PREFIX + name.replace("_", "-")
    for name in ("id", "type", "aggregate_type", "aggregate_id", "idempotency_key", "number", "occurred_at")
}
_AS_THEY_ARE = frozenset(("traceparent", "tracestate", REPLAY_HEADER))
_TAKEN = frozenset((*_OURS.values(), *_AS_THEY_ARE, TOPIC, KEY, EXACT))
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_VALUE = re.compile(r"([!-~]([ -~]*[!-~])?)?")
# As the HTTP binding of CloudEvents has it: all printable ASCII but space, double quote and percent.
_SAFE = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")


def pack(message: Message) -> dict[str, str]:
    """Make the headers that say what the message is; nothing in them depends on the attempt."""
    packed = {TOPIC: quote(message.topic, safe=_SAFE)}
    odd: dict[str, str] = {}
    for name, value in message.headers.items():
        wire_name = _wire_name(name)
        if wire_name is None or wire_name in packed:
            odd[name] = value
        elif wire_name.startswith((PREFIX, "ce-")):
            packed[wire_name] = quote(value, safe=_SAFE)
        elif _VALUE.fullmatch(value):
            packed[wire_name] = value
        else:
            odd[name] = value
    exact: dict[str, object] = {"headers": odd} if odd else {}
    if message.key != _key_in(message.headers):
        if message.key is None:
            exact["key"] = None
        else:
            packed[KEY] = quote(message.key, safe=_SAFE)
    if exact:
        packed[EXACT] = quote(json.dumps(exact, ensure_ascii=False), safe=_SAFE)
    return packed


@lru_cache(maxsize=4096)
def _wire_name(name: str) -> str | None:
    """Give a header's name in HTTP; None if HTTP would not keep it."""
    if name in _OURS:
        return _OURS[name]
    if name in ("content_type", "content-type"):
        return "content-type"
    if name in _AS_THEY_ARE:
        return name
    if name.startswith("ce_") and _NAME.fullmatch(name[3:]):
        return f"ce-{name[3:]}"
    wire_name = PREFIX + name
    return wire_name if _NAME.fullmatch(name) and wire_name not in _TAKEN else None


def _key_in(headers: Mapping[str, str]) -> str | None:
    """Give the key that the headers say by themselves."""
    return headers.get("aggregate_id") or headers.get("ce_partitionkey")


def id_of(message: Message) -> str:
    """Give the id by which a receiver recognises a copy: the event's."""
    id = message.headers.get("id") or message.headers.get("ce_id")
    if not id:
        try:
            id = identity(message)[0]
        except DecodeError:
            id = ""
    return quote(id, safe=_SAFE) or secrets.token_hex(16)
