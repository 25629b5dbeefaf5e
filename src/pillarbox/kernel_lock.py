"""A lock on a file that the kernel frees when the process dies, however it dies. The embedded store and broker use it.

POSIX byte-range locks, one byte per slot. They are not inherited by fork, which is wanted, and they have two traps:
locks of one process never conflict, and closing *any* descriptor of a file drops all of the process's locks on it.
So a process keeps one shared descriptor per file (device and inode), in a registry that also knows who holds what.
"""

import os
import struct
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from pillarbox.errors import ConfigError

_DARWIN = sys.platform == "darwin"
_FLOCK = struct.Struct("@qqihh" if _DARWIN else "@hhqqi")  # C's struct flock


@dataclass(eq=False, slots=True)
class _File:
    """A lock file that this process has open."""

    descriptors: list[int] = field(default_factory=list)
    users: int = 0
    held: dict[int, "KernelLock"] = field(default_factory=dict)


_files: dict[tuple[int, int], _File] = {}
_registry = threading.Lock()


class KernelLock:
    """One slot of a lock file. The file is made if it is not there, and never deleted."""

    def __init__(self, path: str | Path, slot: int = 0) -> None:
        self._path, self._slot = os.fspath(path), slot
        self._file: _File | None = None

    @property
    def held(self) -> bool:
        """Whether this very object holds the slot, in this very process."""
        return self._file is not None and self._file.held.get(self._slot) is self

    @property
    def astray(self) -> bool:
        """Whether others look elsewhere by now, because somebody deleted the file or put another in its place."""
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return True
        with _registry:
            return _files.get((there.st_dev, there.st_ino)) is not self._file

    def take(self) -> bool:
        """Take the slot, or say that somebody else alive has it; never blocks."""
        fcntl = _posix()
        with _registry:
            if self.held:
                return True
            self._file = None  # of the parent process, if we are a fork
            key, file = _open(self._path)
            try:
                if self._slot in file.held:
                    return False
                fcntl.lockf(file.descriptors[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._slot)
                file.held[self._slot] = self
                file.users += 1
                self._file = file
                return True
            except (BlockingIOError, PermissionError):  # EAGAIN on Linux; POSIX allows EACCES too
                return False
            except OSError as error:
                raise ConfigError(f"{self._path}: this file system has no locks ({error.strerror})") from error
            finally:
                _close_if_unused(key, file)

    def release(self) -> None:
        """Free the slot; does nothing if it is not held."""
        with _registry:
            if not self.held:
                return
            fcntl, file = _posix(), self._file
            assert file is not None
            fcntl.lockf(file.descriptors[0], fcntl.LOCK_UN, 1, self._slot)
            del file.held[self._slot]
            file.users -= 1
            self._file = None
            for key in [key for key, known in _files.items() if known is file]:
                _close_if_unused(key, file)


def is_free(path: str | Path, slot: int = 0) -> bool:
    """Say whether nobody alive holds the slot, without touching it."""
    fcntl = _posix()
    with _registry:
        try:
            key, file = _open(os.fspath(path), create=False)
        except FileNotFoundError:
            return True
        try:
            if slot in file.held:
                return False
            answer = fcntl.fcntl(file.descriptors[0], fcntl.F_GETLK, _question(fcntl, slot))
            kind = _FLOCK.unpack(answer)[3 if _DARWIN else 0]
            return bool(kind == fcntl.F_UNLCK)
        finally:
            _close_if_unused(key, file)


def _question(fcntl: ModuleType, slot: int) -> bytes:
    if _DARWIN:
        return _FLOCK.pack(slot, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0)


def _open(path: str, *, create: bool = True) -> tuple[tuple[int, int], _File]:
    """Give the file's one shared descriptor, opening it if this process has none. The registry must be locked."""
    try:
        known = os.stat(path)
        key = known.st_dev, known.st_ino
        if key in _files:
            return key, _files[key]
    except FileNotFoundError:
        if not create:
            raise
    except OSError as error:
        raise ConfigError(f"cannot open the lock file {path}: {error.strerror}") from error
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError as error:
        if not create:
            raise
        raise ConfigError(f"cannot make the lock file {path}: its directory does not exist") from error
    except OSError as error:
        raise ConfigError(f"cannot open the lock file {path}: {error.strerror}; give this user the right to") from error
    found = os.fstat(descriptor)
    key = found.st_dev, found.st_ino
    file = _files.setdefault(key, _File())
    # Two, if the name was moved to a file that is open already: closing either would drop its locks.
    file.descriptors.append(descriptor)
    return key, file


def _close_if_unused(key: tuple[int, int], file: _File) -> None:
    if not file.users:
        del _files[key]
        for descriptor in file.descriptors:
            os.close(descriptor)


def _posix() -> ModuleType:
    try:
        import fcntl
    except ImportError as error:
        raise ConfigError("SQLite as store or broker needs POSIX file locks, which Windows does not have") from error
    return fcntl


def _forget_after_fork() -> None:
    """Start anew in a child: the locks stay with the parent, so closing our copies of its descriptors is harmless."""
    global _registry
    _registry = threading.Lock()
    for file in _files.values():
        file.held.clear()
        for descriptor in file.descriptors:
            os.close(descriptor)
    _files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
