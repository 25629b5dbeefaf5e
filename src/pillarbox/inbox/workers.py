"""Workers: who performs an inbox's programs, each in a transaction of its own.

Behind a sync inbox every worker has a thread, in which its transaction and the handler run together; the books (what is
parked, what is due) have one more, so that a handler that hangs does not stop them. Where the database has one writer,
whoever writes waits here for the others: at the database they would wait by sleeping.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from pillarbox.inbox.inbox import Handlers
from pillarbox.inbox.statements import Texts
from pillarbox.inbox.steps import Program

R = TypeVar("R")
BOOKS = -1
"""The worker that keeps the books."""


class _Receiver(Protocol):
    """What a consumer asks of a door's Inbox."""

    @property
    def consumer(self) -> str: ...

    @property
    def handlers(self) -> Handlers: ...

    @property
    def texts(self) -> Texts:
        """The statements for the consumer's database."""

    @property
    def most_workers(self) -> int | None:
        """How many workers are useful: one where the database has one writer; None if there is no bound."""


@runtime_checkable
class SyncReceiver(_Receiver, Protocol):
    """A door's Inbox."""

    is_async: Literal[False]

    def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own, on this thread; commit, or roll back and raise."""

    def close(self) -> None:
        """Let go of what this thread has open."""


@runtime_checkable
class ChainingReceiver(SyncReceiver, Protocol):
    """A door's Inbox that can end a transaction and begin the next one in one message."""

    def perform_each(self, programs: Iterator[Program[R]], done: Callable[[R], None]) -> None:
        """Run programs as `perform` does, one after the other; each begins with a statement. `done` is told what each
        one gave, once that is committed; the next one is asked for shortly before. Raises what happened to the first
        that is not done."""


@runtime_checkable
class AsyncReceiver(_Receiver, Protocol):
    """A door's AsyncInbox."""

    is_async: Literal[True]

    async def perform(self, program: Program[R], *, reading: bool = False) -> R:
        """Run a program in a transaction of its own; commit, or roll back and raise."""

    async def close(self) -> None:
        """Let go of what is open."""


def perform_each(inbox: SyncReceiver, programs: Iterator[Program[R]], done: Callable[[R], None]) -> None:
    """Run programs on this thread, each in a transaction of its own, with as few messages as the door can."""
    if isinstance(inbox, ChainingReceiver):
        inbox.perform_each(programs, done)
        return
    for program in programs:
        done(inbox.perform(program))


class Threads:
    """Performs the programs of a sync inbox: one thread per worker, one for the books."""

    def __init__(self, inbox: SyncReceiver, workers: int) -> None:
        self.inbox = inbox
        self._threads = {
            worker: ThreadPoolExecutor(1, f"pillarbox-{'books' if worker == BOOKS else worker}")
            for worker in range(BOOKS, workers)
        }
        self._last: dict[int, Future[Any]] = {}

    async def perform(self, worker: int, program: Program[R], *, reading: bool = False) -> R:
        if self.inbox.most_workers == 1 and not reading:
            worker = 0
        return await self.run(worker, partial(self.inbox.perform, program, reading=reading))

    async def run(self, worker: int, function: Callable[[], R]) -> R:
        """Call a function in a worker's thread."""
        work = self._last[worker] = self._threads[worker].submit(function)
        return await asyncio.wrap_future(work)

    async def close(self) -> None:
        """Close each thread's connection in that thread; one whose handler still runs closes it when it is done."""
        idle = []
        for worker, pool in self._threads.items():
            closing = pool.submit(self.inbox.close)
            pool.shutdown(wait=False)
            if worker not in self._last or not self._last[worker].running():
                idle.append(asyncio.wrap_future(closing))
        await asyncio.gather(*idle)


class Tasks:
    """Performs the programs of an async inbox, on the loop."""

    def __init__(self, inbox: AsyncReceiver) -> None:
        self._inbox = inbox
        self._writing = asyncio.Lock()

    async def perform(self, worker: int, program: Program[R], *, reading: bool = False) -> R:
        if self._inbox.most_workers == 1 and not reading:
            async with self._writing:
                return await self._inbox.perform(program)
        return await self._inbox.perform(program, reading=reading)

    async def close(self) -> None:
        """Let go of what the inbox has kept open."""
        await self._inbox.close()


Performers = Threads | Tasks
Receiver = SyncReceiver | AsyncReceiver


def performers(inbox: Receiver, workers: int) -> Performers:
    """Give what performs an inbox's programs."""
    return Tasks(inbox) if inbox.is_async else Threads(inbox, workers)
