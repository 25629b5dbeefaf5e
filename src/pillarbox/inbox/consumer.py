"""The consumer: delivery → transaction → handler → acknowledge. The mirror of the relay's pump, around the same window.

Deliveries enter the window; what is ready is handled; what failed is parked, durably; and then everything up to the
first unsettled delivery is acknowledged. A crash at any point brings the rest again, and the inbox knows what was done.

Whether a line is blocked is known here from a set that is refreshed several times a second, and decided in the
transaction of the delivery itself: the set only saves tries, so it may be a moment old.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from shlex import quote

from pillarbox.core.changed_order import check_order
from pillarbox.core.message import Delivery
from pillarbox.core.retry import Dead, Published, RetryAt, RetryPolicy, words_of
from pillarbox.core.routing import Line, Topics
from pillarbox.core.window import Blocked, Settlement, Window
from pillarbox.daemon import Daemon
from pillarbox.errors import BrokerUnavailable, ConfigError, HandlerMissing, StoreUnavailable
from pillarbox.inbox import lot
from pillarbox.inbox.handling import Handling, Rules
from pillarbox.inbox.hint import Hint, Hinting
from pillarbox.inbox.outage import Outage
from pillarbox.inbox.programs import Reception, Unhandled, Wrap, forget, where
from pillarbox.inbox.received import Received, receive
from pillarbox.inbox.workers import Receiver
from pillarbox.ports import Clock, Subscriber
from pillarbox.pulse import Pulse
from pillarbox.telemetry.hooks import Hooks, Moment

__all__ = ["Consumer", "Receiver"]

ROOM = 1000
"""How many deliveries are held at most."""
BATCH = 100
"""How many are recorded and acknowledged together, unless TOGETHER seconds are over or nothing else is going on."""
TOGETHER = 0.05
FETCH_EVERY = 0.02
LOOK_EVERY = 0.25
CLAIM = 200
"""How many are out of the parking lot at most: whoever has them out has to say so again and again."""
HOLD_EVERY = lot.HOLD.total_seconds() / 4
IDLE = 0.5
"""How long to wait for a delivery when nothing is going on, in seconds; a stop waits no longer than that."""
FORGET_FIRST, FORGET_EVERY, FORGET_NEXT = 5.0, 60.0, 0.1
FORGET = 1000
"""So many seconds after the start, and then so often, ids go that are older than `retention.inbox`: a batch of so many,
and the next one soon, if there is more."""
DRAIN_QUIETLY = 1.0
"""Seconds of a stop after which is told what it waits for."""
JOINING = 10.0
"""Seconds that a broker may take to let us into a group, where it says that it has (`joined`). Kafka's take three."""


class Consumer(Daemon):
    """Applies what a subscriber delivers, each event's effects once, in order per aggregate."""

    def __init__(
        self,
        inbox: Receiver,
        open_subscriber: Callable[[], Subscriber],
        policy: RetryPolicy,
        concurrency: int,
        topics: Topics,
        clock: Clock,
        hooks: Hooks,
        *,
        timeout: timedelta | None = None,
        chance: Callable[[], float] = random.random,
        remembers: timedelta | None = None,
        unordered: bool = False,
        stores: bool = False,
        unhandled: Unhandled = "dead",
        open_hint: Callable[[], Hint] | None = None,
        open_wrap: Callable[[], Wrap | None] = lambda: None,
    ) -> None:
        super().__init__()
        if concurrency < 1:
            raise ConfigError(f"inbox.concurrency: {concurrency} is not a number of handlers above 0")
        if not inbox.handlers.types:
            raise ConfigError(
                f"the inbox {inbox.consumer!r} has no handler, so nothing would be handled:"
                " register one with @inbox.handler(…), and import the module that does"
            )
        if open_hint is not None and "stand" not in inbox.texts:
            raise ConfigError(
                "inbox.hint: this inbox is in a SQLite file, where a look-up costs less than one in Redis: leave it out"
            )
        self._inbox, self._open_subscriber, self._open_hint = inbox, open_subscriber, open_hint
        self._open_wrap = open_wrap
        self._rules = Rules(policy, topics, concurrency, timeout, chance, remembers, unordered, stores, unhandled)
        self._clock, self._hooks = clock, hooks
        self._passed_over: Counter[str] = Counter()
        self._left: Mapping[str, int] = {}
        self._flags = "--inbox"
        self._intake: Intake | None = None
        self._receptions: Counter[Reception] = Counter()

    @property
    def passed_over(self) -> Mapping[str, int]:
        """How many events of which types had no handler here, in the last run."""
        return self._passed_over

    @property
    def receptions(self) -> Mapping[str, int]:
        """What deliveries have become, in the last run: handled, copies, ignored."""
        return {name: self._receptions[reception] for name, reception in _COUNTED.items()}

    @property
    def left(self) -> Mapping[str, int]:
        """How many events stood aside in the inbox when `run_once` ended, by status: dead, blocked, retrying."""
        return self._left

    @property
    def is_slow(self) -> bool:
        """A handler has been at its event for so long that it may hang."""
        return self._intake is not None and self._intake.is_slow

    @property
    def flags(self) -> str:
        """With which flags a command finds what `left` counts."""
        return self._flags

    async def run(self) -> None:
        """Consume until `stop` is called or the task is cancelled."""
        await self._consume(once=False, patience=IDLE)

    async def run_once(self, patience: float = IDLE) -> int:
        """Consume until nothing has come for `patience` seconds; give how many events were handled."""
        return await self._consume(once=True, patience=patience)

    async def _consume(self, *, once: bool, patience: float) -> int:
        hint = self._open_hint and self._open_hint()
        parts = self._open_subscriber(), self._rules, self._clock, self._hooks, hint, self._open_wrap(), self.pulse
        self._intake = intake = Intake(self._inbox, *parts)
        self._passed_over, self._receptions = intake.passed_over, intake.receptions
        try:
            intake.begin()
            self._started.set()
            now = asyncio.get_running_loop().time
            quiet_since = begun = now()
            while not self.stopping and intake.missing is None:
                idle = await intake.turn(patience)
                self.pulse.turn()
                if once and intake.away is not None:
                    raise intake.away
                if not idle or (not intake.joined and now() < begun + JOINING):
                    quiet_since = now()
                elif once and now() >= quiet_since + patience:
                    break
            await intake.drain()
            if intake.missing is not None:
                raise intake.missing
            self._left = await intake.left() if once else {}
            self._flags = await intake.flags() if self._left else self._flags
        finally:
            self._intake = None
            await intake.close()
        return intake.handled


class Intake:
    """One run of a consumer, from its subscriber to its last acknowledgement."""

    def __init__(
        self,
        inbox: Receiver,
        subscriber: Subscriber,
        rules: Rules,
        clock: Clock,
        hooks: Hooks,
        hint: Hint | None,
        wrap: Wrap | None,
        pulse: Pulse,
    ) -> None:
        self._inbox, self._rules, self._clock, self._hooks = inbox, rules, clock, hooks
        self._subscriber = pulse.around(subscriber, "deliveries", "acknowledge")
        self._blocked: set[Line] = set()
        self._standing: Mapping[Line, int] = {}
        self._window: Window[Received] = Window(ROOM, lambda received: received.line, prefix_safe=True, size_of=_size)
        self._handling = pulse.around(Handling(inbox, rules, clock, hooks, self._blocked, wrap), "books")
        self._hinting = None if hint is None else self._hinting_with(hint)
        self._broker = Outage(hooks, Moment.BROKER_AWAY, Moment.BROKER_BACK)
        self._out: dict[str, Received] = {}  # the parked ones that are in the window, by key
        self._look_at = self._hold_at = self._fetch_at = self._record_at = 0.0
        self._forget_at = asyncio.get_running_loop().time() + FORGET_FIRST
        self._unstored: list[Received] = []
        self._unsettled: list[Settlement[Received]] = []
        self._unacknowledged: list[Delivery] = []
        self._told: Counter[Reception] = Counter()
        self._idle = False  # there was nothing to do at the last turn
        self._where: str | None = None
        self._waits = False  # something in the parking lot is due once there is nothing else to do

    def _hinting_with(self, hint: Hint) -> Hinting:
        handling = self._handling
        look = partial(handling.books, reading=True)
        return Hinting(hint, lambda: self._inbox.texts, look, handling.store, self._hooks)

    @property
    def joined(self) -> bool:
        """The broker would give us something, if there were anything."""
        return getattr(self._subscriber, "joined", True)

    @property
    def handled(self) -> int:
        """How many events were handled."""
        return self._handling.counts[Reception.HANDLED]

    @property
    def receptions(self) -> Counter[Reception]:
        """How many deliveries became what."""
        return self._handling.counts

    @property
    def passed_over(self) -> Counter[str]:
        """How many had no handler here, by type."""
        return self._handling.passed_over

    @property
    def missing(self) -> HandlerMissing | None:
        """Why it must not go on, if a handler is missing and somebody set that this ends it."""
        return self._handling.missing

    @property
    def away(self) -> BrokerUnavailable | StoreUnavailable | None:
        """What is away at the moment, if anything is."""
        error = self._handling.store.error or self._broker.error
        assert error is None or isinstance(error, BrokerUnavailable | StoreUnavailable)
        return error

    def begin(self) -> None:
        """Put the workers to work."""
        self._handling.start()

    async def turn(self, patience: float) -> bool:
        """Take in, hand over, collect, settle; True if there was nothing to do at all."""
        self._handling.check()
        await self._hold()
        await self._look()
        await self._forget()
        arrived = await self._deliveries(0 if self._busy else min(patience, IDLE))
        if self._rules.stores:
            await self._store(arrived)
        else:
            self._window.enter(arrived, self._clock.now())
        if not self._handling.store.pause:
            self._handling.give(self._window.ready(self._blocked))
        was_idle, self._idle = self._idle, not self._busy and not self.away
        if self._idle:
            if self._waits and not was_idle:
                self._look_at = 0.0
                return False
            return True
        await self._news()
        await self._settle()
        return False

    @property
    def _busy(self) -> bool:
        return bool(self._window or self._unstored or self._unsettled or self._unacknowledged)

    async def drain(self) -> None:
        """Let the handlers that run finish, and acknowledge what can be acknowledged."""
        self._handling.drain()
        tells_at: float | None = DRAIN_QUIETLY
        while self._window.flying:
            try:
                async with asyncio.timeout(tells_at):
                    await self._handling.answered.wait()
            except TimeoutError:
                tells_at = None
                self._tell_what_is_waited_for()
                continue
            self._collect()
        await self._record()
        if self._out:
            with suppress(StoreUnavailable):  # then others wait for them a little longer
                await self._handling.books(lot.let_go(self._inbox.texts, self._out, self._clock.now()))

    def _tell_what_is_waited_for(self) -> None:
        """Whoever stops a consumer should know why it goes on, and what is in their hand."""
        if running := self._handling.longest:
            seconds = round(asyncio.get_running_loop().time() - running.since)
            self._hooks.reach(Moment.HANDLER_AWAITED, **running.received.facts, seconds=seconds)

    @property
    def is_slow(self) -> bool:
        """A handler takes as long as one does that hangs."""
        return self._handling.is_slow

    async def left(self) -> Mapping[str, int]:
        """Count what stands aside, by status."""
        return await self._handling.books(lot.left(self._inbox.texts), reading=True)

    async def flags(self) -> str:
        """Give the flags with which a command finds the inbox; asked for once something has failed."""
        if self._where is None:
            with suppress(StoreUnavailable):
                self._where = await self._handling.books(where(self._inbox.texts), reading=True)
        return self._where or "--inbox"

    async def close(self) -> None:
        """End the workers and leave the broker."""
        try:
            await self._handling.close()
        finally:
            try:
                await self._subscriber.close()
            finally:
                if self._hinting:
                    await self._hinting.close()

    async def _look(self) -> None:
        """Refresh what is blocked, and take what is due out of the parking lot."""
        now = asyncio.get_running_loop().time()
        if now < self._look_at or self._handling.store.pause:
            return
        texts, now_at = self._inbox.texts, self._clock.now()
        try:
            out = {received.line for received in self._out.values()}
            seen = await self._handling.books(lot.look(texts, now_at, out), reading=True)
            if seen.overdue:
                await self._give_up(seen.overdue)
            room = min(self._window.room, CLAIM - len(self._out))
            is_due = seen.is_due and room > 0
            claim = lot.claim(texts, now_at, room, dict(self._out), idle=self._idle) if is_due else None
            due = await self._handling.books(claim) if claim is not None else []
        except StoreUnavailable:
            return
        self._waits = seen.is_due and not due
        self._look_at = now + LOOK_EVERY
        self._hold_at = self._hold_at if self._out else now + HOLD_EVERY
        if seen.standing != self._standing:
            check_order(seen.standing.items(), self._rules.topics, f" {await self.flags()}")
            self._standing = seen.standing
        self._blocked.clear()
        self._blocked.update(seen.standing)
        self._blocked.update(item.line for item, verdict in self._unsettled if item.line and _blocks(verdict))
        self._out.update((received.key, received) for received in due)
        if self._hinting:
            self._hinting.place(due)
        self._window.enter(due, self._clock.now())

    async def _hold(self) -> None:
        """Say in time that what is out of the parking lot still is."""
        now = asyncio.get_running_loop().time()
        if not self._out or now < self._hold_at or self._handling.store.pause:
            return
        self._hold_at = now + HOLD_EVERY
        with suppress(StoreUnavailable):  # said already; whoever takes them meanwhile finds them done, or does them
            await self._handling.books(lot.hold(self._inbox.texts, self._out, self._clock.now()))

    async def _forget(self) -> None:
        """Delete what need not be known any more: there may be no relay in this database that would."""
        now, kept = asyncio.get_running_loop().time(), self._rules.remembers
        if kept is None or now < self._forget_at or self._handling.store.pause:
            return
        self._forget_at = now + FORGET_EVERY
        with suppress(StoreUnavailable):
            if await self._handling.books(forget(self._inbox.texts, kept, FORGET)):
                self._forget_at = now + FORGET_NEXT

    async def _give_up(self, overdue: Sequence[lot.Head]) -> None:
        """Tell of numbers that were waited for long enough."""
        await self._handling.books(lot.give_up(self._inbox.texts, overdue))
        for head in overdue:
            self._hooks.reach(Moment.NUMBER_MISSING, **head.facts)

    async def _store(self, arrived: Sequence[Received]) -> None:
        """Keep aside what has arrived, and only then let it be acknowledged."""
        for received in arrived:
            if received.ignored:
                self._handling.pass_over(received)
        self._unstored += arrived
        if not self._unstored or self._handling.store.pause:
            return
        copies = sum(map(self._handling.is_known, self._unstored))
        kept = [one for one in self._unstored if not (one.ignored or self._handling.is_known(one))]
        if kept:
            try:
                store = lot.store(self._inbox.texts, kept, self._clock.now(), self._blocks_when_dead)
                await self._handling.books(store)
            except StoreUnavailable:
                return
            self._hooks.reach(Moment.STORED, count=len(kept))
            await self._tell([Settlement(one, Dead(words_of(one.hopeless))) for one in kept if one.hopeless])
            self._look_at = 0.0
        self._handling.counts[Reception.COPY] += copies
        self._unacknowledged += [received.delivery for received in self._unstored]
        self._unstored.clear()

    def _blocks_when_dead(self, received: Received) -> bool:
        return self._rules.topics[received.delivery.topic].when_dead == "block"

    async def _deliveries(self, patience: float) -> Sequence[Received]:
        """Take further deliveries off the broker; wait only if nothing else is going on."""
        now = asyncio.get_running_loop().time()
        room = ROOM - len(self._unstored) if self._rules.stores else self._window.room
        if self._broker.pause or not room or (self._busy and now < self._fetch_at):
            return ()
        try:
            deliveries = await self._subscriber.deliveries(room, patience)
        except BrokerUnavailable as error:
            self._broker.struck(error)
            return ()
        self._fetch_at = now + FETCH_EVERY
        self._broker.over()
        if deliveries:
            self._hooks.reach(Moment.DELIVERED, count=len(deliveries))
        handlers, topics, ignoring = self._inbox.handlers, self._rules.topics, self._rules.unhandled == "ignore"
        arrived = [receive(delivery, handlers, topics, ignoring=ignoring) for delivery in deliveries]
        if self._hinting:
            await self._hinting.recognise(arrived)
        return arrived

    async def _news(self) -> None:
        """Wait for an answer, but not so long that new deliveries wait for a slow handler, or a pause is slept over."""
        pauses = max(self._handling.store.pause, self._broker.pause)
        try:
            async with asyncio.timeout(FETCH_EVERY if self._window.flying or not pauses else min(IDLE, pauses)):
                await self._handling.answered.wait()
        except TimeoutError:
            pass  # no answer yet: there may be deliveries meanwhile, or a pause is over

    async def _settle(self) -> None:
        """Collect verdicts; record them when something failed, when it is time, or when nothing else is going on."""
        now = asyncio.get_running_loop().time()
        if not self._unsettled:
            self._record_at = now + TOGETHER
        failed = self._collect()
        if failed or len(self._unsettled) >= BATCH or now >= self._record_at or not self._window.flying:
            await self._record()

    def _collect(self) -> bool:
        """Take the workers' verdicts; tell whether one of them is a failure, or others of its kind wait for it."""
        settled = [*self._window.settle(self._handling.answers(), self._blocked), *self._give_back()]
        self._unsettled += settled
        # Blocked from now on, not only once it is recorded: the next of its line could be ready before that.
        self._blocked.update(item.line for item, verdict in settled if item.line and _blocks(verdict))
        return any(isinstance(verdict, RetryAt | Dead) or item.deadly for item, verdict in settled)

    def _give_back(self) -> Sequence[Settlement[Received]]:
        """Let go of lines whose head somebody else has put back: what we have of them stands behind it again."""
        lines = self._handling.taken_away()
        return self._window.recall(lambda item: item.parked and item.line in lines) if lines else ()

    async def _record(self) -> None:
        """Park what failed, then acknowledge the settled prefix; what cannot be done now is done later, in order."""
        if self._unsettled and await self._unstore() and await self._park():
            self._unacknowledged += [item.delivery for item, _ in self._unsettled if not item.parked]
            for item, _ in self._unsettled:
                self._out.pop(item.key, None)
            if len(self._out) <= CLAIM // 2 and any(item.parked for item, _ in self._unsettled):
                self._look_at = 0.0  # more may be due now
            if self._hinting:
                await self._hinting.note(item for item, _ in self._unsettled)
            self._unsettled.clear()
        await self._acknowledge()

    async def _park(self) -> bool:
        """Keep aside what failed; False if the store is away."""
        failed = [one for one in self._unsettled if not isinstance(one.verdict, Published)]
        if not failed:
            return True
        if self._handling.store.pause:
            return False
        try:
            park = lot.park(self._inbox.texts, failed, self._clock.now(), unordered=self._rules.unordered)
            await self._handling.books(park)
        except StoreUnavailable:
            return False
        self._hooks.reach(Moment.PARKED, count=len(failed))
        await self._tell(failed)
        if any(isinstance(verdict, Blocked) or received.abandoned for received, verdict in failed):
            self._look_at = 0.0  # one of them may be the number that its line waits for, or is due at once
        return True

    async def _unstore(self) -> bool:
        """Let go of what was stored and is handled; False if the store is away."""
        done = [one.key for one, verdict in self._unsettled if one.stored and isinstance(verdict, Published)]
        if not done:
            return True
        if self._handling.store.pause:
            return False
        try:
            await self._handling.books(lot.unstore(self._inbox.texts, done))
        except StoreUnavailable:
            return False
        return True

    async def _tell(self, failed: Sequence[Settlement[Received]]) -> None:
        for received, verdict in failed:
            facts = received.facts
            if received.brief is not None and isinstance(verdict, RetryAt | Dead):
                facts["show"] = f"pillarbox events show {quote(received.key)} {await self.flags()}"
            if isinstance(verdict, RetryAt):
                self._hooks.reach(Moment.EVENT_RETRYING, error=received.brief or verdict.error, at=verdict.at, **facts)
            elif isinstance(verdict, Dead) and received.numbering in ("gap", "conflict"):
                await self._tell_number(received, verdict)
            elif isinstance(verdict, Dead):
                self._hooks.reach(Moment.EVENT_DEAD, error=received.brief or verdict.error, **facts)

    async def _tell_number(self, received: Received, verdict: Dead) -> None:
        """Tell of an aggregate that stands because of a number; where there is no order, a gap is told of later."""
        if received.numbering == "gap" and self._rules.unordered:
            return
        moment = Moment.NUMBER_MISSING if received.numbering == "gap" else Moment.NUMBER_CONFLICT
        facts = received.facts | {"aggregate": received.aggregate, "number": received.number, "error": verdict.error}
        if moment is Moment.NUMBER_CONFLICT:
            facts["show"] = f"pillarbox dead list {await self.flags()}"
        self._hooks.reach(moment, **facts)

    async def _acknowledge(self) -> None:
        if not self._unacknowledged or self._broker.pause:
            return
        try:
            await self._subscriber.acknowledge(self._unacknowledged)
        except BrokerUnavailable as error:
            self._broker.struck(error)
            return
        self._broker.over()
        count = len(self._unacknowledged)
        self._unacknowledged.clear()
        since, self._told = self._handling.counts - self._told, self._handling.counts.copy()
        facts = {name: since[result] for name, result in _COUNTED.items()}
        self._hooks.reach(Moment.ACKNOWLEDGED, count=count, **facts)


_COUNTED = {"handled": Reception.HANDLED, "copies": Reception.COPY, "ignored": Reception.IGNORED}


def _blocks(verdict: object) -> bool:
    return not isinstance(verdict, Published) and getattr(verdict, "blocks", True)


def _size(received: Received) -> int:
    return len(received.delivery.message.body)
