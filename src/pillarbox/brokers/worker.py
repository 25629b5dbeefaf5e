"""A worker: one thread for work that would block the loop, done in the order in which it was asked for."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

R = TypeVar("R")


class Worker:
    """A thread that starts with its first work. A daemon: work that hangs does not keep the process from ending."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], R]) -> "asyncio.Future[R]":
        """Queue work; cancelling the answer also cancels the work if it has not begun."""
        done: Future[R] = Future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._work.put((done, work))
        return asyncio.wrap_future(done)

    def stop(self) -> None:
        """End the thread once everything that was asked for is done."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            done, work = item
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
                    done.set_exception(error)
