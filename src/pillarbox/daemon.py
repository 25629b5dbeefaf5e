"""Daemon: what Relay and Consumer have in common: run, stop gracefully, live beside an application or as a process."""

import asyncio
import gc
import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from pillarbox.pulse import Pulse
from pillarbox.systemd import Systemd

COLLECT_EVERY = 50_000


def collect_rarely() -> None:
    """Let the collector of cycles look seldom, and not at what is there already, in a process that is all ours.

    Thousands of events come and go together, none of them in a cycle: looking through them took a third of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, *gc.get_threshold()[1:])


class Daemon(ABC):
    """A program that runs until it is stopped. `async with daemon:` runs it beside something else.

    A subclass sets `_started` once it has everything that it needs, and lets its pulse beat.
    """

    def __init__(self) -> None:
        self._stop, self._started = asyncio.Event(), asyncio.Event()
        self._beside: asyncio.Task[None] | None = None
        self._systemd: Systemd | None = None
        self.pulse = Pulse()

    @abstractmethod
    async def run(self) -> None:
        """Run until `stop` is called or the task is cancelled."""

    def stop(self) -> None:
        """Finish what is in flight, hand over, and return from `run`. Safe to call twice, from the loop's thread."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def started(self) -> bool:
        """It has everything that it needs, or lives beside something that need not wait for it."""
        return self._started.is_set()

    def run_forever(self) -> None:
        """Block and run. SIGTERM or SIGINT drains and hands over; a second one stops at once.

        The process is ours, so whoever started it is told how it fares, if NOTIFY_SOCKET says that they want to be.
        """
        collect_rarely()
        asyncio.run(self._until_signalled())

    async def _until_signalled(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        async with self._supervised():
            await self.run()

    @asynccontextmanager
    async def _supervised(self) -> AsyncIterator[None]:
        """Tell systemd meanwhile, if it is there, when we are ready, that we live, and that we stop."""
        systemd = self._systemd = Systemd.of(os.environ)
        if systemd is None:
            yield
            return
        tasks = [asyncio.create_task(telling) for telling in (self._tell_ends(systemd), self._tell_life(systemd))]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._systemd = None
            systemd.close()

    async def _tell_ends(self, systemd: Systemd) -> None:
        await self._started.wait()
        systemd.tell("READY=1")
        await self._stop.wait()
        systemd.tell("STOPPING=1", "STATUS=draining")

    async def _tell_life(self, systemd: Systemd) -> None:
        while systemd.watchdog is not None:
            if self.pulse.beats or self.stopping:  # how long draining may take is TimeoutStopSec's to say
                systemd.tell("WATCHDOG=1")
            await asyncio.sleep(systemd.watchdog / 2)

    def say(self, status: str) -> None:
        """Let systemd show how things are, if it is there; a line without secrets."""
        if self._systemd is not None and not self.stopping:
            self._systemd.tell(f"STATUS={status}")

    def _signalled(self) -> None:
        if self.stopping:
            # At once means at once: a handler's thread may hang, and Python would wait for it.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
        self.stop()

    async def __aenter__(self) -> Self:
        self._beside = asyncio.create_task(self.run(), name=type(self).__name__)
        started = asyncio.create_task(self._started.wait())
        try:
            await asyncio.wait({self._beside, started}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._beside.cancel()
            raise
        finally:
            started.cancel()
        if self._beside.done():
            self._beside.result()  # it could not even begin: say so now, not when the block ends
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._beside is not None
        self.stop()
        await self._beside
