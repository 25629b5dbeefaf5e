"""The parking lot: what a consumer keeps aside in its database, in programs of one transaction each.

store      keep aside what has arrived, to be handled later
unstore    let go of what was stored and is handled
park       keep aside what failed, or waits behind it
look       which lines are blocked, and is anything due?
claim      take out what is due: nobody else takes it for a while
hold       … for a while longer
let_go     give back what nothing was done with
suspect    count a try before it, durably, of an event that may have killed its process

What processes have died with (*deadly*: held, with tries that were counted) comes out one at a time: after the first
counted death soon, since it may only have stood beside the guilty one; after more of them last, when its consumer has
nothing else to do. So nobody waits until it is dead, nor dies with it again and again.

Whether a row is held decides nothing but who tries it: an event is handled once because of its row in the inbox, and
in order because whoever takes a line takes it from its head, and leaves the line alone if that one is taken away.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple

from pillarbox.core.insert import microseconds
from pillarbox.core.retry import Dead, RetryAt, sayable, words_of
from pillarbox.core.routing import Line
from pillarbox.core.window import Settled, Settlement
from pillarbox.inbox.received import Received, line_from, line_text, unpark
from pillarbox.inbox.statements import Texts
from pillarbox.inbox.steps import Program

HOLD = timedelta(seconds=1.5)
"""How long what is out is left alone by others: what a dead process had is taken within two seconds. Whoever has it
says in time that it still does."""
PATIENCE = timedelta(minutes=1)
BESIDE_PATIENCE, DEADLY_PATIENCE = timedelta(seconds=0.2), timedelta(minutes=1)
"""So long what one process has died with waits for others at most, and what more have."""
BUFFER = 1000
"""So long, and behind so many events of its aggregate, a missing number is waited for before somebody is told, where
the broker keeps no order. What comes later is kept all the same: the missing one may be among it."""


class Head(NamedTuple):
    """The first of a blocked line, as the statement `heads` gives it; instants are microseconds."""

    line: str
    state: str
    due_at: int
    numbering: str | None
    parked_at: int
    aggregate_type: str
    aggregate_id: str
    number: int | None
    topic: str
    id: int
    standing: int
    event_id: str
    event_type: str
    attempts: int

    @property
    def facts(self) -> dict[str, object]:
        """What is told of it."""
        its = {"type": self.event_type, "event_id": self.event_id, "topic": self.topic, "attempt": self.attempts + 1}
        return its | {"aggregate": self.aggregate, "number": self.number, "waiting": self.standing}

    @property
    def aggregate(self) -> tuple[str, str]:
        return self.aggregate_type, self.aggregate_id

    def may_be_due(self, now: int) -> bool:
        """Say whether something of its line can be tried."""
        return self.state == "blocked" or self.numbering == "gap" or (self.state != "dead" and self.due_at <= now)


class Lot(NamedTuple):
    """The parking lot at a glance: the lines that are blocked, by how many each; whether anything is due; and the
    aggregates whose missing numbers have been waited for long enough."""

    standing: Mapping[Line, int]
    is_due: bool
    overdue: Sequence[Head]


def look(texts: Texts, now: datetime, out: Collection[Line | None]) -> Program[Lot]:
    """Look which lines are blocked and whether anything is due; what is `out` already is not due."""
    at = microseconds(now)
    heads = [Head(*row) for row in (yield texts("heads", texts.consumer))]
    waits = yield texts("waits", texts.consumer, at)
    lines_out = {line_text(line) for line in out}
    is_due = bool(waits) or any(head.may_be_due(at) for head in heads if head.line not in lines_out)
    overdue = [head for head in heads if _is_overdue(head, now)]
    return Lot({line_from(head.line): head.standing for head in heads}, is_due, overdue)


def left(texts: Texts) -> Program[dict[str, int]]:
    """Count what stands aside, by status."""
    return {status: int(count) for status, count in (yield texts("left", texts.consumer))}


def _is_overdue(head: Head, now: datetime) -> bool:
    waits = head.numbering == "gap" and head.state == "blocked"
    return waits and (head.standing > BUFFER or head.parked_at <= microseconds(now - PATIENCE))


def claim(
    texts: Texts, now: datetime, room: int, out: Mapping[str, Received], *, idle: bool = True
) -> Program[list[Received]]:
    """Take out what is due, in order for each line, at most `room`; what is `out` already is not given again. `idle`
    says that the consumer has nothing else to do."""
    if "lock" in texts:
        yield texts("lock", texts.consumer)
    lines_out = {line_text(received.line) for received in out.values()}
    rows: list[Sequence[Any]] = []
    if not any(
        received.deadly for received in out.values()
    ):  # before the others: behind a backlog its turn would never come
        rows += yield from _deadly(texts, now - BESIDE_PATIENCE, now - DEADLY_PATIENCE, room)
    lines_out.update(row[1] for row in rows)
    if len(rows) < room:
        rows += yield from _due(texts, microseconds(now), room - len(rows), lines_out)
    if idle and not rows and not out:
        rows += yield from _deadly(texts, now, now, room)
    due = [received for received in map(unpark, rows) if received.key not in out]
    if due:
        yield texts("hold", texts.consumer, microseconds(now + HOLD), _list(received.key for received in due))
    return due


def _due(texts: Texts, at: int, room: int, lines_out: Collection[str | None]) -> Program[list[Sequence[Any]]]:
    consumer = texts.consumer
    rows: list[Sequence[Any]] = list((yield texts("due_free", consumer, at, room)))
    heads = [Head(*row) for row in (yield texts("heads", consumer))]
    heads = [head for head in heads if head.line not in lines_out and head.may_be_due(at)]
    going_on = yield from _going_on(texts, heads)
    for head in heads:
        if len(rows) >= room:
            break
        earlier = (yield from _next_number(texts, head, at)) if head.aggregate in going_on else ()
        if earlier:
            rows += earlier
        elif head.numbering != "gap":
            # Behind a head that failed nobody comes out before it is done; a head that only waited leads its line.
            waited = head.state in ("blocked", "held")
            line = yield texts("due_line", consumer, head.line, room - len(rows) if waited else 1)
            rows += _leading(line)
    if len(rows) < room:
        rows += yield texts("due_stored", consumer, room - len(rows))
    return rows


def _deadly(texts: Texts, one: datetime, more: datetime, room: int) -> Program[Sequence[Any]]:
    """Find what a process has died with and was due at the time `one`, or more have and was due at the time `more`; and
    those behind it that were out with it: nobody else lets these go."""
    rows: Sequence[Any] = yield texts("due_deadly", texts.consumer, microseconds(one), microseconds(more))
    if not rows or rows[0][1] is None:
        return rows
    line = yield texts("due_line", texts.consumer, rows[0][1], room)
    return list(takewhile(lambda row: row[-1] == "held", line))


def _going_on(texts: Texts, heads: Iterable[Head]) -> Program[set[tuple[str, str]]]:
    """Find the aggregates that wait for a number which is there, or was passed over: one question for all of them."""
    waiting = {head.aggregate for head in heads if head.numbering in ("gap", "accepted")}
    rows = (yield texts("going_on", texts.consumer, json.dumps(list(waiting)))) if waiting else ()
    return {(row[0], row[1]) for row in rows}


def _next_number(texts: Texts, head: Head, at: int) -> Program[Sequence[Any]]:
    """Find the one whose number is the next in a line that waits for a number: its head, or one that belongs before."""
    of = (texts.consumer, *head.aggregate)
    while (yield texts("pass_by", *of)):
        pass  # somebody dropped the one that was missing
    rows = yield texts("due_number", *of, head.line, at)
    return [row for row in rows if head.numbering == "gap" or row[10] < head.number]


def _leading(line: Sequence[Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """Give the head of a line, unless it is deadly, and those behind it that only wait."""
    for place, row in enumerate(line):
        deadly = row[-1] == "held" and row[2]
        if deadly or (place and row[-1] not in ("stored", "blocked", "held")):
            return
        yield row


def hold(texts: Texts, keys: Iterable[str], now: datetime) -> Program[None]:
    """Say that these are still out."""
    yield texts("hold_longer", texts.consumer, microseconds(now + HOLD), _list(keys))


def let_go(texts: Texts, keys: Iterable[str], now: datetime) -> Program[None]:
    """Give back what nothing was done with."""
    yield texts("let_go", texts.consumer, microseconds(now), _list(keys))


def give_up(texts: Texts, heads: Sequence[Head]) -> Program[None]:
    """Wait for missing numbers no longer in silence."""
    yield texts("give_up", texts.consumer, _list(head.line for head in heads))


def suspect(texts: Texts, received: Received, now: datetime) -> Program[tuple[int, str | None] | None]:
    """Count a try before it; give how many were counted before and what the last one that failed said, or None if there
    is nothing to try."""
    if received.parked:
        rows = yield texts("try_held", texts.consumer, received.key, microseconds(now + HOLD))
    else:
        row = _row(texts, received, now, Place("suspect", None, None), 1)
        rows = yield texts("suspect", *row, line_text(received.line))
    return (rows[0][0], rows[0][1]) if rows else None


def stands(texts: Texts, received: Received) -> Program[bool]:
    """Say whether an event that we had out, and do not hold any more, still has to be handled: somebody else took it
    out when we were slow, or put it back when they were."""
    ((in_inbox, state),) = yield texts("why_not", texts.consumer, received.key)
    return not in_inbox and state not in (None, "handled", "dropped")


def store(
    texts: Texts, arrived: Sequence[Received], now: datetime, blocks: Callable[[Received], bool]
) -> Program[None]:
    """Keep aside what has arrived, unless it is known; what can never be handled is dead at once, and blocks or not."""
    rows = []
    for received in arrived:
        place = Place("stored", line_text(received.line), None)
        if received.hopeless is not None:
            line = place.line if blocks(received) else None
            place = Place("dead", line, None, words_of(received.hopeless))
        rows.append(_row(texts, received, now, place, int(place.error is not None)))
    yield texts.many("store", rows)


def unstore(texts: Texts, keys: Iterable[str]) -> Program[None]:
    """Let go of what was stored and is handled, many at once: until then, and if nobody does, it is found done."""
    yield texts("unstore", texts.consumer, _list(keys))


def park(
    texts: Texts, settlements: Sequence[Settlement[Received]], now: datetime, *, unordered: bool = False
) -> Program[None]:
    """Keep aside what failed and what waits behind it, durably, each under its key. If `unordered`, one that came too
    early only waits."""
    new: list[Sequence[Any]] = []
    committed: list[Sequence[Any]] = []
    again: list[Sequence[Any]] = []
    waiting: list[str] = []
    for received, verdict in settlements:
        place = _place(received, verdict, unordered=unordered)
        attempts = received.attempts + (place.error is not None and received.numbering in (None, "accepted"))
        if not received.parked:
            row = _row(texts, received, now, place, attempts)
            (committed if received.committed else new).append(row)
        elif place.error is None:
            waiting.append(received.key)
        else:
            state, line, due, error = place
            numbering = received.numbering
            again.append((texts.consumer, received.key, state, line, due, attempts, error, received.trace, numbering))
    for name, rows in (("park", new), ("park_committed", committed), ("park_again", again)):
        if rows:
            yield texts.many(name, rows)
    if waiting:
        yield from let_go(texts, waiting, now)


class Place(NamedTuple):
    """How an event stands in the parking lot: state, the line that it blocks, when it is due, why it is there."""

    state: str
    line: str | None
    due_at: int | None
    error: str | None = None


def _place(received: Received, verdict: Settled, *, unordered: bool) -> Place:
    line = line_text(received.line)
    if isinstance(verdict, RetryAt):
        # What a process has died with is as if that one still had it: its next try is counted before it begins.
        return Place(
            "held" if received.abandoned and not received.parked else "retrying",
            line,
            microseconds(verdict.at),
            verdict.error,
        )
    if isinstance(verdict, Dead):
        waits = received.numbering == "gap" and unordered
        return Place("blocked" if waits else "dead", line if verdict.blocks else None, None, verdict.error)
    return Place("blocked", line, None)


def _row(texts: Texts, received: Received, now: datetime, place: Place, attempts: int) -> tuple[Any, ...]:
    message = received.delivery.message
    state, line, due, error = place
    head = (texts.consumer, received.key, state, line, due, attempts, error, received.trace, microseconds(now))
    headers = json.dumps(dict(message.headers), default=str)  # in ASCII: a lone surrogate could not be stored otherwise
    wire_key = None if message.key is None else sayable(message.key)
    wire = (message.topic, wire_key, headers, message.body)
    return (*head, *wire, *received.aggregate, received.type, received.number, received.numbering)


def _list(texts: Iterable[str]) -> str:
    return json.dumps(list(texts))
