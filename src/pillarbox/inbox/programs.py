"""What receiving does in the database: small programs, one transaction each, driven by the doors.

first_time    is this message new?                    for loops of one's own
receive       the inbox row, then the handler          one commit for both
receive_all   the same for several events              one commit for all of them
suspect       count a try before it, durably           for events that may have killed their process
park          keep aside what failed or waits
look          which lines are blocked, what is due
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from pillarbox.core.event import Event
from pillarbox.core.insert import microseconds
from pillarbox.core.message import decode
from pillarbox.core.postgres_facts import StoreConflict, TransactionFailed
from pillarbox.core.retry import Dead, RetryAt, sayable, words_of
from pillarbox.core.routing import Line
from pillarbox.core.window import Settled, Settlement
from pillarbox.errors import HandlerFailed, HandlerSignal, StoreError, StoreUnavailable
from pillarbox.inbox.inbox import Handler, Handlers
from pillarbox.inbox.received import Received, line_from, line_text, unpark
from pillarbox.inbox.statements import Texts
from pillarbox.inbox.steps import Call, ClosedByHandler, Program
from pillarbox.telemetry.hooks import Moment

HOLD = timedelta(seconds=30)
"""How long a parked event that is being tried is left alone by others; after a crash it is tried again then."""
PATIENCE = 5
LONGEST_TRACE = 16_000


class Reception(Enum):
    """What became of a delivery."""

    HANDLED = "handled"
    COPY = "copy"
    """It was handled, parked or dropped before."""
    BLOCKED = "blocked"
    """Its line has something parked: it waits behind that."""
    IGNORED = "ignored"
    """Nobody handles its type here."""


def first_time(texts: Texts, key: str) -> Program[bool]:
    """Write the inbox row; say whether it was not there before."""
    return bool((yield texts("first_time", texts.consumer, key)))


class Means(NamedTuple):
    """What a reception works with, beside the event: whom it calls, and whom it tells."""

    handlers: Handlers
    now: datetime
    reach: Callable[[Moment, Received], None]
    tell: Callable[[Moment, Received, Handler, object], None]
    timeout: float | None = None


def receive_all(texts: Texts, batch: Sequence[Received], means: Means) -> Program[Sequence[Reception]]:
    """Receive several events in one transaction: all or nothing."""
    shared = Shared()
    receptions = []
    for received in batch:
        shared.is_last = received is batch[-1]
        receptions.append((yield from receive(texts, received, means, shared)))
    return receptions


class Shared:
    """What is known of a transaction that several events share. Where it has a number, the next event's row tells
    whether the handler before has ended it, so that nobody asks but after the last one."""

    is_last = True
    number: object = None

    def go_on(self, number: object) -> None:
        """Refuse to go on in another transaction than the one in which it began."""
        if self.number is not None and number != self.number:
            raise HandlerFailed("a handler has ended the transaction that its event shared with others")
        self.number = number


def receive(texts: Texts, received: Received, means: Means, shared: Shared | None = None) -> Program[Reception]:
    """Write the inbox row, call the handler, and settle what the parking lot knows of it: all or nothing."""
    consumer, key, now = texts.consumer, received.key, means.now
    handler = means.handlers[received.type]
    event = decode(received.for_handler, lambda _: handler.model)
    if received.parked:
        fresh = yield texts("first_time", consumer, key)
    else:
        fresh = yield texts("receive", consumer, key, line_text(received.line))
        if not fresh:
            return (yield from _why_not(texts, key))
    if fresh:
        if shared is not None:
            shared.go_on(fresh[0][0])
        means.reach(Moment.MARKED, received)
        trusting = shared is not None and not shared.is_last and "mark" not in texts
        value, committed = yield from _handle(
            texts, received, handler, event, means.timeout, fresh[0][0], trusting=trusting
        )
        if committed:
            means.tell(Moment.HANDLER_COMMITTED, received, handler, None)
        if value is not None:
            means.tell(Moment.HANDLER_RETURNED, received, handler, value)
        means.reach(Moment.HANDLED, received)
    if received.parked:
        yield texts("handled", consumer, key, microseconds(now))
    elif received.counted:
        yield texts("clear", consumer, key)
    return Reception.HANDLED if fresh else Reception.COPY


def _why_not(texts: Texts, key: str) -> Program[Reception]:
    consumer = texts.consumer
    ((in_inbox, state),) = yield texts("why_not", consumer, key)
    if in_inbox:
        yield texts("clear", consumer, key)
        return Reception.COPY
    return Reception.BLOCKED if state in (None, "suspect") else Reception.COPY


def _handle(
    texts: Texts,
    received: Received,
    handler: Handler,
    event: Event[Any],
    timeout: float | None,
    number: object,
    *,
    trusting: bool,
) -> Program[tuple[object, bool]]:
    """Call the handler; give what it returned, and whether it committed by itself. `number` is the transaction's; if
    `trusting`, whoever comes next in the same transaction sees that."""
    if "mark" in texts:
        yield texts("mark")
    try:
        value = yield from _call(Call(handler.function, handler.is_async, event, timeout), handler, received)
    except ClosedByHandler:
        raise
    except (HandlerSignal, HandlerFailed, StoreUnavailable) as error:
        ended = yield from _ended(texts, handler, number, failing=True)
        if ended and (yield texts("still_there", texts.consumer, received.key)):
            received.committed = True
            raise HandlerFailed(
                f"{words_of(error)} (after {handler.name} had committed by itself: what it did up to there stands, so"
                " it is not tried again; remove the commit: the inbox commits)"
            ) from (error.__cause__ or error)
        raise
    if trusting or not (yield from _ended(texts, handler, number)):
        return value, False
    # A handler that rolled back has undone our row with its own work: without a look, its event would be lost.
    if not (yield texts("still_there", texts.consumer, received.key)):
        raise HandlerFailed(
            f"{handler.name} rolled back the transaction it was given, so its event would be lost:"
            " let the error out, or use a savepoint"
        )
    return value, True


def _ended(texts: Texts, handler: Handler, number: object, *, failing: bool = False) -> Program[bool]:
    """Say whether the handler has ended the transaction: its savepoint, or its number, went with it."""
    try:
        return bool((yield texts("unmark", number)))
    except StoreUnavailable:
        raise
    except TransactionFailed as error:
        if failing:  # whoever parks it sees whether its row is there all the same
            return False
        raise HandlerFailed(
            f"{handler.name} swallowed an error of the database, after which nothing of its transaction can be kept:"
            " let the error out, or use a savepoint"
        ) from error
    except StoreError:
        return True
    except Exception as error:
        raise HandlerFailed(f"{handler.name} closed the connection it was given: leave it open") from error


def _call(call: Call, handler: Handler, received: Received) -> Program[object]:
    """Let the door call the handler; whatever goes wrong in it comes out as a signal, or as one of two errors."""
    try:
        value = yield call
    except (HandlerSignal, HandlerFailed):
        raise
    except StoreConflict:
        raise
    except StoreUnavailable as error:
        # Our own row is written by now, so the database is there. Once or twice this is bad luck; a handler that
        # waits for a lock that its own transaction holds would say so for ever.
        received.locked_out += 1
        if received.locked_out <= PATIENCE:
            raise
        raise HandlerFailed(
            f"{handler.name} found the database locked {received.locked_out} times: {words_of(error)}"
        ) from error
    except (Exception, SystemExit) as error:
        raise HandlerFailed(f"{handler.name} raised {type(error).__name__}: {words_of(error)}") from error
    _refuse_unrun(value, handler)
    return value


def _refuse_unrun(value: object, handler: Handler) -> None:
    """Refuse what only promises to run."""
    if hasattr(value, "__await__") or hasattr(value, "__anext__"):
        advice = "make it `async def` in an AsyncInbox, or await inside it"
    elif hasattr(value, "send") and hasattr(value, "throw"):
        advice = "remove the yield"
    else:
        return
    if hasattr(value, "close"):
        value.close()
    kind = type(value).__name__
    raise HandlerFailed(f"{handler.name} returned a {kind}, of which nothing ran: {advice}")


def suspect(texts: Texts, received: Received, now: datetime) -> Program[int | None]:
    """Count a try before it; give how many failed before, or None if there is nothing to try."""
    consumer, key = texts.consumer, received.key
    if received.parked:
        held = microseconds(now + HOLD)
        rows = yield texts("try_parked", consumer, key, microseconds(now), held)
        return rows[0][0] - 1 if rows else None
    row = _row(texts, received, now, "suspect", None, None, 1)
    rows = yield texts("suspect", *row, line_text(received.line))
    return rows[0][0] if rows else None


def park(texts: Texts, settlements: Sequence[Settlement[Received]], now: datetime) -> Program[None]:
    """Keep aside what failed and what waits behind it, durably, each under its key."""
    new: list[Sequence[Any]] = []
    committed: list[Sequence[Any]] = []
    again: list[Sequence[Any]] = []
    for received, verdict in settlements:
        state, blocks, due, error = _parked(verdict)
        attempts = received.attempts + (error is not None)
        line = line_text(received.line) if blocks else None
        if not received.parked:
            row = _row(texts, received, now, state, line, due, attempts, error)
            (committed if received.committed else new).append(row)
        elif error is not None:
            again.append((texts.consumer, received.key, state, line, due, attempts, error, received.trace))
    for name, rows in (("park", new), ("park_committed", committed), ("park_again", again)):
        if rows:
            yield texts.many(name, rows)


def _parked(verdict: Settled) -> tuple[str, bool, int | None, str | None]:
    """Say how a verdict stands in the parking lot: state, whether it blocks, when it is due, its error."""
    if isinstance(verdict, RetryAt):
        return "retrying", True, microseconds(verdict.at), verdict.error
    if isinstance(verdict, Dead):
        return "dead", verdict.blocks, None, verdict.error
    return "blocked", True, None, None


def _row(
    texts: Texts,
    received: Received,
    now: datetime,
    state: str,
    line: str | None,
    due: int | None,
    attempts: int,
    error: str | None = None,
) -> tuple[Any, ...]:
    message = received.delivery.message
    head = (texts.consumer, received.key, state, line, due, attempts, error, received.trace, microseconds(now))
    headers = json.dumps(dict(message.headers), default=str)  # in ASCII: a lone surrogate could not be stored otherwise
    wire_key = None if message.key is None else sayable(message.key)
    return (*head, message.topic, wire_key, headers, message.body, *received.aggregate, received.type)


class Lot(NamedTuple):
    """The parking lot at a glance: the lines that are blocked, by how many each, and what may be tried now."""

    standing: Mapping[Line, int]
    due: Sequence[Received]


def look(texts: Texts, now: datetime, room: int, out: Mapping[str, Line | None]) -> Program[Lot]:
    """Look which lines are blocked and what is due, at most `room`; what is `out` already is not given again."""
    consumer, at = texts.consumer, microseconds(now)
    heads = yield texts("heads", consumer)
    rows: list[Sequence[Any]] = []
    if room:
        rows += yield texts("due_free", consumer, at, room)
        lines_out = {line_text(line) for line in out.values()}
        for line, state, due_at, *_ in heads:
            if len(rows) >= room:
                break
            if line in lines_out:
                continue
            # Behind a head that failed nobody comes out before it is done; a head that only waited leads its line.
            if state == "blocked" or (state == "retrying" and due_at <= at):
                rows += yield texts("due_line", consumer, line, room - len(rows) if state == "blocked" else 1)
    due = [received for received in map(unpark, rows) if received.key not in out]
    return Lot({line_from(line): count for line, *_, count in heads}, due)


def trace_of(text: str) -> str:
    """Keep a traceback's end, which says most."""
    return sayable(text if len(text) <= LONGEST_TRACE else "…" + text[-LONGEST_TRACE:])
