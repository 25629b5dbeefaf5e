"""What receiving does in the database: small programs, one transaction each, driven by the doors.

first_time    is this message new?                    for loops of one's own
receive       the inbox row, then the handler          one commit for both
receive_all   the same for several events              one commit for all of them
forget        delete what need not be known any more   one bounded batch

What is kept aside is the business of `lot`, and what numbers mean that of `numbers`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from shlex import quote
from typing import Any, Literal, NamedTuple, NoReturn

from pillarbox.core.insert import microseconds
from pillarbox.core.message import decode
from pillarbox.core.postgres_facts import RowUndone, StoreConflict, TransactionFailed
from pillarbox.core.retry import place_of, sayable, words_of
from pillarbox.core.routing import Line
from pillarbox.core.secrets import quiet
from pillarbox.core.wording import a
from pillarbox.errors import HandlerFailed, HandlerMissing, HandlerSignal, StoreError, StoreUnavailable
from pillarbox.inbox import numbers
from pillarbox.inbox.inbox import Handler, Handlers
from pillarbox.inbox.received import Received, line_text
from pillarbox.inbox.statements import Texts
from pillarbox.inbox.steps import Call, ClosedByHandler, Program
from pillarbox.telemetry.hooks import Moment

Unhandled = Literal["dead", "ignore", "fail"]
"""What becomes of events whose type nobody handles: dead letters, nothing, or the end of the consumer."""
Wrap = Callable[[Handler], Callable[..., Any]]
"""Gives what is called in the place of a handler's function."""
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


def forget(texts: Texts, kept: timedelta, most: int) -> Program[bool]:
    """Delete ids that were handled so long ago, and what was settled in the parking lot: at most so many of each, and
    this consumer's only. Say whether there may be more."""
    ago = kept // timedelta(microseconds=1)
    gone = yield texts("forget", texts.consumer, ago, most)
    settled = yield texts("forget_parked", texts.consumer, ago, most)
    return max(len(gone), len(settled)) >= most


class Means(NamedTuple):
    """What a reception works with, beside the event: whom it calls, and whom it tells."""

    handlers: Handlers
    now: datetime
    remembered: datetime | None
    """How far back the inbox remembers ids; None if it forgets none."""
    unordered: bool
    """The broker does not keep the order: the numbers do."""
    reach: Callable[[Moment, Received], None]
    tell: Callable[[Moment, Received, Handler, object], None]
    timeout: float | None = None
    unhandled: Unhandled = "dead"
    wrap: Wrap | None = None


def receive(texts: Texts, received: Received, means: Means) -> Program[Reception]:
    """Write the inbox row, call the handler, and settle what the parking lot knows of it: all or nothing. What has no
    handler is refused, or only counted, once it is known to be new and the next of its aggregate."""
    handler = means.handlers.get(received.type, received.delivery.topic)
    number, known = yield from _mark(texts, received, means)
    if known is not None:
        return known
    if handler is None and means.unhandled != "ignore":
        raise HandlerMissing(_missing(received, means, (yield from where(texts))))
    if handler is not None:
        yield from _handle(texts, [received], handler, means, number)
    yield from _settle(texts, received, means)
    return Reception.IGNORED if handler is None else Reception.HANDLED


def receive_all(texts: Texts, batch: Sequence[Received], means: Means) -> Program[Mapping[Received, Reception]]:
    """Receive several events in one transaction, all or nothing; give what became of each. Where a handler can commit
    by itself all the same, what is done up to there stands, and the rest is not received."""
    if "receive_all" in texts:
        return (yield from _receive_together(texts, batch, means))
    receptions: dict[Received, Reception] = {}
    for handler, group in _calls(batch, means):
        receptions |= yield from _mark_all(texts, group, means)
        new = [received for received in group if receptions[received] is Reception.HANDLED]
        if new and (yield from _handle(texts, new, handler, means, None, shared=True)):
            break  # what follows would be outside any transaction
    return receptions


class NotTogether(Exception):
    """Events cannot share a transaction; whose fault that is shows when each is alone."""


def _receive_together(texts: Texts, batch: Sequence[Received], means: Means) -> Program[Mapping[Received, Reception]]:
    """Write all inbox rows at once, then call the handlers: nobody can commit before the last of them is done."""
    firsts: dict[str, Received] = {}
    for received in batch:
        firsts.setdefault(received.key, received)
    events = list(firsts.values())
    numbered = any(received.number is not None for received in events)
    ((shared, states, counted),) = yield texts(
        "receive_all",
        texts.consumer,
        _list([received.key for received in events]),
        _list([line_text(received.line) for received in events]),
        _list([received.aggregate[0] for received in events]) if numbered else None,
        _list([received.aggregate[1] for received in events]) if numbered else None,
        _list([received.number for received in events]) if numbered else None,
        means.unordered,
        batch[0].stored,
    )
    if not counted:
        raise NotTogether("the number of one of them is not the next one of its aggregate")
    receptions = dict.fromkeys(batch, Reception.COPY)  # whatever has the id of another one here is a copy of it
    receptions |= zip(events, map(_STATES.__getitem__, states or "n" * len(events)), strict=True)
    for handler, group in _calls([one for one in events if receptions[one] is Reception.HANDLED], means):
        yield from _apply(group, handler, means, shared=True)
    if not (yield texts("unshare", shared)):
        raise NotTogether("a handler has ended the transaction that its events shared with others")
    return receptions


_list = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_STATES = {"n": Reception.HANDLED, "c": Reception.COPY, "b": Reception.BLOCKED}


def _calls(events: Sequence[Received], means: Means) -> Sequence[tuple[Handler, list[Received]]]:
    """Put together what a handler takes in one call: its events, each behind all that are before it in its line."""
    calls: list[tuple[Handler, list[Received]]] = []
    lines: list[set[Line | None]] = []
    for received in events:
        handler = means.handlers.get(received.type, received.delivery.topic)
        assert handler is not None  # nobody else shares a transaction
        place = len(calls)
        for earlier in range(len(calls) - 1, -1, -1):
            if calls[earlier][0] is handler:
                place = earlier
            if received.line is not None and received.line in lines[earlier]:
                break
        if place == len(calls):
            calls.append((handler, []))
            lines.append(set())
        calls[place][1].append(received)
        lines[place].add(received.line)
    return calls


def _mark(texts: Texts, received: Received, means: Means) -> Program[tuple[object, Reception | None]]:
    """Write an event's row in the inbox. Give the number of the transaction, where it has one; and what the event is,
    if there is nothing to do."""
    consumer, key = texts.consumer, received.key
    if received.parked:
        fresh = yield texts("take", consumer, key)
    else:
        its = (line_text(received.line), *received.aggregate, received.number, means.unordered)
        fresh = yield texts("receive", consumer, key, *its)
    if not fresh or fresh[0][0] is None:
        return None, (yield from _why_not(texts, received, means))
    number = str(fresh[0][0])
    if not number.endswith("+") and not (yield from _is_next(texts, received, means)):
        return None, Reception.COPY
    return number.removesuffix("+"), None


def _mark_all(texts: Texts, group: Sequence[Received], means: Means) -> Program[Mapping[Received, Reception]]:
    """Write the inbox rows of several events, which are all stored or all not; give what each of them is."""
    receptions = dict.fromkeys(group, Reception.COPY)  # whatever has the id of another one here is a copy of it
    stored, firsts = group[0].stored, dict[str, Received]()
    for received in group:
        firsts.setdefault(received.key, received)
    its = [key if stored else (key, line_text(one.line)) for key, one in firsts.items()]
    fresh = yield texts("take_many" if stored else "receive_many", texts.consumer, _list(its))
    new = {row[0] for row in fresh}
    for key, received in firsts.items():
        if key not in new:
            receptions[received] = yield from _why_not(texts, received, means)
        elif received.number is None or (yield from _is_next(texts, received, means)):
            receptions[received] = Reception.HANDLED
    return receptions


def _is_next(texts: Texts, received: Received, means: Means) -> Program[bool]:
    """Count an event's number, if it has one; False if it is an old copy."""
    if received.number is None:
        return True
    is_next = yield from numbers.count(texts, received, means.remembered, unordered=means.unordered)
    if not is_next:
        yield from _settle(texts, received, means)
    return is_next


def _settle(texts: Texts, received: Received, means: Means) -> Program[None]:
    """Note in the parking lot that an event is handled, if it stands there. What was stored leaves it later, many at
    once."""
    consumer, key = texts.consumer, received.key
    if received.stored:
        return
    if received.parked:
        yield texts("handled", consumer, key, microseconds(means.now))
    elif received.counted:
        yield texts("clear", consumer, key)


def where(texts: Texts) -> Program[str]:
    """Give the flags with which a command finds this inbox."""
    ((place, database),) = yield texts("where")
    schema, _, prefix = place.rpartition(".")
    flags = ["--inbox"]
    if database is not None:  # else it is in memory, where no command gets
        flags += ["--database", quote(database)]
    if schema not in ("", "public", "main"):
        flags += ["--set", f"outbox.schema={schema}"]
    if prefix != "pillarbox_":
        flags += ["--set", f"outbox.prefix={prefix}"]
    return " ".join(flags)


def _missing(received: Received, means: Means, flags: str) -> str:
    key, what = received.key, f"no handler for type {received.type!r} in the inbox {means.handlers.consumer!r}"
    if means.unhandled == "dead":
        return f"{what}: register one and run `pillarbox dead retry {quote(key)} {flags}`, or set inbox.unhandled"
    return (
        f"{what}: the consumer stops at the event {key} on the topic {received.delivery.topic!r}, which is"
        " kept for the next start: register one and start again, or set inbox.unhandled to something else than fail"
    )


def _why_not(texts: Texts, received: Received, means: Means) -> Program[Reception]:
    """Say why there is nothing to do: it was handled or dropped, or it waits in its line."""
    consumer, key = texts.consumer, received.key
    ((in_inbox, state),) = yield texts("why_not", consumer, key)
    if in_inbox:
        if received.parked:
            yield from _settle(texts, received, means)
        else:
            yield texts("clear", consumer, key)
        return Reception.COPY
    return Reception.BLOCKED if state in (None, "suspect") and not received.parked else Reception.COPY


def _apply(group: Sequence[Received], handler: Handler, means: Means, *, shared: bool = False) -> Program[None]:
    """Call a handler for its event, or for all of its events at once."""
    events = [decode(received.for_handler, handler.model_for) for received in group]
    for received in group:
        means.reach(Moment.MARKED, received)
    given = events if handler.batch else events[0]
    function = handler.function if means.wrap is None else means.wrap(handler)
    call = Call(function, handler.is_async, given, means.timeout, shared)
    value = yield from _call(call, handler, group[0])
    if value is not None:
        means.tell(Moment.HANDLER_RETURNED, group[0], handler, value)
    for received in group:
        means.reach(Moment.HANDLED, received)


def _handle(
    texts: Texts,
    group: Sequence[Received],
    handler: Handler,
    means: Means,
    number: object,
    *,
    shared: bool = False,
) -> Program[bool]:
    """Call the handler; say whether it committed by itself. `number` is the transaction's."""
    if "mark" in texts:
        yield texts("mark")
    try:
        yield from _apply(group, handler, means, shared=shared)
    except ClosedByHandler:
        raise
    except (HandlerSignal, HandlerFailed, StoreUnavailable) as error:
        ended = yield from _ended(texts, group[0], handler, number, failing=error)
        if ended and (yield texts("still_there", texts.consumer, group[0].key)):
            for received in group:
                received.committed = True
            stands = (
                f" (after {handler.name} had committed by itself: what it did up to there stands, so it is not tried"
                " again; remove the commit: the inbox commits)"
            )
            brief = getattr(error, "brief", None)
            raise HandlerFailed(f"{words_of(error)}{stands}", brief and f"{brief}{stands}") from (
                error.__cause__ or error
            )
        raise
    committed = yield from _keep(texts, group[0], handler, number)
    if committed:
        means.tell(Moment.HANDLER_COMMITTED, group[0], handler, None)
    return committed


def _rolled_back(handler: Handler) -> HandlerFailed:
    """A handler that rolled back has undone our row with its own work: without a look, its event would be lost."""
    return HandlerFailed(
        f"{handler.name} rolled back the transaction it was given, so its event would be lost:"
        " let the error out, or use a savepoint"
    )


def _keep(texts: Texts, received: Received, handler: Handler, number: object) -> Program[bool]:
    """See to it that our row is committed with what the handler did; say whether it committed by itself."""
    if "keep" not in texts:
        ended = yield from _ended(texts, received, handler, number)
        if ended and not (yield texts("still_there", texts.consumer, received.key)):
            raise _rolled_back(handler)
        return ended
    try:
        ((ended,),) = yield texts.last(
            "keep",
            texts.consumer,
            received.key,
            number,
            last=received.stored or not (received.parked or received.counted),
        )
    except StoreUnavailable as error:
        _raise_unless_again_and_again(error, handler, received)
    except Exception as error:  # noqa: BLE001 - raised again, in other words
        _raise_blamed(error, handler)
    return bool(ended)


def _raise_blamed(error: Exception, handler: Handler) -> NoReturn:
    """Say what the handler has done to the transaction, if nothing can be done with it any more."""
    if isinstance(error, RowUndone):
        raise _rolled_back(handler) from error
    if isinstance(error, TransactionFailed):
        raise HandlerFailed(
            f"{handler.name} swallowed an error of the database, after which nothing of its transaction can be kept:"
            " let the error out, or use a savepoint"
        ) from error
    if isinstance(error, HandlerFailed | StoreError):
        raise error
    raise HandlerFailed(f"{handler.name} closed the connection it was given: leave it open") from error


def _ended(
    texts: Texts, received: Received, handler: Handler, number: object, *, failing: BaseException | None = None
) -> Program[bool]:
    """Say whether the handler has ended the transaction: its savepoint, or its number, went with it."""
    lost = isinstance(failing, StoreUnavailable) or (failing and isinstance(failing.__cause__, StoreUnavailable))
    try:
        return bool((yield texts("unmark", number)))
    except TransactionFailed as error:
        if failing is not None:
            return False  # whoever parks it sees whether its row is there all the same
        _raise_blamed(error, handler)
    except StoreUnavailable as error:
        if lost:
            return False  # that is known, and counted
        _raise_unless_again_and_again(error, handler, received)
    except RowUndone as error:
        _raise_blamed(error, handler)
    except StoreError:
        return True
    except Exception as error:  # noqa: BLE001 - raised again, in other words
        if lost:
            return False
        _raise_blamed(error, handler)


def _call(call: Call, handler: Handler, received: Received) -> Program[object]:
    """Let the door call the handler; whatever goes wrong in it comes out as a signal, or as one of two errors."""
    try:
        value = yield call
    except (HandlerSignal, HandlerFailed):
        raise
    except StoreConflict:
        raise
    except StoreUnavailable as error:
        _raise_unless_again_and_again(error, handler, received)
    except (Exception, SystemExit) as error:
        raised = f"{handler.name} raised {type(error).__name__}"
        raise HandlerFailed(f"{raised}: {words_of(error)}", f"{raised}{place_of(error, handler.function)}") from error
    _refuse_unrun(value, handler)
    return value


def _raise_unless_again_and_again(error: StoreUnavailable, handler: Handler, received: Received) -> NoReturn:
    """Say whose fault it is that the database went away under a handler. Our own row is written by then, so it was
    there. Once or twice this is bad luck; a handler that waits for a lock that its own transaction holds, or idles
    until the server ends its session, would say so for ever."""
    if isinstance(error, StoreConflict):
        raise error
    received.locked_out += 1
    if received.locked_out <= PATIENCE:
        raise error
    raise HandlerFailed(
        f"{handler.name} found the database locked, or lost its connection, {received.locked_out} times:"
        f" {words_of(error)} (does it wait for a lock of its own, or idle for longer than"
        " idle_in_transaction_session_timeout allows?)"
    ) from error


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
    kind = a(type(value).__name__)
    raise HandlerFailed(f"{handler.name} returned {kind}, of which nothing ran: {advice}")


def trace_of(text: str) -> str:
    """Keep a traceback's end, which says most, without the secrets in it."""
    return sayable(quiet(text if len(text) <= LONGEST_TRACE else "…" + text[-LONGEST_TRACE:]))
