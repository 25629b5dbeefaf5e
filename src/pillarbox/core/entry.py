"""Entry: an event in the log, with its place. What a source gives to the relay, column by column, unparsed.

A named tuple, because a relay makes tens of thousands a second and a store's row is one already.
"""

from datetime import datetime
from typing import NamedTuple


class Entry(NamedTuple):
    """An event stored: the columns of the outbox in their order, then what the parking lot knows of it."""

    position: int
    """Its place in the log: `id` of the outbox."""
    event_id: str
    aggregate_type: str
    aggregate_id: str
    event_type: str
    topic: str
    data: str | bytes
    """`payload` (text) or `body` (bytes), whichever is not null."""
    content_type: str | None
    headers: str | None
    """The event's own headers as a JSON object."""
    idempotency_key: str | None
    number: int | None
    available_at: datetime | None
    occurred_at: datetime | None
    created_at: datetime
    attempts: int = 0
    """How often it was tried and failed."""
    parked: bool = False
    """It comes out of the parking lot, not out of the log."""
    ordered: bool = True
    """Parked outside the order (delayed, replayed) if not: it holds up nothing of the log, and waits for none of it."""
    replay: str | None = None
    """It was published before: '' if it is repeated as it was, or the id of the replay that sends it on purpose to
    handlers that had it; None in normal life."""
    row: int = 0
    """Its row in the parking lot: copies of one event have its position in common, and each is settled for itself."""

    @property
    def size(self) -> int:
        """How large is what has no bound of its own: contents and headers."""
        return len(self.data) + len(self.headers or "")
