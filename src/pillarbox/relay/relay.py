"""The relay: takes lanes, pumps while it holds them, hands over when it is stopped, starts again when it loses them."""

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from pillarbox.core.pacing import Pacing
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import LANES, Topics
from pillarbox.daemon import Daemon
from pillarbox.errors import LaneLost, PillarboxError, StoreUnavailable
from pillarbox.ports import Clock, Publisher, Retention, Stats, Store
from pillarbox.relay.canary import Canary
from pillarbox.relay.chores import Chores, Lease
from pillarbox.relay.judge import Rules
from pillarbox.relay.pump import Pump
from pillarbox.settings import Settings
from pillarbox.telemetry.hooks import Hooks, Moment

OPEN_EVERY = 1.0
"""How often a relay that starts while the database is away tries again, in seconds."""
TAKE_EVERY = 0.1
"""How often a relay without lanes looks for free ones, in seconds: a dead holder is replaced at once."""


class Parts(NamedTuple):
    """What a relay stands between."""

    store: Store
    publisher: Publisher


class Relay(Daemon):
    """Carries every committed event from an outbox to a broker, in order per aggregate."""

    def __init__(
        self,
        open_parts: Callable[[], Parts],
        settings: Settings,
        clock: Clock,
        hooks: Hooks,
        chance: Callable[[], float] = random.random,
    ) -> None:
        super().__init__()
        settings.check_relay()
        self._open_parts, self._settings, self._clock, self._hooks = open_parts, settings, clock, hooks
        self._chance = chance
        self._pump: Pump | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Carry events until `stop` is called or the task is cancelled."""
        await self._work(once=False)

    async def run_once(self) -> int:
        """Carry events until the outbox is empty; give how many were published. For cron jobs and tests."""
        return await self._work(once=True)

    def stop(self) -> None:
        super().stop()
        if self._pump is not None:
            self._pump.drain()

    def ring(self) -> None:
        """Look at once whether there is something new: call it after a commit in the same process, from any thread."""
        pump, loop = self._pump, self._loop
        if pump is not None and loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(pump.ring)

    async def _work(self, *, once: bool) -> int:
        store, publisher = self._open_parts()
        lease = Lease(self._settings.relay.lease)
        self._loop = asyncio.get_running_loop()
        source, ends = self.pulse.around(store, "entries", "wait", "settle"), self.pulse.around(publisher, "outcomes")
        pump = self._pump = Pump(source, ends, self._rules(), self._clock, self._hooks, lease.check)
        try:
            await self._open(store, once)
            await self._hold_and_pump(store, pump, lease, once)
        finally:
            self._pump = None
            await pump.close()
            await publisher.close()
            await store.close()
        return pump.published

    async def _open(self, store: Store, once: bool) -> None:
        """Connect and check the tables; unless it is for once, a database that is away is waited for."""
        while not self.stopping:
            try:
                with self.pulse.waiting():
                    await store.open()
                    await store.check()
                break
            except StoreUnavailable as error:
                if once:
                    raise
                self._hooks.reach(Moment.STORE_AWAY, error=str(error))
                self._started.set()  # what it lives beside need not wait
                await self._sleep(OPEN_EVERY)
        self._started.set()

    async def _hold_and_pump(self, store: Store, pump: Pump, lease: Lease, once: bool) -> None:
        """Take lanes and pump until drained; after a loss of lanes forget everything and begin again."""
        while not self.stopping:
            try:
                if not await self._take(store, pump, lease, once):
                    return
                await self._carry(store, pump, lease, once)
                if once:
                    await self._carry_what_others_leave(store, pump, lease)
                await self._let_go(store)
                return
            except LaneLost as lost:
                self._hooks.reach(Moment.LANES_LOST, error=str(lost))
                pump.forget()
                await self._let_go(store)
            except (asyncio.CancelledError, PillarboxError):
                # An end that somebody can mend. Only what nobody foresaw counts as a death, and an event may be guilty.
                self._stop.set()  # one try, no more: whoever cancels, or runs it once, does not want to wait
                await self._let_go(store)
                raise

    async def _take(self, store: Store, pump: Pump, lease: Lease, once: bool) -> bool:
        """Wait until we hold lanes; False if we are stopped before."""
        loop = asyncio.get_running_loop()
        patience, waits = loop.time() + lease.lasts + 1, False
        while not self.stopping:
            asked_at = loop.time()
            try:
                with self.pulse.waiting():
                    lanes, _, behind = await store.take()
                if lanes:
                    lease.starts(asked_at)
                    if not once:  # which ends as soon as nothing more can go
                        pump.suspect(behind)
                    self._hooks.reach(Moment.LANES_TAKEN, lanes=len(lanes))
                    return True
                if not waits:
                    await self._tell_whom_it_awaits(store, lease, once)
                waits = True
                if once and loop.time() > patience:
                    raise StoreUnavailable("another relay is at work on this outbox, so there is nothing to do here")
            except StoreUnavailable as error:
                if once:
                    raise
                self._hooks.reach(Moment.STORE_AWAY, error=str(error))
            await self._sleep(TAKE_EVERY)
        return False

    async def _tell_whom_it_awaits(self, store: Store, lease: Lease, once: bool) -> None:
        """Tell at once that others hold what we want; who runs it once, and looks on, wants to know who they are."""
        facts: dict[str, object] = {}
        if once:
            holders = [relay.owner for relay in (await store.stats()).relays if relay.lanes]
            facts = {"relays": tuple(holders), "patience": timedelta(seconds=lease.lasts + 1)}
        self._hooks.reach(Moment.LANES_AWAITED, **facts)

    async def _carry_what_others_leave(self, store: Store, pump: Pump, lease: Lease) -> None:
        """Carry what waits in the lanes of others as soon as those are free; raise if they stay at work."""
        loop = asyncio.get_running_loop()
        patience, had = loop.time() + lease.lasts + 1, len((await store.take()).lanes)
        if had < LANES and _waiting(await store.stats()):
            await self._tell_whom_it_awaits(store, lease, once=True)
        while had < LANES and not self.stopping and _waiting(await store.stats()):
            if loop.time() > patience:
                raise StoreUnavailable(
                    f"published {pump.published}; the rest was left to another relay, which is at work on"
                    f" {LANES - had} of {LANES} lanes"
                )
            await self._sleep(TAKE_EVERY)
            asked_at = loop.time()
            lanes = len((await store.take()).lanes)
            lease.starts(asked_at)
            if lanes > had:
                await self._carry(store, pump, lease, once=True)
            had = lanes

    async def _let_go(self, store: Store) -> None:
        """Release the lanes, and make the store forget what it gave out: taking them starts from what is stored."""
        while True:
            try:
                with self.pulse.waiting():
                    await store.release()
                self._hooks.reach(Moment.LANES_RELEASED)
                return
            except StoreUnavailable as error:
                self._hooks.reach(Moment.STORE_AWAY, error=str(error))
                if self.stopping:
                    return  # the lease runs out by itself
                await asyncio.sleep(TAKE_EVERY)

    async def _carry(self, store: Store, pump: Pump, lease: Lease, once: bool) -> None:
        """Pump and do the chores side by side, until the pump is done or one of them fails."""
        settings = self._settings
        retention = Retention(settings.retention.published, settings.retention.archive, settings.retention.inbox)
        pumping = asyncio.create_task(pump.run(once=once), name="pump")
        canary = None if once else self._canary(store)
        chores = asyncio.create_task(Chores(store, pump, lease, retention, self._hooks, canary).run(), name="chores")
        stopped = asyncio.create_task(self._drained_in_time(pump), name="stop")
        tasks = (pumping, chores, stopped)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def _canary(self, store: Store) -> Canary | None:
        health = self._settings.health
        if health.canary is None:
            return None
        return Canary(store, health.canary_topic, health.canary, self._clock, self._hooks)

    async def _drained_in_time(self, pump: Pump) -> None:
        """Return when we were asked to stop and the pump had time enough to drain."""
        await self._stop.wait()
        pump.drain()
        await asyncio.sleep(self._settings.relay.publish_timeout.total_seconds())

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but no longer than until we are asked to stop."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            pass  # nobody asked: the time is over

    def _rules(self) -> Rules:
        relay = self._settings.relay
        return Rules(
            batch=relay.batch,
            topics=Topics(self._settings.topics),
            policy=RetryPolicy(relay.retries, relay.backoff_first, relay.backoff_longest),
            idle=lambda: Pacing(relay.idle_first, relay.idle_longest),
            patience=lambda: Pacing(timedelta(milliseconds=100), timedelta(seconds=5)),
            chance=self._chance,
        )


def _waiting(stats: Stats) -> bool:
    """Tell whether there are events that nobody has paused."""
    paused = {pause.topic for pause in stats.pauses}
    return any(topic not in paused for topic in stats.pending_by_topic)
