"""Reading ahead: the next entries are read in the background while these are published. Used by the pump alone."""

import asyncio
from collections.abc import Callable, Sequence

from pillarbox.core.entry import Entry
from pillarbox.core.pacing import Pacing
from pillarbox.errors import StoreUnavailable
from pillarbox.ports import Source
from pillarbox.telemetry.hooks import Hooks, Moment


class ReadAhead:
    """One read at a time; when the last one found nothing, it naps before the next."""

    def __init__(self, source: Source, batch: int, pacing: Pacing, hooks: Hooks) -> None:
        self._source, self._batch, self._pacing, self._hooks = source, batch, pacing, hooks
        self._task: asyncio.Task[Sequence[Entry]] | None = None
        self._bell = asyncio.Event()
        self._nap_first = False
        self._away = False
        self.empty = False
        """The last read found nothing, and nothing was in flight."""
        self.held = False
        """Nothing more is to be read for now."""

    @property
    def task(self) -> asyncio.Task[Sequence[Entry]] | None:
        return self._task

    def go_on(self, room: Callable[[], int], in_flight: Callable[[], int]) -> None:
        """Start the next read, unless one goes on or there is too little room to be worth one."""
        if self._task is None and not self.held and room() >= max(1, self._batch // 8):
            self._task = asyncio.create_task(self._read(room, in_flight), name="read ahead")

    def take(self) -> Sequence[Entry]:
        """Give what the read has brought, if it is done."""
        if self._task is None or not self._task.done():
            return ()
        task, self._task = self._task, None
        return task.result()

    def ring(self) -> None:
        """End the nap, if there is one."""
        self._bell.set()

    def forget(self) -> None:
        """Let go of a read that goes on; what it brings is not wanted any more."""
        if self._task is not None:
            self._task.cancel()
        self._task, self._nap_first, self.empty = None, False, False

    async def _read(self, room: Callable[[], int], in_flight: Callable[[], int]) -> Sequence[Entry]:
        if self._nap_first:
            await self._nap(self._pacing.quiet())
        if self.held:
            return ()
        alone = not in_flight()  # a source may wait for what is in flight before it gives out more
        try:
            entries = await self._source.entries(min(room(), self._batch))
        except StoreUnavailable as error:
            self._note_away(error)
            return ()
        self._note_away(None)
        self._nap_first = not entries
        self.empty = alone and not entries
        if entries:
            self._pacing.busy()
            self._hooks.reach(Moment.ENTRIES_READ, count=len(entries))
        return entries

    async def _nap(self, seconds: float) -> None:
        waiting = (asyncio.create_task(self._wait(seconds)), asyncio.create_task(self._bell.wait()))
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a wait that fails must not become a nap that never lasts
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            self._bell.clear()

    async def _wait(self, seconds: float) -> None:
        try:
            await self._source.wait(seconds)
        except StoreUnavailable:  # the next read says so
            await asyncio.sleep(seconds)

    def _note_away(self, error: StoreUnavailable | None) -> None:
        if error is not None and not self._away:
            self._hooks.reach(Moment.STORE_AWAY, error=str(error))
        if error is None and self._away:
            self._hooks.reach(Moment.STORE_BACK)
        self._away = error is not None
        self._nap_first = self._nap_first or self._away
