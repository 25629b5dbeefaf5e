"""Lines: whole lines of bytes into a file, a pipe or a terminal, and never half of one that nobody mends.

Python's own layers are not used for that. Without a buffer (PYTHONUNBUFFERED) they write a part and say nothing; with
one they lose the place where they stopped; and whoever is stuck in them keeps the process from ending.
"""

import fcntl
import os
import select
import stat
import time


class Lines:
    """Writes to a file descriptor, and knows where it stopped. `patience`: how many seconds a write waits for room."""

    def __init__(self, number: int, patience: float) -> None:
        self._number, self._patience = number, patience
        self._is_file = stat.S_ISREG(os.fstat(number).st_mode)
        self._rest = b"\n" if self._is_file and _ends_within_a_line(number) else b""
        """What is still to be written of a line that has begun."""

    def write(self, lines: bytes) -> None:
        """Write whole lines, or raise; then the next call first ends the line in which this one stopped."""
        everything, written = self._rest + lines, 0
        view, deadline = memoryview(everything), time.monotonic() + self._patience
        try:
            while written < len(everything):
                self._wait_for_room(deadline)
                try:
                    written += os.write(self._number, view[written : self._next(everything, written)])
                except BlockingIOError:  # somebody else has taken the room
                    continue
        finally:
            if written and everything[written - 1] == _NEWLINE:
                self._rest = b""
            elif written or self._rest:
                self._rest = everything[written : everything.index(_NEWLINE, written) + 1]

    def _wait_for_room(self, deadline: float) -> None:
        poll = select.poll()
        poll.register(self._number, select.POLLOUT)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise TimeoutError(f"it took nothing more for {self._patience:g} s")

    def _next(self, everything: bytes, written: int) -> int:
        """Say how far to write. A pipe that has room takes this much without blocking, and as one, so that a line is
        torn neither by our death nor by others who write to it; only a longer line takes several writes."""
        if self._is_file:
            return len(everything)
        return everything.rfind(_NEWLINE, written, written + select.PIPE_BUF) + 1 or written + select.PIPE_BUF


_NEWLINE = ord("\n")


def _ends_within_a_line(number: int) -> bool:
    """Say whether whoever wrote to this file before us stopped within a line: it was killed, or the disk was full."""
    appends = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_APPEND
    end = os.fstat(number).st_size if appends else os.lseek(number, 0, os.SEEK_CUR)
    if end == 0:
        return False
    try:
        reading = os.open(f"/dev/fd/{number}", os.O_RDONLY)
    except OSError:  # it may be written, not read
        return False
    try:
        return os.pread(reading, 1, end - 1) != b"\n"
    finally:
        os.close(reading)
