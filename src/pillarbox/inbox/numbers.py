"""Numbers: is one missing? The id decides whether an event is new; its number only tells whether others came before it.

last + 1             applies
more                 a gap: its aggregate waits for the missing one
less, id known       a copy (seen by its id, before anybody asks for its number)
less, id unknown     a copy that is older than what the inbox remembers, or a conflict: the counter stepped back, or it
                     is from before the beginning

A consumer may begin in the middle: the first number that it has of an aggregate is where it begins. Where the broker
does not keep the order (`unordered`), that would be whichever came first, so there an aggregate begins with 1.

A number is accounted for, too, if its event stands in the parking lot as dropped, or as dead and passed over.
"""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from pillarbox.errors import HandlerError
from pillarbox.inbox.received import Numbering, Received
from pillarbox.inbox.statements import Texts
from pillarbox.inbox.steps import Program


class OutOfOrder(HandlerError):
    """An event's number is not the next one of its aggregate."""

    def __init__(self, numbering: Numbering, words: str) -> None:
        super().__init__(words)
        self.numbering: Numbering = numbering


def count(texts: Texts, received: Received, remembered: datetime | None, *, unordered: bool) -> Program[bool]:
    """Count an event's number; False if it is an old copy. Raises OutOfOrder. `remembered` is how far back the inbox
    remembers ids: None if it forgets none."""
    assert received.number is not None
    of = (texts.consumer, *received.aggregate)
    if received.numbering == "accepted":
        yield texts("accept", *of, received.number)
        yield texts("begin_anew", *of, received.number)
        return True
    while not (yield texts("count", *of, received.number, unordered)):
        if not (yield texts("pass_by", *of)):
            return (yield from _judge(texts, received, remembered))
    return True


def _judge(texts: Texts, received: Received, remembered: datetime | None) -> Program[bool]:
    rows = yield texts("numbers", texts.consumer, *received.aggregate)
    number, (first, last) = received.number, rows[0] if rows else (1, 0)
    assert number is not None
    of = "{} {}".format(*received.aggregate)
    if number > last:
        missing = f"number {last + 1}" if number == last + 2 else f"numbers {last + 1} to {number - 1}"
        raise OutOfOrder(
            "gap",
            f"{missing} of {of} did not come before number {number}: it waits. Have them sent again (pillarbox replay"
            " on the other side), and it goes on by itself; or retry it, and it goes on without them",
        )
    if number < first:
        raise OutOfOrder(
            "conflict",
            f"number {number} of {of} comes late: this consumer began with number {first}, or went on with it, and the"
            f" last one was {last}. Retry it to apply it all the same, after those; or drop it",
        )
    if remembered is not None and _is_older(received.key, remembered):
        return False
    raise OutOfOrder(
        "conflict",
        f"number {number} of {of} was taken by another event, and the last one was {last}: did its producer lose its"
        " counter, by a restore or a failover? Retry it to go on from its number, or drop it",
    )


def _is_older(key: str, than: datetime) -> bool:
    """Tell whether an id was made before an instant; only a UUID of version 7 tells its time."""
    try:
        id = UUID(key)
    except ValueError:
        return False
    return id.version == 7 and datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=id.int >> 80) < than
