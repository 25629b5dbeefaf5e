"""A clock that moves when told, and an event loop that moves it: waiting costs no time, and every run is the same.

>>> import asyncio
>>> async def an_hour_later():
...     before = clock.now()
...     await asyncio.sleep(3600)
...     return clock.now() - before
>>> clock = ManualClock()
>>> str(simulate(an_hour_later(), clock))
'1:00:00'
"""

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, TypeVarTuple

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class ManualClock:
    """A wall clock that stands still until somebody moves it."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self.elapsed = 0.0
        """Seconds since the start."""

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.elapsed)

    def advance(self, by: timedelta | float) -> None:
        """Move on by a timedelta or by seconds."""
        self.elapsed += by.total_seconds() if isinstance(by, timedelta) else by


class _Jump(selectors.BaseSelector):
    """A selector that never waits: where the loop would sleep until its next timer, the clock jumps there."""

    def __init__(self, clock: ManualClock) -> None:
        self._real, self._clock = selectors.DefaultSelector(), clock
        self._registered = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # The loop's own waking pipe alone is not worth a call of the system: whoever wakes it has queued something.
        events = self._real.select(0) if self._registered > 1 or timeout is None else []
        if events or timeout == 0:
            return events
        if timeout is None:
            raise RuntimeError("the simulation is stuck: every task waits for something that nobody will do")
        self._clock.advance(timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self._registered += 1
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        self._registered -= 1
        return self._real.unregister(fileobj)

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is a ManualClock's."""

    def __init__(self, clock: ManualClock) -> None:
        self._manual = clock
        super().__init__(_Jump(clock))

    def time(self) -> float:
        return self._manual.elapsed

    # What simulations do most, without what only real time and real sockets need: half of the cost of a run.

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        self._check_closed()  # type: ignore[attr-defined]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        if not ready or (timers and (timers[0].cancelled() or timers[0].when() <= self._manual.elapsed)):
            super()._run_once()  # type: ignore[misc]
            return
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()


def simulate(main: Coroutine[Any, Any, R], clock: ManualClock) -> R:
    """Run `main` to its end on a loop that moves `clock`; like asyncio.run, in no time."""
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(clock)) as runner:
        return runner.run(main)
