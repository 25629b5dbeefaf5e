"""Taps: what a broker has, read at the end by its own client's plain code. Nothing of the relay's or the consumer's.

A tap also makes the topics, where a broker does not make them by itself.
"""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Protocol

from pillarbox.core.wording import a
from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.torture.taps.caught import Caught

TAPS = {
    "sqlite": "sqlite:SqliteTap", "redis": "redis:RedisTap", "rediss": "redis:RedisTap", "kafka": "kafka:KafkaTap",
    "nats": "nats:NatsTap", "tls": "nats:NatsTap", "rabbitmq": "rabbitmq:RabbitTap", "amqp": "rabbitmq:RabbitTap",
    "amqps": "rabbitmq:RabbitTap",
}  # fmt: skip


class Tap(Protocol):
    """One broker. Of each aggregate, messages come in the order in which the broker stored them."""

    def prepare(self, topics: Sequence[str]) -> None:
        """Make topics anew, empty."""

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        """Read everything that is there now."""

    def remove(self, topics: Sequence[str]) -> None:
        """Remove topics."""


def tap_at(url: str) -> Tap:
    """Give the tap for a broker's URL. Raises ConfigError where there can be none."""
    scheme = url.partition(":")[0]
    if scheme in ("http", "https"):
        raise ConfigError(
            "broker: a webhook cannot be tortured: nobody consumes from it, so nothing could be said of effects;"
            " name a broker of which `pillarbox consume` can receive"
        )
    if scheme not in TAPS:
        known = ", ".join(f"{name}:" for name in TAPS)
        raise ConfigError(f"broker: the torture has no tap for {scheme}: it knows {known}")
    module, _, name = TAPS[scheme].partition(":")
    try:
        tap: Tap = getattr(import_module(f"pillarbox.torture.taps.{module}"), name)(url)
    except ImportError as error:
        raise MissingExtra(module, f"{a(scheme)}: broker") from error
    return tap


__all__ = ["Caught", "Tap", "tap_at"]
