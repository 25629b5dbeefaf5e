"""Processes of a demo or a torture: started together in one process group, which dies with us however we die."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

_GUARD = "import os, signal, sys; sys.stdin.buffer.read(); os.killpg(0, signal.SIGKILL)"
PATIENCE = 60.0
"""Seconds that a process has to end after it was asked to."""


class ProcessFailed(Exception):
    """A process ended that should not have, or did not end as it should have."""


class Process:
    """A running program whose talk goes to a log file."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], group: int
    ) -> None:
        self.name = name
        self.log = log
        self.killed = False
        """Whether we have killed it."""
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=log.parent,
                env=environment,
                process_group=group,
                bufsize=0,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def lives(self) -> bool:
        return self._popen.poll() is None

    @property
    def code(self) -> int | None:
        """How it ended: its exit code, or minus the signal's number; None while it runs."""
        return self._popen.poll()

    def check(self, *, may_end: bool = True) -> None:
        """Raise if it has ended badly, or at all if it should run until it is stopped."""
        code = self._popen.poll()
        if code is not None and not (may_end and code == 0):
            raise ProcessFailed(f"the {self.name} ended with {code}:\n{self.last_words()}")

    def write(self, data: bytes) -> None:
        """Write to its stdin."""
        assert self._popen.stdin is not None
        try:
            self._popen.stdin.write(data)
        except BrokenPipeError as error:
            raise ProcessFailed(f"the {self.name} does not listen any more:\n{self.last_words()}") from error

    def freeze(self) -> None:
        """Stop it where it stands, and wait until it has stopped; raise if it has ended already."""
        self._popen.send_signal(signal.SIGSTOP)
        if self._popen.returncode is None:
            _, status = os.waitpid(self.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):  # it was faster and has ended; subprocess must know what we were told
                self._popen.returncode = os.waitstatus_to_exitcode(status)
        self.check(may_end=False)

    def thaw(self) -> None:
        """Let it go on."""
        self._popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.killed = True
        self._popen.kill()
        self._close()

    def terminate(self) -> None:
        """Ask it to end, and do not wait."""
        self._popen.terminate()

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._popen.terminate()
        self._wait()
        if self.code != -signal.SIGTERM:  # so it ends where it was not ready for the signal yet
            self.check()
        self._close()

    def finish(self) -> None:
        """Wait until it has ended by itself; raise if it does not, or not well."""
        self._wait()
        self.check()
        self._close()

    def _wait(self) -> None:
        try:
            self._popen.wait(PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise ProcessFailed(f"the {self.name} did not end within {PATIENCE} s:\n{self.last_words()}") from error

    def last_words(self) -> str:
        """Give the end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def _close(self) -> None:
        self._popen.wait()
        assert self._popen.stdin is not None
        self._popen.stdin.close()


class Processes:
    """All processes of a run. Leaving the context kills what still runs; so does our own death, by a guard."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._started: list[Process] = []

    def __enter__(self) -> Self:
        # The guard leads the group and waits on a pipe that only we hold: when we are gone, it kills the group.
        self._guard = subprocess.Popen([sys.executable, "-I", "-c", _GUARD], stdin=subprocess.PIPE, process_group=0)
        return self

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start `python -m module arguments`."""
        command = [sys.executable, "-m", module, *arguments]
        everything = {**_clean_environment(), **(environment or {})}
        process = Process(name, command, self._logs / f"{name}.log", everything, self._guard.pid)
        self._started.append(process)
        return process

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._started:
            process.kill()
        self._guard.kill()
        self._guard.wait()
        assert self._guard.stdin is not None
        self._guard.stdin.close()


def _clean_environment() -> dict[str, str]:
    """Give our environment without anybody's settings, and with the package that we run from."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PILLARBOX_")}
    here = str(Path(__file__).parents[2])
    return {**clean, "PYTHONPATH": os.pathsep.join([here, *filter(None, [clean.get("PYTHONPATH")])])}


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end a run as Ctrl-C does: children stopped, files gone."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
