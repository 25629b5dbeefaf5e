"""Handling: a fixed number of workers turn what was received into verdicts, for the consumer to collect."""

import asyncio
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from pillarbox.core.postgres_facts import StoreConflict
from pillarbox.core.retry import PUBLISHED, Dead, RetryAt, RetryPolicy, Untouched, Verdict, words_of
from pillarbox.core.routing import Line, Topics
from pillarbox.errors import (
    LONGEST_DELAY,
    DecodeError,
    HandlerError,
    HandlerFailed,
    HandlerMissing,
    HandlerSignal,
    PillarboxError,
    RetryLater,
    StoreUnavailable,
)
from pillarbox.inbox import lot, programs
from pillarbox.inbox.inbox import Handler
from pillarbox.inbox.numbers import OutOfOrder
from pillarbox.inbox.outage import Outage
from pillarbox.inbox.programs import Reception, Unhandled, Wrap
from pillarbox.inbox.received import Received
from pillarbox.inbox.steps import Program
from pillarbox.inbox.waiting import Taken, Waiting
from pillarbox.inbox.workers import BOOKS, Receiver, SyncReceiver, Threads, perform_each, performers
from pillarbox.ports import Clock
from pillarbox.telemetry.hooks import Hooks, Moment

R = TypeVar("R")
SLOW_AFTER, SLOW_AGAIN, WATCH_EVERY = 30.0, 60.0, 1.0
STOPS = Untouched("the consumer stops, or one before it is not done")
CONFLICT = 0.05
"""How many seconds at most a transaction waits that was in another one's way."""
ALONE = 3
"""How often processes must have died with an event before it is given up, however few its retries: up to then it was
only tried beside others, first those that were suspected as well, then those that nobody did, and one of them may be to
blame."""
CRASHED = "the consumer's process died, or was stopped at once,"
TOGETHER = 100
"""How many events share a transaction at most, where their handlers allow it."""
STRETCH, SHARED_STRETCH = 0.2, 0.02
"""How many seconds a worker's thread goes on by itself. Where the database has one writer, the books need that thread
too, and wait for it."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What handling decides by."""

    policy: RetryPolicy
    topics: Topics
    concurrency: int
    timeout: timedelta | None
    chance: Callable[[], float]
    remembers: timedelta | None
    """How long the inbox keeps ids; None for ever."""
    unordered: bool
    """The broker does not keep the order: the numbers do."""
    stores: bool
    """What arrives is stored, acknowledged, and handled later."""
    unhandled: Unhandled = "dead"


class Running(NamedTuple):
    """What a worker is at, and when somebody should be told that it is slow."""

    received: Received
    since: float
    tell_at: float


class Handling:
    """Workers that call handlers. `blocked` is the consumer's set of blocked lines; a worker may find another one."""

    def __init__(
        self, inbox: Receiver, rules: Rules, clock: Clock, hooks: Hooks, blocked: set[Line], wrap: Wrap | None = None
    ) -> None:
        self._inbox, self._rules, self._clock, self._hooks, self._blocked = inbox, rules, clock, hooks, blocked
        self._wrap = wrap
        self._workers = min(rules.concurrency, inbox.most_workers or rules.concurrency)
        self._performers = performers(inbox, self._workers)
        self._stretches = SHARED_STRETCH if inbox.most_workers == 1 else STRETCH
        # The oldest first: what has failed can be parked, and the rest acknowledged, once all before it is done.
        # What is ready of one line stands together: one worker does it, in its order.
        self._queue = Waiting()
        self._stopping = False
        self._loop = asyncio.get_running_loop()
        self._done: deque[tuple[int, Received, Reception]] = deque()
        """What threads have handled; collected with the answers."""
        self._answers: list[tuple[int, Verdict]] = []
        self._running: dict[int, Running] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._told_of: set[tuple[Moment, str]] = set()
        self._fatal: BaseException | None = None
        self.answered = asyncio.Event()
        """Set when there is an answer to collect."""
        self.store = Outage(hooks, Moment.STORE_AWAY, Moment.STORE_BACK)
        self.counts: Counter[Reception] = Counter()
        """How many deliveries became what, since the start."""
        self.passed_over: Counter[str] = Counter()
        """How many were passed over, by type."""
        self._taken_away: set[Line] = set()
        self.missing: HandlerMissing | None = None
        """Why the consumer has to stop, if somebody set that it does where a handler is missing."""

    def start(self) -> None:
        """Put the workers to work."""
        self._tasks = [asyncio.create_task(self._work(n), name=f"worker {n}") for n in range(self._workers)]
        self._tasks.append(asyncio.create_task(self._watch(), name="slow handlers"))
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def give(self, ready: Iterable[Taken]) -> None:
        """Hand over what may be handled now; what the hint knows is a copy."""
        lines: dict[Line, list[Taken]] = {}
        groups: list[list[Taken]] = []
        for one in ready:
            line = one[1].line
            if self.is_known(one[1]):
                self._answer(one[0], self._received(one[1], Reception.COPY))
                continue
            if line is not None and line in lines:
                lines[line].append(one)
                continue
            groups.append([one])
            if line is not None:
                lines[line] = groups[-1]
        self._queue.put(groups)

    def answers(self) -> list[tuple[int, Verdict]]:
        """Collect the verdicts since the last call; raise what no daemon can go on after."""
        self.check()
        self.answered.clear()
        while self._done:
            ticket, received, reception = self._done.popleft()
            self._answers.append((ticket, self._received(received, reception)))
            self.store.over()
        answers, self._answers = self._answers, []
        return answers

    def check(self) -> None:
        """Raise what no daemon can go on after."""
        if self._fatal is not None:
            raise self._fatal

    def pass_over(self, received: Received) -> None:
        """Count and tell what nobody handles here."""
        self._received(received, Reception.IGNORED)

    def is_known(self, received: Received) -> bool:
        """Say whether the hint knows it; what it said before the database was away does not count any more."""
        return received.known is not None and received.known == self.store.times

    def drain(self) -> None:
        """Take back what no worker has begun."""
        self._stopping = True
        while taken := self._queue.take():
            for ticket, _ in taken:
                self._answer(ticket, STOPS)

    async def books(self, program: Program[R], *, reading: bool = False) -> R:
        """Perform a program beside the handlers. StoreUnavailable is raised, and noted unless it was but a conflict."""
        try:
            result = await self._performers.perform(BOOKS, program, reading=reading)
        except StoreConflict:
            raise
        except StoreUnavailable as error:
            self.store.struck(error)
            raise
        self.store.over()
        return result

    def taken_away(self) -> set[Line]:
        """Give the lines that we had out, and whose head somebody else has put back since the last time."""
        lines, self._taken_away = self._taken_away, set()
        return lines

    @property
    def longest(self) -> Running | None:
        """What a worker has been at for longest, if any is at something."""
        return min(list(self._running.values()), key=lambda running: running.since, default=None)

    @property
    def is_slow(self) -> bool:
        """A handler takes as long as one does that hangs."""
        longest = self.longest
        return longest is not None and self._loop.time() >= longest.since + SLOW_AFTER

    async def close(self) -> None:
        """End the workers; a thread whose handler still runs ends after it."""
        self._stopping = True
        for task in self._tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._performers.close()

    async def _work(self, worker: int) -> None:
        while True:
            taken, error = await self._queue.wait(), None
            while len(taken) < TOGETHER and self._shares(taken[-1][1]) and (more := self._queue.take()):
                taken += more
            if isinstance(self._performers, Threads) and self._is_plain(taken[0][1]):
                stretch = partial(self._stretch, self._performers.inbox, worker, taken)
                taken, error = await self._performers.run(worker, stretch)
                self.answered.set()
            stopped: set[Line] = set()
            for together in self._divide(taken):
                alone = len(together) == 1 or any(received.line in stopped for _, received in together)
                left = together if alone or error else await self._all_at_once(worker, together)
                await self._one_by_one(worker, left, stopped, error)
                error = None

    def _stretch(
        self, inbox: SyncReceiver, worker: int, taken: list[Taken]
    ) -> tuple[list[Taken], BaseException | None]:
        """Handle what is plain, in this thread, as long as all goes well and there is more: a way to the loop and back
        takes longer than many a handler. Give what is left, and why its first one is not done."""
        left = deque(taken)

        def done(reception: Reception) -> None:
            ticket, received = left[0]
            self._tell_committed(received, reception)
            self._done.append((ticket, received, reception))
            left.popleft()

        try:
            perform_each(inbox, self._plain_ones(worker, left), done)
        except BaseException as error:  # noqa: BLE001 - judged where it can be told
            return list(left), error
        finally:
            self._running.pop(worker, None)
        return list(left), None

    def _plain_ones(self, worker: int, left: deque[Taken]) -> Iterator[Program[Reception]]:
        """Begin what is left, one after the other, and what comes after it: until a stretch is over, or one of them is
        not plain."""
        ends, texts, means = self._loop.time() + self._stretches, self._inbox.texts, self._means()
        waiting = deque(left)
        while not self._stopping:
            if not waiting:
                more = self._queue.take() if self._loop.time() < ends else None
                if not more:
                    return
                left.extend(more)
                waiting.extend(more)
            received = waiting[0][1]
            if not self._is_plain(received):
                return
            waiting.popleft()
            self._begin(worker, received)
            yield programs.receive(texts, received, means)

    def _is_plain(self, received: Received) -> bool:
        """Say whether there is nothing to it but its handler, in a transaction of its own."""
        special = received.ignored or received.hopeless or received.suspicious
        return not special and not self._shares(received)

    def _divide(self, taken: Sequence[Taken]) -> Iterator[list[Taken]]:
        """Divide what one worker has taken into transactions, in order."""
        together: list[Taken] = []
        shared = False  # whether those that are together share their transaction
        for one in taken:
            shares = self._shares(one[1])
            go = shares and shared and len(together) < TOGETHER and together[-1][1].stored == one[1].stored
            if together and not go:
                yield together
                together = []
            together.append(one)
            shared = shares
        if together:
            yield together

    def _shares(self, received: Received) -> bool:
        """Say whether it may share a transaction: nobody shares one with an event that may kill its process, or that
        has failed before."""
        if received.ignored or received.hopeless or received.suspicious or (received.parked and not received.stored):
            return False
        handler = self._handler(received)
        return handler is not None and handler.batch

    def _handler(self, received: Received) -> Handler | None:
        return self._inbox.handlers.get(received.type, received.delivery.topic)

    async def _all_at_once(self, worker: int, together: Sequence[Taken]) -> Sequence[Taken]:
        """Handle events in one transaction; give those that are left to do."""
        if self._stopping:
            return together
        self._begin(worker, together[0][1])
        batch = [received for _, received in together]
        try:
            receptions = await self._perform(worker, programs.receive_all(self._inbox.texts, batch, self._means()))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whoever is to blame says so again when it is alone
            for received in batch:
                if received.committed and isinstance(error, HandlerFailed):
                    received.hopeless = error
            return together
        finally:
            del self._running[worker]
        self._hooks.reach(Moment.COMMITTED, count=len(receptions))
        for ticket, received in together:
            if received in receptions:
                self._answer(ticket, self._received(received, receptions[received]))
        return [one for one in together if one[1] not in receptions]

    async def _one_by_one(
        self, worker: int, taken: Sequence[Taken], stopped: set[Line], error: BaseException | None = None
    ) -> None:
        """Handle events each in its own transaction; behind one that is not done, nothing of its line is tried. If
        there is an error, the first one has been tried already."""
        for ticket, received in taken:
            verdict: Verdict = STOPS
            if error is not None:
                verdict, error = await self._verdict(worker, received, error), None
            elif not (self._stopping or received.line in stopped):
                self._begin(worker, received)
                verdict = await self._verdict(worker, received)
                del self._running[worker]
            if received.line is not None and verdict is not PUBLISHED:
                stopped.add(received.line)
            self._answer(ticket, verdict)

    def _begin(self, worker: int, received: Received) -> None:
        now = self._loop.time()
        self._running[worker] = Running(received, now, now + SLOW_AFTER)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nobody works in its place: without a word, the consumer would stand still for ever."""
        cause = None if task.cancelled() else task.exception()
        self._fatal = self._fatal or cause or RuntimeError(f"{task.get_name()} of the consumer was cancelled")
        self.answered.set()

    def _answer(self, ticket: int, verdict: Verdict) -> None:
        self._answers.append((ticket, verdict))
        self.answered.set()

    async def _verdict(self, worker: int, received: Received, error: BaseException | None = None) -> Verdict:
        """Handle an event, unless there is an error already; say what has become of it."""
        try:
            if error is not None:
                raise error
            reception = await self._receive(worker, received)
        except StoreConflict as error:
            await asyncio.sleep(CONFLICT * self._rules.chance())  # so that the two do not meet again at once
            return Untouched(words_of(error))
        except StoreUnavailable as error:
            self.store.struck(error)
            return Untouched(words_of(error))
        except (HandlerError, HandlerSignal, DecodeError) as error:
            if isinstance(error, HandlerMissing) and self._rules.unhandled == "fail":
                self.missing = error
                return Untouched(words_of(error))
            return self._judge(received, error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised by the consumer, which cannot go on: no tables, say
            # Nobody begins anything more: cut short by the end, it would count as what its process died with.
            self._fatal, self._stopping = error, True
            return Untouched(words_of(error))
        return self._received(received, reception)

    def _received(self, received: Received, reception: Reception) -> Verdict:
        self.counts[reception] += 1
        if reception is Reception.IGNORED:
            self._tell_passed_over(received)
        received.applied = reception is Reception.HANDLED
        if reception is Reception.BLOCKED:
            assert received.line is not None
            self._blocked.add(received.line)
            if received.parked:
                self._taken_away.add(received.line)
            return Untouched("its line is blocked")
        return PUBLISHED

    async def _receive(self, worker: int, received: Received) -> Reception:
        """Handle one delivery: at most two transactions, the second of them with the handler in it."""
        if received.ignored:
            return Reception.IGNORED
        if received.hopeless:
            raise received.hopeless
        last_error = None
        if received.suspicious and not received.counted and self._handler(received):
            tried = await self._perform(worker, lot.suspect(self._inbox.texts, received, self._clock.now()))
            if tried is not None:
                (received.attempts, last_error), received.counted = tried, True
                received.abandoned = received.abandoned or received.attempts > 1
            elif received.parked:
                stands = await self._perform(worker, lot.stands(self._inbox.texts, received))
                return Reception.BLOCKED if stands and received.line is not None else Reception.COPY
        if received.counted and received.attempts > max(self._rules.policy.retries, ALONE):
            tries, received.attempts = received.attempts, received.attempts - 1  # parking counts one more
            raise _crashed_again(tries, last_error)
        if received.abandoned and not received.parked:
            # In the window all others would wait until it is dead: it is tried out of the parking lot. Nothing is tried
            # now, but parking counts one; and the try that comes is counted when it begins.
            deaths, received.attempts = received.attempts, received.attempts - 2
            raise RetryLater(0, _crashed(deaths))
        reception = await self._perform(worker, programs.receive(self._inbox.texts, received, self._means()))
        self._tell_committed(received, reception)
        return reception

    def _tell_committed(self, received: Received, reception: Reception) -> None:
        if reception is Reception.HANDLED:
            self._hooks.reach(Moment.COMMITTED, type=received.type, event_id=received.key)

    def _means(self) -> programs.Means:
        now, kept = self._clock.now(), self._rules.remembers
        return programs.Means(
            self._inbox.handlers,
            now,
            None if kept is None else now - kept,
            self._rules.unordered,
            lambda moment, received: self._hooks.reach(moment, type=received.type, event_id=received.key),
            self._tell,
            self._rules.timeout.total_seconds() if self._rules.timeout else None,
            self._rules.unhandled,
            self._wrap,
        )

    async def _perform(self, worker: int, program: Program[R]) -> R:
        result = await self._performers.perform(worker, program)
        self.store.over()
        return result

    def _judge(self, received: Received, error: PillarboxError | HandlerSignal) -> Verdict:
        """Say what a failure means: try again, or never again."""
        policy, topic = self._rules.policy, received.delivery.topic
        blocks = self._rules.topics[topic].when_dead == "block"
        now, text = self._clock.now(), words_of(error)
        received.trace, received.brief = _trace(error), getattr(error, "brief", None)
        if isinstance(error, OutOfOrder):
            received.numbering = error.numbering
            return Dead(text)  # behind it nothing can be right, whatever is to become of dead ones
        if received.numbering != "accepted":
            received.numbering = None
        if received.committed:
            return Dead(text, blocks=False)
        goes_aside = received.abandoned and not received.parked  # to be tried alone, which takes no retry
        if isinstance(error, RetryLater) and (goes_aside or received.attempts < policy.retries):
            return RetryAt(now + min(error.delay, LONGEST_DELAY), text)
        if isinstance(error, HandlerFailed | RetryLater):
            return policy.failed(text, received.attempts, now, self._rules.chance(), blocks=blocks)
        return Dead(text, blocks)

    def _tell(self, moment: Moment, received: Received, handler: Handler, value: object) -> None:
        """Tell of a handler's habit, once."""
        if (moment, handler.type) not in self._told_of:
            self._told_of.add((moment, handler.type))
            # Its type alone: it may be what the event carries.
            shown = {} if value is None else {"value": type(value).__name__}
            self._hooks.reach(moment, **received.facts, handler=handler.name, **shown)

    def _tell_passed_over(self, received: Received) -> None:
        """Say once for each type that nobody handles it here: a misspelt type would be missed in silence."""
        self.passed_over[received.type] += 1
        if self.passed_over[received.type] == 1:
            self._hooks.reach(Moment.TYPE_PASSED_OVER, **received.facts)

    async def _watch(self) -> None:
        """Tell of handlers that take long: after half a minute, then every minute."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_EVERY)
            for worker, running in list(self._running.items()):
                if loop.time() < running.tell_at:
                    continue
                self._running[worker] = running._replace(tell_at=loop.time() + SLOW_AGAIN)
                seconds = round(loop.time() - running.since)
                self._hooks.reach(Moment.HANDLER_SLOW, **running.received.facts, seconds=seconds)


def _crashed(deaths: int) -> str:
    return f"{CRASHED} {'once' if deaths == 1 else f'{deaths} times'} while this was handled"


def _crashed_again(tries: int, last_error: str | None) -> HandlerFailed:
    """Say that a process died with it, and what it failed with before, if not every try ended so."""
    if last_error is None or last_error.startswith(CRASHED):
        return HandlerFailed(_crashed(tries))
    died = f"{CRASHED} at attempt {tries}, while this was handled"
    return HandlerFailed(
        f"{died}; before that it failed: {last_error}",
        f"{died}; what it failed with before that is kept with the event",
    )


def _trace(error: BaseException) -> str | None:
    """Keep the traceback of what the handler raised; a signal or a broken message has none worth keeping."""
    cause = error.__cause__ if isinstance(error, HandlerFailed) else None
    return programs.trace_of("".join(traceback.format_exception(cause))) if cause is not None else None
