"""A message ⇄ what NATS carries: headers and bytes on a subject.

NATS has no key, so the key is a header where no other header says it. NATS headers keep neither line breaks nor spaces
at the ends, their names are plain ASCII, and those that begin with `Nats-` are commands to the server. What cannot be
carried as it is goes into one more header, as JSON, and our own subscriber puts it back.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote, unquote

from pillarbox.core.message import REPLAY_HEADER, Message, identity
from pillarbox.errors import DecodeError, PublishRejected

KEY = "pillarbox-key"
EXACT = "pillarbox-exact"
ROOM_FOR_NAMES = 8192
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CE = "ce-"
# As the HTTP binding has it, which the one for NATS follows: all printable ASCII but these three.
_CE_SAFE = "".join(map(chr, range(0x21, 0x7F))).replace('"', "").replace("%", "")


def pack(message: Message, stream: str, largest: int) -> dict[str, str]:
    """Make the headers; the subject is the topic and the body goes as it is. Raises PublishRejected if it is too large.

    Checked here, because the server would close the connection, and with it all that is under way."""
    headers = message.headers
    values = list(headers.values())
    text = "".join(values)
    plain = _are_names(tuple(headers)) and not ("\n" in text or "\r" in text) and list(map(str.strip, values)) == values
    packed = dict(headers) if plain else _packed_singly(headers)
    if message.key != _key_in(headers):
        _add_key(message.key, packed)
    if id := headers.get("id") or _id_of(message):
        # The server drops what has an id that it had lately: what is sent again on purpose has one of its own.
        packed["Nats-Msg-Id"] = f"{id}/{headers[REPLAY_HEADER]}" if REPLAY_HEADER in headers else id
    packed["Nats-Expected-Stream"] = stream
    # No character has more than four bytes, and hardly a message comes near.
    if len(message.body) + 4 * len(text) + ROOM_FOR_NAMES > largest or not plain:
        _check_size(message, packed, largest)
    return packed


def _packed_singly(headers: Mapping[str, str]) -> dict[str, str]:
    """Pack headers of which some cannot go as they are."""
    packed: dict[str, str] = {}
    odd: dict[str, str] = {}
    binary = "ce_specversion" in headers
    for name, value in headers.items():
        if binary and name.startswith("ce_"):
            packed[_CE + name[3:]] = quote(value, safe=_CE_SAFE)
        elif _is_name(name) and _is_line(value):
            packed[name] = value
        else:
            odd[name] = value
    if odd:
        packed[EXACT] = json.dumps({"headers": odd})
    return packed


def _add_key(key: str | None, packed: dict[str, str]) -> None:
    if key is not None and _is_line(key):
        packed[KEY] = key
    else:
        packed[EXACT] = json.dumps({**_read_exact(packed.get(EXACT, "{}")), "key": key})


def unpack(topic: str, headers: Mapping[str, str] | None, body: bytes) -> Message:
    """Read a message back."""
    found: dict[str, str] = {}
    exact: Mapping[str, object] = {}
    given_key: str | None = None
    binary = headers is not None and f"{_CE}specversion" in headers
    for name, value in (headers or {}).items():
        if name == KEY:
            given_key = value
        elif name == EXACT:
            exact = _read_exact(value)
        elif binary and name.startswith(_CE):
            found[name] = unquote(value)
        elif not name.lower().startswith("nats-"):
            found[name] = value
    own = exact.get("headers")
    if isinstance(own, dict):
        found.update((str(name), str(value)) for name, value in own.items())
    key = given_key if given_key is not None else _key_in(found)
    if "key" in exact:
        key = None if exact["key"] is None else str(exact["key"])
    return Message(topic, key, found, body)


def _id_of(message: Message) -> str | None:
    """Give the id by which the server recognises a copy, where no header of its own says it."""
    id = message.headers.get("ce_id")
    if id is None:
        try:
            id = identity(message)[0]
        except DecodeError:
            return None
    return id or None


def _key_in(headers: Mapping[str, str]) -> str | None:
    """Give the key that the headers say by themselves."""
    return headers.get("aggregate_id") or headers.get("ce_partitionkey") or headers.get("ce-partitionkey")


@lru_cache(maxsize=4096)
def _are_names(names: tuple[str, ...]) -> bool:
    """Tell whether NATS carries headers of these names, no CloudEvents among them; their length is bounded too."""
    return all(map(_is_name, names)) and "ce_specversion" not in names and 8 * len("".join(names)) < ROOM_FOR_NAMES


@lru_cache(maxsize=4096)
def _is_name(name: str) -> bool:
    """Tell whether NATS carries a header of this name, and only carries it."""
    lower = name.lower()
    return bool(_NAME.fullmatch(name)) and not lower.startswith("nats-") and lower not in (KEY, EXACT)


def _is_line(value: str) -> bool:
    """Tell whether a header can hold this value as it is."""
    return value.strip() == value and "\n" not in value and "\r" not in value


def _check_size(message: Message, packed: Mapping[str, str], largest: int) -> None:
    characters = sum(map(len, packed)) + sum(map(len, packed.values()))
    framing = 16 + 4 * len(packed)
    if len(message.body) + 4 * characters + framing <= largest:
        return
    size = len(message.body) + len("".join((*packed, *packed.values())).encode()) + framing
    if size > largest:
        raise PublishRejected(
            f"the message has {size:,} bytes with its headers, and the server takes {largest:,} (max_payload)"
        )


def _read_exact(text: str) -> Mapping[str, object]:
    try:
        exact = json.loads(text)
    except ValueError:
        return {}
    return exact if isinstance(exact, dict) else {}
