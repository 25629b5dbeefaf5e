"""Chores: what a relay does beside pumping: keep its lease, keep its fair share of the lanes, prune, send a canary."""

import asyncio
from datetime import timedelta

from pillarbox.core.routing import LANES
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.ports import Holding, Retention, Store
from pillarbox.relay.canary import Canary
from pillarbox.relay.pump import Pump
from pillarbox.telemetry.hooks import Hooks, Moment

LOOK_EVERY = timedelta(seconds=1)
"""How soon a relay that is not alone notices that another one has died."""
STEP = timedelta(milliseconds=250)
PRUNE_FIRST = timedelta(seconds=5)
PRUNE_EVERY = timedelta(minutes=1)
MANY = 1_000
"""Behind a batch of so many rows the next one is pruned soon; what is less waits for its minute."""
FIRST_LANE = 0


class Lease:
    """How long our lanes are certainly ours, by our own monotonic clock, counted from before each request."""

    def __init__(self, lasts: timedelta) -> None:
        self.lasts = lasts.total_seconds()
        self._until = 0.0

    def starts(self, asked_at: float) -> None:
        """The store has granted it; `asked_at` is the loop's time before we asked."""
        self._until = asked_at + self.lasts

    def check(self) -> None:
        """Raise LaneLost if it has run out."""
        if asyncio.get_running_loop().time() >= self._until:
            raise LaneLost("the lease ran out before it could be renewed; another relay may hold the lanes now")


class Chores:
    """Runs beside the pump as long as lanes are held."""

    def __init__(
        self,
        store: Store,
        pump: Pump,
        lease: Lease,
        retention: Retention,
        hooks: Hooks,
        canary: Canary | None = None,
    ) -> None:
        self._store, self._pump, self._lease, self._retention, self._hooks = store, pump, lease, retention, hooks
        # Of all relays, the one with the first lane sends the canary.
        self._canary, self._has_first_lane = canary, False

    async def run(self) -> None:
        """Do the chores until cancelled. Raises LaneLost if another relay has taken a lane."""
        now = asyncio.get_running_loop().time
        # The first renewal comes soon: only it tells whether others are at work.
        soon = min(self._lease.lasts / 3, LOOK_EVERY.total_seconds())
        renew_at, prune_at = now() + soon, now() + PRUNE_FIRST.total_seconds()
        canary_at = now()
        told = self._pump.trouble
        while True:
            await asyncio.sleep(min(STEP.total_seconds(), self._lease.lasts / 10))
            try:
                if now() >= renew_at or (self._pump.trouble is None) != (told is None):
                    told = self._pump.trouble
                    holding = await self._renew()
                    renew_at = now() + self._renew_every(holding)
                    await self._balance(holding)
                if now() >= prune_at:  # a batch at a time, for the lease must be renewed meanwhile
                    prune_at = now() + PRUNE_EVERY.total_seconds()
                    if await self._prune() >= MANY:
                        prune_at = now()
                if self._canary is not None and self._has_first_lane and now() >= canary_at:
                    canary_at = now() + self._canary.look_every
                    if await self._canary.look():
                        self._pump.ring()
            except StoreUnavailable as error:  # the lease runs on, and out
                self._hooks.reach(Moment.STORE_AWAY, error=str(error))

    def _renew_every(self, holding: Holding) -> float:
        """Where others are at work, look often enough to take over soon from one that dies."""
        third = self._lease.lasts / 3
        return third if holding.share == LANES else min(third, LOOK_EVERY.total_seconds())

    async def _renew(self) -> Holding:
        asked_at = asyncio.get_running_loop().time()
        holding = await self._store.renew(self._pump.trouble)
        self._lease.starts(asked_at)
        self._has_first_lane = FIRST_LANE in holding.lanes
        self._hooks.reach(Moment.LEASE_RENEWED, lanes=len(holding.lanes))
        return holding

    async def _balance(self, holding: Holding) -> None:
        """Move towards the fair share: take what is free, or drain and give back what is too much."""
        if len(holding.lanes) < holding.share:
            taken = await self._store.take()
            self._note_share(len(holding.lanes), taken)
            self._pump.suspect(taken.behind)
            self._pump.ring()
        elif surplus := sorted(holding.lanes)[holding.share :]:
            try:
                if await self._pump.holds_still(self._lease.lasts / 2):
                    await self._store.release(surplus)
                    self._hooks.reach(Moment.LANES_SHARED, lanes=holding.share)
            finally:
                self._pump.go_on()

    def _note_share(self, before: int, holding: Holding) -> None:
        if len(holding.lanes) != before:
            self._hooks.reach(Moment.LANES_SHARED, lanes=len(holding.lanes))

    async def _prune(self) -> int:
        pruned = await self._store.prune(self._retention)
        self._hooks.reach(Moment.PRUNED, count=pruned)
        return pruned
