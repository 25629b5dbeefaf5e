"""C4: which copies each cause may have made, and at what time. It imports nothing of Pillarbox.

A cause is what may have let something be published again: a relay that died, a lease that ran out, an acknowledgement
that may be lost, a replay. It has made no more than so many copies, and none before it began, nor long after it ended:
a copy that comes in a calm hour, or one more than the faults around it explain, is nobody's.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

REACH = 10.0
"""Seconds in which whoever goes on has repeated what a cause left in doubt: a lease, a takeover, a publish timeout, and
then one event at a time in lanes with which a relay died. While a fault bars the way, they do not pass."""
BEFORE = 1.0
"""Seconds by which the broker's clock and ours may differ."""
Cause = Mapping[str, Any]
"""`what`, `whom`, `began_at`, `ended_at` and `most`."""


class Copy(NamedTuple):
    """One message too many: when it was stored, as far as the broker says."""

    id: str
    at: float | None


class Blame(NamedTuple):
    """How many copies each cause has made, in the order of the causes; and those that nothing explains."""

    made: Sequence[int]
    unexplained: Sequence[Copy]


def copies_of(wire: Iterable[Mapping[str, Any]]) -> Sequence[Copy]:
    """Give every message but the first of each event."""
    seen, found = set[str](), []
    for message in wire:
        if message["id"] in seen:
            found.append(Copy(message["id"], message["at"]))
        seen.add(message["id"])
    return found


def blame(copies: Iterable[Copy], causes: Sequence[Cause], barred: Sequence[tuple[float, float]]) -> Blame:
    """Bring each copy to a cause whose time it falls into and that has made fewer than it may: the one whose time is
    over first, so that if there is any way to explain all of them, this one does. `barred` are the spans in which
    something kept events from their way."""
    until = [reach(cause["ended_at"], barred) for cause in causes]
    order = sorted(range(len(causes)), key=lambda n: until[n])
    made, unexplained = [0] * len(causes), []
    # Those without a time go last: anything that is left may explain them.
    for copy in sorted(copies, key=lambda one: (one.at is None, one.at or 0.0)):
        for n in order:
            cause = causes[n]
            fits = copy.at is None or cause["began_at"] - BEFORE <= copy.at <= until[n]
            if fits and made[n] < cause["most"]:
                made[n] += 1
                break
        else:
            unexplained.append(copy)
    return Blame(made, unexplained)


def reach(ended: float, barred: Sequence[tuple[float, float]]) -> float:
    """Say until when a cause that ended then may show: REACH later, not counting the time in which a way was barred."""
    now, left = ended, REACH
    for since, until in sorted(barred):
        if until <= now:
            continue
        if since >= now + left:
            break
        left -= max(0.0, since - now)
        now = until
    return now + left
