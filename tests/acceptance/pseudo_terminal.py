"""A terminal for a command: what it shows, what is typed into it, and how it is set."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE = 30.0
SIZES = ("COLUMNS", "LINES")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_=>])")
_HOME = "\x1b[H"


class Terminal:
    """Runs `pillarbox …` on a pseudo-terminal. A frame is what was drawn since the cursor was last at home."""

    def __init__(
        self,
        arguments: list[str],
        directory: Path,
        environment: Mapping[str, str],
        *,
        rows: int = 40,
        columns: int = 120,
    ) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(self._slave)
        self.shown = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pillarbox", *arguments],
            cwd=directory,
            # Whoever runs the tests may have said how wide their own terminal is; this one says so itself.
            env={**{name: value for name, value in environment.items() if name not in SIZES}, "TERM": "xterm-256color"},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
        )
        os.set_blocking(self._master, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def settings(self) -> list[Any]:
        """How the terminal is set, as `stty` would say."""
        return termios.tcgetattr(self._slave)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def frame(self) -> str:
        """Give the last whole frame, without colours and movements."""
        self._read()
        frames = self.shown.split(_HOME)
        return "\n".join(
            line.rstrip() for line in _ESCAPES.sub("", frames[-2] if len(frames) > 1 else "").splitlines()
        ).strip()

    @property
    def text(self) -> str:
        """All that was shown so far, without colours and movements."""
        return _ESCAPES.sub("", self.shown)

    def until(self, *texts: str) -> str:
        """Wait for a frame that has all of these texts; give it."""
        deadline = time.monotonic() + PATIENCE
        while not all(text in (frame := self.frame()) for text in texts):
            assert self.process.poll() is None, self.shown
            assert time.monotonic() < deadline, f"{texts} in\n{frame}"
            time.sleep(0.02)
        return frame

    def end(self, number: signal.Signals | None = None) -> int:
        """Wait for the command's end, after a signal if one is given; give its exit code."""
        if number is not None:
            self.process.send_signal(number)
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            self._read()
            assert time.monotonic() < deadline, self.shown[-2000:]
            time.sleep(0.02)
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        try:
            while what := os.read(self._master, 65536):
                self.shown += what.decode(errors="replace")
        except BlockingIOError:
            pass
