"""What is ready and waits for a worker."""

import asyncio
from collections.abc import Iterable
from heapq import heappop, heappush

from pillarbox.inbox.received import Received

Taken = tuple[int, Received]
"""A ticket of the window, and what is handled under it."""


class Waiting:
    """What waits for a worker: for each line what is ready of it, the oldest first. Tasks and threads take from it.

    What is deadly goes before all: others of its kind wait until it is done.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[bool, int, list[Taken]]] = []
        self._there = asyncio.Event()

    def put(self, groups: Iterable[list[Taken]]) -> None:
        """Let these wait."""
        for group in groups:
            ticket, received = group[0]
            heappush(self._heap, (not received.deadly, ticket, group))
            self._there.set()

    def take(self) -> list[Taken] | None:
        """Give the next, if there is one. From any thread: nothing here lets another thread in between."""
        try:
            return heappop(self._heap)[2]
        except IndexError:
            return None

    async def wait(self) -> list[Taken]:
        """Give the next, as soon as there is one."""
        while (taken := self.take()) is None:
            self._there.clear()
            await self._there.wait()
        return taken
