"""The relay's half of the canary: one at a time, added in the outbox itself, and not again before it is out."""

from datetime import datetime, timedelta
from typing import Literal

from pillarbox.core.canary import canary
from pillarbox.errors import SchemaMismatch, StoreError, StoreUnavailable
from pillarbox.ports import CanarySeen, Clock, Query, Store
from pillarbox.telemetry.hooks import Hooks, Moment

SOONEST, LATEST = 0.1, 15.0
"""Seconds between two looks, at least and at most; usually a quarter of the interval."""
ENDS = ("published", "dropped")


class Canary:
    """Sends the canary of an outbox. What is to be done is read from the database, so that relays may come and go."""

    def __init__(self, store: Store, topic: str, every: timedelta, clock: Clock, hooks: Hooks) -> None:
        self._store, self._topic, self._every, self._clock, self._hooks = store, topic, every, clock, hooks
        self._refused = ""

    @property
    def look_every(self) -> float:
        return min(max(self._every.total_seconds() / 4, SOONEST), LATEST)

    async def look(self) -> bool:
        """Add a canary if one is due; tell whether there is something new to carry."""
        try:
            seen = (await self._store.stats()).canary
            what = next_of(seen, self._clock.now(), self._every)
            if what == "add":
                await self._store.add_canary(canary(self._topic))
            elif what == "retry" and seen is not None:
                await self._store.retry(Query(ids=(seen.event_id,), status=("dead",)))
        except (StoreUnavailable, SchemaMismatch):
            raise
        except StoreError as error:  # it may not add events, say: that makes the outbox degraded, and ends no relay
            if str(error) != self._refused:
                self._hooks.reach(Moment.CANARY_REFUSED, error=str(error))
            self._refused = str(error)
            return False
        self._refused = ""
        return what != "wait"


def next_of(seen: CanarySeen | None, now: datetime, every: timedelta) -> Literal["add", "retry", "wait"]:
    """Say what to do. A second canary behind one that is not out yet would only hide how old the first one is; and one
    that died is given its tries back, or the dead would pile up."""
    if seen is None:
        return "add"
    if now - seen.added_at < every:
        return "wait"
    if seen.status == "dead":
        return "retry"
    return "add" if seen.status in ENDS else "wait"
