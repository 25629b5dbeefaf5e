"""What the wiring gives to a broker's module, which has functions that check it and open nothing yet.

open_publisher(given) -> Publishers
open_subscriber(given) -> Subscribers, unless nobody can consume from it through us
open_keeping(given) -> Keeping, if messages stay in it when they were acknowledged
open_looking(given) -> Looking, if `pillarbox doctor` has something to ask it
open_trial(given) -> Trial, if topics are there that somebody has made, or stay when nobody wants them
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pillarbox.ports import Clock, Publisher, Subscriber
from pillarbox.settings.urls import Url
from pillarbox.telemetry.hooks import Hooks

Publishers = Callable[[], Publisher]
Subscribers = Callable[[str, Sequence[str]], Subscriber]
"""Takes the consumer's name and its topics."""


@dataclass(frozen=True, slots=True)
class Given:
    """Where a broker is, and how it is to be used."""

    url: Url
    tables: Mapping[str, Mapping[str, Any]]
    """The brokers' own tables of the settings, by name; each reads its own."""
    publish_timeout: timedelta
    clock: Clock
    hooks: Hooks
