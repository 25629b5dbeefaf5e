"""The canary: an event of our own that goes the whole way, so that health cannot be green while something is stuck."""

from datetime import timedelta
from typing import Any

from pillarbox.core.event import Event

CANARY = "pillarbox.canary"
"""Its type; every consumer handles it by itself."""


def canary(topic: str) -> Event[Any]:
    """Make one. It has no aggregate, so it holds nobody back and nobody holds it back."""
    return Event(CANARY, {}, topic=topic)


def overdue_after(every: timedelta, oldest_pending: timedelta) -> timedelta:
    """Say how old the newest canary may be: twice the interval, and as old as any event may be that waits."""
    return max(2 * every, oldest_pending)
