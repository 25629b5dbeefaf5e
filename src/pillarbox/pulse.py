"""Pulse: whether a daemon makes turns. It beats while somebody else is waited for, or if a turn was made a moment ago.

A broker or a database that does not answer is no reason to end a daemon, so waiting for them counts as life, however
long it takes. What stands still and waits for nobody is stuck.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

STILL = 30.0
"""Seconds without a turn that still are none too many; the longest pauses of our own take five."""
P = TypeVar("P")


class Pulse:
    """The turns of one daemon."""

    def __init__(self) -> None:
        self._turned_at = time.monotonic()
        self._waits = 0

    def turn(self) -> None:
        """Note that it goes on."""
        self._turned_at = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Note that somebody else is waited for meanwhile."""
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            self.turn()

    @property
    def beats(self) -> bool:
        """It goes on, or would if somebody answered."""
        return self._waits > 0 or time.monotonic() < self._turned_at + STILL

    def around(self, port: P, *names: str) -> P:
        """Wrap something outside: while one of these calls is not answered, it is waited for."""
        return cast(P, _Around(port, self, names))


class _Around:
    """Somebody else, with some calls that are noted; everything else is their own."""

    def __init__(self, port: object, pulse: Pulse, names: tuple[str, ...]) -> None:
        self._port = port
        for name in names:
            setattr(self, name, _noted(getattr(port, name), pulse))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


def _noted(call: Callable[..., Awaitable[Any]], pulse: Pulse) -> Callable[..., Awaitable[Any]]:
    async def noted(*given: Any, **named: Any) -> Any:
        with pulse.waiting():
            return await call(*given, **named)

    return noted
