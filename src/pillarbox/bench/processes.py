"""Processes of a bench: each tells its parent what it found through a pipe, and dies with it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from pillarbox.core.retry import words_of
from pillarbox.errors import PillarboxError

SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
PATIENCE = 5.0
"""Seconds that a process has to end."""
_spawn = multiprocessing.get_context("spawn")


class BenchFailed(PillarboxError):
    """Something could not be measured; the message says what, and why."""


class _Failed(NamedTuple):
    words: str


class Child:
    """A function that runs in a process of its own; its last argument is the pipe to us."""

    def __init__(self, name: str, work: Callable[..., None], *arguments: object) -> None:
        self.name = name
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_run, args=(work, arguments, theirs), daemon=True)
        with _not_for_children():
            self._process.start()
        theirs.close()  # so that its end is noticed

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.is_alive()

    def send(self, order: object) -> None:
        """Tell it something."""
        self._pipe.send(order)

    def receive(self, patience: float) -> Any:
        """Wait for what it tells; raises BenchFailed if that is a failure, or does not come in time."""
        try:
            if not self._pipe.poll(patience):
                raise BenchFailed(f"the {self.name} was not through after {patience:.0f} s")
            told = self._pipe.recv()
        except EOFError as error:
            raise BenchFailed(f"the {self.name} has ended") from error
        if isinstance(told, _Failed):
            raise BenchFailed(f"the {self.name}: {told.words}")
        return told

    def check(self) -> None:
        """Raise BenchFailed if it has failed."""
        if not self._process.is_alive() or self._pipe.poll():
            self.receive(0)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end, which daemons do after handing over, and wait until it has; kill it if it does not."""
        self._process.terminate()
        self._process.join(PATIENCE)
        self.kill()

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


@contextmanager
def running(*children: Child) -> Iterator[None]:
    """Stop them in the end, or kill them if something went wrong."""
    try:
        yield
    except BaseException:
        for child in children:
            child.kill()
        raise
    for child in children:
        child.stop()


@contextmanager
def _not_for_children() -> Iterator[None]:
    """Let a child be born with Ctrl-C blocked: it goes to everybody at the terminal, and is meant for us."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(work: Callable[..., None], arguments: tuple[object, ...], pipe: "Connection[Any, Any]") -> None:
    os.environ.pop("NOTIFY_SOCKET", None)  # whoever started the bench waits for no relay
    threading.Thread(target=_die_with_the_parent, daemon=True).start()
    try:
        work(*arguments, pipe)
    except Exception as error:  # noqa: BLE001 - the parent tells it
        pipe.send(_Failed(f"{type(error).__name__}: {words_of(error)}"))


def _die_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def shared(kind: str) -> Any:
    """Give a number that several processes see: "d" a float, "q" an integer."""
    return _spawn.Value(kind, 0)
