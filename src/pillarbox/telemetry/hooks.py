"""Hooks: named moments in the life of relay and consumer. Logging, metrics and tests listen; the daemons only tell.

A moment is also a crash point: the tests kill the process at each of them, once before and once after everything
that matters. A moment that no test strikes fails the suite, so add one only with its test.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum


class Moment(StrEnum):
    """The moments, in the order in which an event meets them."""

    # relay
    LANES_TAKEN = "lanes taken"
    ENTRIES_READ = "entries read"
    BEFORE_SEND = "before send"
    SENT = "sent"
    STORED_BY_BROKER = "stored by broker"  # the broker has it, the relay does not know yet
    ANSWERED = "answered"
    SETTLING = "settling"  # inside the settling transaction, before its commit
    SETTLED = "settled"
    LEASE_RENEWED = "lease renewed"
    PRUNED = "pruned"
    LANES_RELEASED = "lanes released"
    # consumer
    DELIVERED = "delivered"
    STORED = "stored"  # kept to be handled later, not acknowledged yet
    MARKED = "marked"  # the inbox row is written, the handler has not run
    HANDLED = "handled"  # the handler has run, nothing is committed
    COMMITTED = "committed"
    PARKED = "parked"
    ACKNOWLEDGED = "acknowledged"
    # told, not struck
    BROKER_AWAY = "broker away"
    BROKER_BACK = "broker back"
    TOPIC_AWAY = "topic away"  # it fails while others do not
    TOPIC_BACK = "topic back"
    STORE_AWAY = "store away"
    STORE_BACK = "store back"
    HINT_AWAY = "hint away"
    HINT_BACK = "hint back"
    HINT_DROPPED = "hint dropped"  # the database went back: what was noted does not hold any more
    LANES_AWAITED = "lanes awaited"
    LANES_SHARED = "lanes shared"  # more or fewer than before
    LANES_SUSPECT = "lanes suspect"  # relays died with them
    LANES_LOST = "lanes lost"
    SLOT_WATCHED = "slot watched"
    SLOT_PASSED = "slot passed"  # its reader has confirmed more
    SLOT_DOUBTED = "slot doubted"
    CANARY_REFUSED = "canary refused"  # the database takes no event of ours
    EVENT_DEAD = "event dead"
    EVENT_RETRYING = "event retrying"
    NUMBER_MISSING = "number missing"
    NUMBER_CONFLICT = "number conflict"
    HANDLER_SLOW = "handler slow"
    HANDLER_AWAITED = "handler awaited"  # by a consumer that was asked to stop
    HANDLER_RETURNED = "handler returned"
    HANDLER_COMMITTED = "handler committed"
    TYPE_PASSED_OVER = "type passed over"


TOLD = frozenset(
    (
        Moment.BROKER_AWAY,
        Moment.BROKER_BACK,
        Moment.TOPIC_AWAY,
        Moment.TOPIC_BACK,
        Moment.STORE_AWAY,
        Moment.STORE_BACK,
        Moment.HINT_AWAY,
        Moment.HINT_BACK,
        Moment.HINT_DROPPED,
        Moment.LANES_AWAITED,
        Moment.LANES_SHARED,
        Moment.LANES_SUSPECT,
        Moment.LANES_LOST,
        Moment.SLOT_WATCHED,
        Moment.SLOT_PASSED,
        Moment.SLOT_DOUBTED,
        Moment.CANARY_REFUSED,
        Moment.EVENT_DEAD,
        Moment.EVENT_RETRYING,
        Moment.NUMBER_MISSING,
        Moment.NUMBER_CONFLICT,
        Moment.HANDLER_SLOW,
        Moment.HANDLER_AWAITED,
        Moment.HANDLER_RETURNED,
        Moment.HANDLER_COMMITTED,
        Moment.TYPE_PASSED_OVER,
    )
)
"""Moments at which nothing is decided."""
CRASH_POINTS = frozenset(Moment) - TOLD

Facts = Mapping[str, object]
Listener = Callable[[Moment, Facts], None]


class Hooks:
    """Those who listen; nobody by default."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def reach(self, moment: Moment, **facts: object) -> None:
        """Tell everybody that listens; called once per batch, not per event."""
        for listener in self._listeners:
            listener(moment, facts)

    def also(self, *listeners: Listener) -> "Hooks":
        """Give hooks that tell others too, after those that listen already."""
        return Hooks(*self._listeners, *listeners)
