"""Processor time, as the kernel counts it: of processes, and of a PostgreSQL on this machine with all its children."""

import os
from collections.abc import Iterable
from pathlib import Path

_OWN, _OF_THE_DEAD = slice(11, 13), slice(13, 15)
"""User and system time in /proc/…/stat, after the name; and that of children who have ended and were waited for."""


def used_by(pids: Iterable[int]) -> float | None:
    """Give the seconds of processor time that processes have used, to a hundredth; None where nobody can be asked."""
    try:
        return sum(_seconds(_fields(pid)[_OWN]) for pid in pids)
    except OSError:
        return None


def used_by_family(parent: int) -> float | None:
    """Give the seconds that a process and its children have used, those who have ended among them."""
    try:
        own = _fields(parent)
        living = sum(_seconds(_fields(pid)[_OWN]) for pid in _children(parent))
    except OSError:  # a child has ended meanwhile: what it used is the parent's by now, or will be in a moment
        return None if not Path(f"/proc/{parent}/stat").exists() else used_by_family(parent)
    return _seconds(own[_OWN]) + _seconds(own[_OF_THE_DEAD]) + living


def postmaster_of(backend: int) -> int | None:
    """Find the PostgreSQL that a backend belongs to, if it runs here and can be seen."""
    try:
        if not Path(f"/proc/{backend}/cmdline").read_bytes().startswith(b"postgres:"):
            return None
        return int(_fields(backend)[1])
    except OSError:
        return None


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _seconds(fields: list[str]) -> float:
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")
