"""Watch: what a relay does while somebody else carries the events: follow what that one confirms, and prune."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from pillarbox.daemon import Daemon
from pillarbox.errors import StoreError, StoreUnavailable
from pillarbox.ports import Retention, Watched, WatchingStore
from pillarbox.relay.chores import MANY, PRUNE_EVERY, PRUNE_FIRST
from pillarbox.settings import Settings
from pillarbox.telemetry.hooks import Hooks, Moment

LOOK_EVERY = timedelta(seconds=1)
"""Seldom enough to cost nothing. Often, because a slot is known by what was seen of it shortly before."""


class Watch(Daemon):
    """Keeps status and retention of an outbox whose events the reader of a replication slot carries.

    It publishes nothing. Several at once do the work of one.
    """

    def __init__(self, open_store: Callable[[], WatchingStore], settings: Settings, hooks: Hooks) -> None:
        super().__init__()
        self._open_store, self._settings, self._hooks = open_store, settings, hooks
        self._opened = self._checked = self._away = False
        self._told: tuple[str, str | None] | None = None

    async def run(self) -> None:
        """Watch until `stop` is called or the task is cancelled. Raises StoreError if relays carry the events."""
        store = self._open_store()
        try:
            await self._watch(store)
        finally:
            await self._leave(store)

    async def _watch(self, store: WatchingStore) -> None:
        now, lease = asyncio.get_running_loop().time, self._settings.relay.lease.total_seconds()
        renew_at, prune_at = now(), now() + PRUNE_FIRST.total_seconds()
        while not self.stopping:
            try:
                with self.pulse.waiting():
                    await self._look(store)
                    if now() >= renew_at:
                        await store.renew(None)
                        renew_at = now() + lease / 3
                    if now() >= prune_at:
                        more = await self._prune(store) >= MANY
                        prune_at = now() + (0 if more else PRUNE_EVERY.total_seconds())
                self._note_away(None)
            except StoreUnavailable as error:
                self._note_away(error)
            self._started.set()
            await self._sleep(LOOK_EVERY.total_seconds())

    async def _look(self, store: WatchingStore) -> None:
        if not self._opened:
            await store.open()
            self._opened = True
        if not self._checked:
            await store.check()
            self._checked = True
        watched = await store.watch()
        if watched is None:
            raise StoreError(
                "relays carry the events of this outbox: `pillarbox relay run` starts one; if the reader of a"
                " replication slot is to carry them, say which one with `pillarbox source slot NAME`"
            )
        self._tell(watched)

    def _tell(self, watched: Watched) -> None:
        """Tell what is new."""
        told, self._told = self._told, (watched.slot, watched.doubt)
        if watched.settled:
            self._hooks.reach(Moment.SLOT_PASSED, slot=watched.slot, count=watched.settled)
        if told == self._told:
            return
        if watched.doubt is None:
            self._hooks.reach(Moment.SLOT_WATCHED, slot=watched.slot)
        else:
            self._hooks.reach(Moment.SLOT_DOUBTED, slot=watched.slot, doubt=watched.doubt)

    async def _prune(self, store: WatchingStore) -> int:
        kept = self._settings.retention
        pruned = await store.prune(Retention(kept.published, kept.archive, kept.inbox))
        self._hooks.reach(Moment.PRUNED, count=pruned)
        return pruned

    def _note_away(self, error: StoreUnavailable | None) -> None:
        if error is not None:
            self._hooks.reach(Moment.STORE_AWAY, error=str(error))
        elif self._away:
            self._hooks.reach(Moment.STORE_BACK)
        self._away = error is not None

    async def _leave(self, store: WatchingStore) -> None:
        """Say that nobody watches any more, as far as we are concerned."""
        try:
            if self._checked:
                await store.release()
        except StoreUnavailable as error:  # our row runs out by itself
            self._note_away(error)
        finally:
            await store.close()

    async def _sleep(self, seconds: float) -> None:
        """Sleep, but no longer than until we are asked to stop."""
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            pass  # nobody asked: the time is over
