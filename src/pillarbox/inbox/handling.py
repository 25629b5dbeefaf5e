"""Handling: a fixed number of workers turn what was received into verdicts, for the consumer to collect."""

import asyncio
import reprlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple, TypeVar

from pillarbox.core.postgres_facts import StoreConflict
from pillarbox.core.retry import PUBLISHED, Dead, RetryAt, RetryPolicy, Untouched, Verdict, sayable, words_of
from pillarbox.core.routing import Line, Topics
from pillarbox.errors import (
    LONGEST_DELAY,
    DecodeError,
    HandlerError,
    HandlerFailed,
    HandlerSignal,
    PillarboxError,
    Reject,
    RetryLater,
    StoreUnavailable,
)
from pillarbox.inbox import lot, programs
from pillarbox.inbox.inbox import Handler
from pillarbox.inbox.numbers import OutOfOrder
from pillarbox.inbox.outage import Outage
from pillarbox.inbox.programs import Reception
from pillarbox.inbox.received import Received
from pillarbox.inbox.steps import Program
from pillarbox.inbox.workers import BOOKS, Receiver, performers
from pillarbox.ports import Clock
from pillarbox.telemetry.hooks import Hooks, Moment

R = TypeVar("R")
Taken = tuple[int, Received]
"""A ticket of the window, and what is handled under it."""
SLOW_AFTER, SLOW_AGAIN, WATCH_EVERY = 30.0, 60.0, 1.0
STOPS = Untouched("the consumer stops, or one before it is not done")
CONFLICT = 0.05
"""How many seconds at most a transaction waits that was in another one's way."""
TOGETHER = 100
"""How many events share a transaction at most, where their handlers allow it."""


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


class Running(NamedTuple):
    """What a worker is at, and when somebody should be told that it is slow."""

    received: Received
    since: float
    tell_at: float


class Handling:
    """Workers that call handlers. `blocked` is the consumer's set of blocked lines; a worker may find another one."""

    def __init__(self, inbox: Receiver, rules: Rules, clock: Clock, hooks: Hooks, blocked: set[Line]) -> None:
        self._inbox, self._rules, self._clock, self._hooks, self._blocked = inbox, rules, clock, hooks, blocked
        self._workers = min(rules.concurrency, inbox.most_workers or rules.concurrency)
        self._performers = performers(inbox, self._workers)
        # The oldest first: what has failed can be parked, and the rest acknowledged, once all before it is done.
        # What is ready of one line stands together: one worker does it, in its order.
        self._queue: asyncio.PriorityQueue[tuple[int, list[Taken]]] = asyncio.PriorityQueue()
        self._stopping = False
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

    def start(self) -> None:
        """Put the workers to work."""
        self._tasks = [asyncio.create_task(self._work(n), name=f"worker {n}") for n in range(self._workers)]
        self._tasks.append(asyncio.create_task(self._watch(), name="slow handlers"))
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def give(self, ready: Iterable[Taken]) -> None:
        """Hand over what may be handled now."""
        lines: dict[Line, list[Taken]] = {}
        for one in ready:
            line = one[1].line
            if line is not None and line in lines:
                lines[line].append(one)
                continue
            taken = [one]
            if line is not None:
                lines[line] = taken
            self._queue.put_nowait((one[0], taken))

    def answers(self) -> list[tuple[int, Verdict]]:
        """Collect the verdicts since the last call; raise what no daemon can go on after."""
        self.check()
        self.answered.clear()
        answers, self._answers = self._answers, []
        return answers

    def check(self) -> None:
        """Raise what no daemon can go on after."""
        if self._fatal is not None:
            raise self._fatal

    def pass_over(self, received: Received) -> None:
        """Count and tell what nobody handles here."""
        self._tell_passed_over(received)
        self.counts[Reception.IGNORED] += 1

    def drain(self) -> None:
        """Take back what no worker has begun."""
        self._stopping = True
        while not self._queue.empty():
            for ticket, _ in self._queue.get_nowait()[1]:
                self._answer(ticket, STOPS)

    async def books(self, program: Program[R], *, reading: bool = False) -> R:
        """Perform a program beside the handlers; StoreUnavailable is noted and raised."""
        try:
            result = await self._performers.perform(BOOKS, program, reading=reading)
        except StoreUnavailable as error:
            self.store.struck(error)
            raise
        self.store.over()
        return result

    async def close(self) -> None:
        """End the workers; a thread whose handler still runs ends after it."""
        for task in self._tasks:
            task.remove_done_callback(self._ended)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._performers.close()

    async def _work(self, worker: int) -> None:
        while True:
            _, taken = await self._queue.get()
            while len(taken) < TOGETHER and self._shares(taken[-1][1]) and not self._queue.empty():
                taken += self._queue.get_nowait()[1]
            stopped: set[Line] = set()
            for together in self._divide(taken):
                alone = len(together) == 1 or any(received.line in stopped for _, received in together)
                if alone or not await self._all_at_once(worker, together):
                    await self._one_by_one(worker, together, stopped)

    def _divide(self, taken: Sequence[Taken]) -> Iterator[list[Taken]]:
        """Divide what one worker has taken into transactions, in order."""
        together: list[Taken] = []
        for one in taken:
            if together and (len(together) == TOGETHER or not (self._shares(one[1]) and self._shares(together[-1][1]))):
                yield together
                together = []
            together.append(one)
        yield together

    def _shares(self, received: Received) -> bool:
        """Say whether it may share a transaction: nobody shares one with an event that may kill its process."""
        if not received.handled or received.hopeless or received.suspicious:
            return False
        return received.type in self._inbox.handlers and self._inbox.handlers[received.type].batch

    async def _all_at_once(self, worker: int, together: Sequence[Taken]) -> bool:
        """Handle events in one transaction; False if that cannot be, and nothing is answered."""
        if self._stopping:
            return False
        self._begin(worker, together[0][1])
        try:
            batch = [received for _, received in together]
            receptions = await self._perform(worker, programs.receive_all(self._inbox.texts, batch, self._means()))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whoever is to blame says so again when it is alone
            for received in batch:
                if received.committed and isinstance(error, HandlerFailed):
                    received.hopeless = error
            return False
        finally:
            del self._running[worker]
        self._hooks.reach(Moment.COMMITTED, count=len(together))
        for (ticket, received), reception in zip(together, receptions, strict=True):
            self._answer(ticket, self._received(received, reception))
        return True

    async def _one_by_one(self, worker: int, taken: Sequence[Taken], stopped: set[Line]) -> None:
        """Handle events each in its own transaction; behind one that is not done, nothing of its line is tried."""
        for ticket, received in taken:
            verdict: Verdict = STOPS
            if not (self._stopping or received.line in stopped):
                self._begin(worker, received)
                verdict = await self._verdict(worker, received)
                del self._running[worker]
            if received.line is not None and verdict is not PUBLISHED:
                stopped.add(received.line)
            self._answer(ticket, verdict)

    def _begin(self, worker: int, received: Received) -> None:
        now = asyncio.get_running_loop().time()
        self._running[worker] = Running(received, now, now + SLOW_AFTER)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Nobody works in its place: without a word, the consumer would stand still for ever."""
        cause = None if task.cancelled() else task.exception()
        self._fatal = self._fatal or cause or RuntimeError(f"{task.get_name()} of the consumer was cancelled")
        self.answered.set()

    def _answer(self, ticket: int, verdict: Verdict) -> None:
        self._answers.append((ticket, verdict))
        self.answered.set()

    async def _verdict(self, worker: int, received: Received) -> Verdict:
        try:
            reception = await self._receive(worker, received)
        except StoreConflict as error:
            await asyncio.sleep(CONFLICT * self._rules.chance())  # so that the two do not meet again at once
            return Untouched(words_of(error))
        except StoreUnavailable as error:
            self.store.struck(error)
            return Untouched(words_of(error))
        except (HandlerError, HandlerSignal, DecodeError) as error:
            return self._judge(received, error)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised by the consumer, which cannot go on: no tables, say
            self._fatal = error
            return Untouched(words_of(error))
        return self._received(received, reception)

    def _received(self, received: Received, reception: Reception) -> Verdict:
        self.counts[reception] += 1
        if reception is Reception.BLOCKED:
            assert received.line is not None
            self._blocked.add(received.line)
            return Untouched("its line is blocked")
        return PUBLISHED

    async def _receive(self, worker: int, received: Received) -> Reception:
        """Handle one delivery: at most two transactions, the second of them with the handler in it."""
        if not received.handled:
            self._tell_passed_over(received)
            return Reception.IGNORED
        if received.hopeless:
            raise received.hopeless
        if received.suspicious and not received.counted:
            failed = await self._perform(worker, lot.suspect(self._inbox.texts, received, self._clock.now()))
            if failed is not None:
                received.attempts, received.counted = failed, True
            elif received.parked:
                return Reception.COPY
        if received.counted and received.attempts > self._rules.policy.retries:
            deaths, received.attempts = received.attempts, received.attempts - 1  # parking counts one more
            raise Reject(f"crashed the consumer: its process died {deaths} times while this was handled")
        reception = await self._perform(worker, programs.receive(self._inbox.texts, received, self._means()))
        if reception is Reception.HANDLED:
            self._hooks.reach(Moment.COMMITTED, type=received.type, event_id=received.key)
        return reception

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
        received.trace = _trace(error)
        received.numbering = error.numbering if isinstance(error, OutOfOrder) else None
        if received.numbering is not None:
            return Dead(text)  # behind it nothing can be right, whatever is to become of dead ones
        if received.committed:
            return Dead(text, blocks=False)
        if isinstance(error, RetryLater) and received.attempts < policy.retries:
            return RetryAt(now + min(error.delay, LONGEST_DELAY), text)
        if isinstance(error, HandlerFailed | RetryLater):
            return policy.failed(text, received.attempts, now, self._rules.chance(), blocks=blocks)
        return Dead(text, blocks)

    def _tell(self, moment: Moment, received: Received, handler: Handler, value: object) -> None:
        """Tell of a handler's habit, once."""
        if (moment, handler.type) not in self._told_of:
            self._told_of.add((moment, handler.type))
            shown = {} if value is None else {"value": sayable(reprlib.repr(value))}
            self._hooks.reach(moment, type=received.type, event_id=received.key, handler=handler.name, **shown)

    def _tell_passed_over(self, received: Received) -> None:
        """Say once for each type that nobody handles it here: a misspelt type would be missed in silence."""
        self.passed_over[received.type] += 1
        if self.passed_over[received.type] == 1:
            self._hooks.reach(Moment.TYPE_PASSED_OVER, type=received.type, topic=received.delivery.topic)

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
                received = running.received
                self._hooks.reach(
                    Moment.HANDLER_SLOW,
                    type=received.type,
                    event_id=received.key,
                    topic=received.delivery.topic,
                    seconds=seconds,
                )


def _trace(error: BaseException) -> str | None:
    """Keep the traceback of what the handler raised; a signal or a broken message has none worth keeping."""
    cause = error.__cause__ if isinstance(error, HandlerFailed) else None
    return programs.trace_of("".join(traceback.format_exception(cause))) if cause is not None else None
