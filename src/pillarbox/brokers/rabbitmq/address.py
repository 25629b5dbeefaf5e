"""The address of a RabbitMQ: what the URL and the table [rabbitmq] say, checked before anything is opened."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from pillarbox.brokers.urls import split
from pillarbox.errors import ConfigError

HEARTBEAT, PREFETCH = 10, 500
MOST_PREFETCHED = 2000
"""What quorum queues bear, by RabbitMQ's own advice."""
SHORT = 255
"""Bytes that AMQP has for a name."""

_UNSENDABLE = re.compile(r"[\x00-\x20\x7f]")
"""What no request may have in its address."""

_SCHEMES = {"rabbitmq": "amqp", "amqp": "amqp", "amqps": "amqps"}
_FILES = ("cafile", "capath", "certfile", "keyfile")
_UNSAFE = {
    "mandatory": "an event that no queue takes would count as published",
    "persistent": "events would be gone after a restart of the server",
    "verify": "anybody could stand between the relay and the server",
}
_KNOWN = ("exchange", "heartbeat", "prefetch", "management", "unsafe", *_UNSAFE, *_FILES)
_NEVER = {
    "confirms": "an event would count as published as soon as it is written to a socket",
    "no_verify_ssl": "say verify = false and unsafe = true",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a RabbitMQ is, where in it events go, and how carefully."""

    url: str
    """As the client wants it, with the password."""
    place: str
    """Host and port, for people."""
    exchange: str = ""
    """Where events go, with their topic as the routing key; without one, to the queue named like the topic."""
    mandatory: bool = True
    persistent: bool = True
    prefetch: int = PREFETCH
    management: str = ""
    """Where the management API is, which is asked as the same user; empty: it is not asked."""

    @classmethod
    def parse(cls, text: str, options: Mapping[str, Any] | None = None) -> "Address":
        """Read a URL such as rabbitmq://user:password@host/vhost?exchange=shop; it wins over the options."""
        parts = split(text)
        scheme = _SCHEMES.get(parts.scheme)
        if scheme is None or not parts.hostname:
            raise ConfigError("broker: write rabbitmq://user:password@host/vhost?exchange=shop, or amqps:// for TLS")
        port = parts.port or (5671 if scheme == "amqps" else 5672)
        given = dict(options or {}) | dict(parse_qsl(parts.query, keep_blank_values=True))
        _check_names(given)
        _check_safe(given)
        exchange = str(given.get("exchange", ""))
        if len(exchange.encode()) > SHORT:
            raise ConfigError(f"rabbitmq.exchange: the name is longer than {SHORT} bytes")
        return cls(
            url=_clients_url(parts, scheme, port, given),
            place=f"{parts.hostname}:{port}",
            exchange=exchange,
            mandatory=_flag(given, "mandatory", True),
            persistent=_flag(given, "persistent", True),
            prefetch=_number(given, "prefetch", PREFETCH, MOST_PREFETCHED),
            management=_management(parts, scheme, given),
        )


def _clients_url(parts: SplitResult, scheme: str, port: int, given: Mapping[str, Any]) -> str:
    query = {name: given[name] for name in _FILES if name in given}
    query |= {"heartbeat": _number(given, "heartbeat", HEARTBEAT, 600), "name": "pillarbox"}
    if not _flag(given, "verify", True):
        query["no_verify_ssl"] = 1
    netloc = parts.netloc if parts.port else f"{parts.netloc.removesuffix(':')}:{port}"
    return parts._replace(scheme=scheme, netloc=netloc, query=urlencode(query), fragment="").geturl()


def _management(parts: SplitResult, scheme: str, given: Mapping[str, Any]) -> str:
    """Say where the management API is: where it is by default, beside the broker, unless something else is said."""
    text = str(given.get("management", ""))
    if not text:
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        return f"https://{host}:15671" if scheme == "amqps" else f"http://{host}:15672"
    if text == "none":
        return ""
    there = _taken_apart(text)
    if there is None or there.scheme not in ("http", "https") or "@" in text or there.query or there.fragment:
        raise ConfigError(
            "rabbitmq.management: write http://host:15672 or https://…, without a user, for it is the one of the"
            ' broker\'s URL; or "none"'
        )
    if scheme == "amqps" and there.scheme == "http" and not _flag(given, "unsafe", False):
        raise ConfigError(
            "rabbitmq.management: http is unsafe: the password that amqps:// hides would go there for everybody to"
            " read; write https://…, or set unsafe = true as well"
        )
    return text.rstrip("/")


def _taken_apart(url: str) -> SplitResult | None:
    """Take a URL with a host apart; None if nobody could open it."""
    if _UNSENDABLE.search(url):
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def _check_names(given: Mapping[str, Any]) -> None:
    for name in given:
        if name in _NEVER:
            raise ConfigError(f"rabbitmq.{name}: cannot be set: {_NEVER[name]}")
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, 1)
            raise ConfigError(
                f"there is no option rabbitmq.{name}"
                + (f"; did you mean {near[0]}?" if near else f"; known: {list(_KNOWN)}")
            )


def _check_safe(given: Mapping[str, Any]) -> None:
    if _flag(given, "unsafe", False):
        return
    for name, danger in _UNSAFE.items():
        if not _flag(given, name, True):
            raise ConfigError(f"rabbitmq.{name}: false is unsafe: {danger}; leave it out, or set unsafe = true as well")


def _flag(given: Mapping[str, Any], name: str, default: bool) -> bool:
    value = str(given.get(name, default)).lower()
    if value not in ("true", "false", "1", "0"):
        raise ConfigError(f"rabbitmq.{name}: is neither true nor false")
    return value in ("true", "1")


def _number(given: Mapping[str, Any], name: str, default: int, most: int) -> int:
    text = str(given.get(name, default))
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= most):
        raise ConfigError(f"rabbitmq.{name}: is no whole number from 1 to {most}")
    return int(text)
