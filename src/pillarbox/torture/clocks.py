"""The wall clocks of relays, which can be set while they run: by libfaketime, which is loaded before them.

It lies about the wall clock alone. The monotonic one, by which everybody waits, is never set on a real machine either.
(In a process under it Python's time.sleep fails: release 0.9.10 does not know how it waits. A relay does not use it.)
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

LIBRARIES = (
    *Path("/usr/lib").glob("*/faketime/libfaketime.so.1"),
    *Path("/usr/lib").glob("faketime/libfaketime.so.1"),
    *Path("/usr/lib64").glob("faketime/libfaketime.so.1"),
)
SHARED_MEMORY = Path("/dev/shm")
FRESH = 1
"""Seconds until a process sees that its clock was set."""


def can_set_clocks(*servers: str) -> str | None:
    """Say why relays on this database and this broker cannot have clocks of their own; None if they can."""
    if any(url.startswith("sqlite:") for url in servers):
        return "whoever uses a file of SQLite is on one machine, which has one clock"
    return None if LIBRARIES else "libfaketime is not installed (Debian's package faketime)"


class Clocks:
    """A clock for each of so many relays."""

    def __init__(self, directory: Path, count: int) -> None:
        self._files = [directory / f"clock-{number}" for number in range(count)]
        for number in range(count):
            self.set(number, 0)

    def set(self, number: int, hours: int) -> None:
        """Let a clock be so many hours fast, or slow if that is negative; 0 lets it be right."""
        new = self._files[number].with_suffix(".new")
        new.write_text(f"{hours:+d}h\n")
        new.replace(self._files[number])

    def environment(self, number: int) -> Mapping[str, str]:
        """Give what a relay must be started with."""
        return {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._files[number]),
            "FAKETIME_CACHE_DURATION": str(FRESH),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


def clean_up(pids: Iterable[int]) -> None:
    """Remove the pieces of shared memory that the library leaves where a process was killed."""
    for pid in pids:
        for left in SHARED_MEMORY.glob(f"*faketime_*_{pid}"):
            left.unlink(missing_ok=True)
