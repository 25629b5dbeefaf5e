"""The kernel's lock: one holder per slot, also among the threads and forks of one process, freed by death."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pillarbox.errors import ConfigError
from pillarbox.kernel_lock import KernelLock, is_free

HOLD = """
import sys
from pillarbox.kernel_lock import KernelLock
print(KernelLock(sys.argv[1], int(sys.argv[2])).take(), flush=True)
sys.stdin.read()
"""


def other_process(path: Path, slot: int = 0) -> "subprocess.Popen[str]":
    """Start a process that takes the slot, says whether it got it, and lives until it is killed."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(slot)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def got_it(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout is not None
    return process.stdout.readline() == "True\n"


def end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a-lock"


def test_a_lock_that_is_taken_is_held_until_it_is_released(path: Path) -> None:
    lock = KernelLock(path)
    assert lock.take()
    assert lock.take(), "taking twice keeps it"
    assert lock.held
    lock.release()
    lock.release()
    assert [lock.held] == [False]


def test_two_locks_of_one_process_exclude_each_other(path: Path) -> None:
    first, second = KernelLock(path), KernelLock(path)
    assert first.take()
    assert not second.take()
    assert not second.held
    second.release()
    assert first.held
    first.release()
    assert second.take()
    second.release()


def test_another_process_is_shut_out_until_the_release(path: Path) -> None:
    lock = KernelLock(path)
    assert lock.take()
    other = other_process(path)
    assert not got_it(other)
    end(other)
    lock.release()
    other = other_process(path)
    assert got_it(other)
    end(other)


def test_a_killed_process_frees_its_lock(path: Path) -> None:
    other = other_process(path)
    assert got_it(other)
    assert not KernelLock(path).take()
    other.send_signal(signal.SIGKILL)
    other.communicate()
    lock = KernelLock(path)
    assert lock.take()
    lock.release()


def test_a_lock_is_astray_once_its_file_is_gone_or_replaced(path: Path) -> None:
    lock, other = KernelLock(path), KernelLock(path)
    lock.take()
    seen = [lock.astray]
    path.unlink()
    seen.append(lock.astray)
    other.take()
    seen.append(lock.astray)
    assert (seen, other.astray) == ([False, True, True], False)
    lock.release()
    other.release()


def test_slots_are_independent(path: Path) -> None:
    first, second = KernelLock(path, 0), KernelLock(path, 7)
    assert first.take()
    assert second.take()
    first.release()
    other = other_process(path, 7)
    assert not got_it(other), "releasing one slot must not drop the other"
    end(other)
    second.release()


def test_looking_drops_no_lock(path: Path) -> None:
    lock = KernelLock(path, 1)
    assert lock.take()
    assert is_free(path, 2)
    assert not KernelLock(path, 1).take()
    other = other_process(path, 1)
    assert not got_it(other)
    end(other)
    lock.release()


def test_a_slot_is_free_exactly_when_nobody_alive_holds_it(path: Path) -> None:
    assert is_free(path, 3)
    assert not path.exists(), "looking makes no file"
    other = other_process(path, 3)
    assert got_it(other)
    assert not is_free(path, 3)
    assert is_free(path, 4)
    end(other)
    assert is_free(path, 3)
    lock = KernelLock(path, 3)
    assert lock.take()
    assert not is_free(path, 3)
    lock.release()
    assert is_free(path, 3)


def test_two_names_of_one_file_are_one_lock(path: Path) -> None:
    first = KernelLock(path)
    assert first.take()
    alias = path.with_name("alias")
    os.link(path, alias)
    assert not KernelLock(alias).take()
    assert not is_free(alias)
    first.release()


def test_a_fork_holds_nothing_and_its_end_frees_nothing(path: Path) -> None:
    lock = KernelLock(path)
    assert lock.take()
    child = os.fork()
    if child == 0:  # whatever happens, the child must not return into pytest
        os._exit(1 if lock.held or lock.take() or is_free(path) else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert lock.held
    other = other_process(path)
    assert not got_it(other)
    end(other)
    lock.release()


def test_the_file_is_private_and_stays(path: Path) -> None:
    lock = KernelLock(path)
    assert lock.take()
    assert path.stat().st_mode & 0o077 == 0
    lock.release()
    assert path.exists()


def test_no_descriptor_is_left_open(path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    first, second = KernelLock(path), KernelLock(path)
    first.take()
    second.take()
    is_free(path, 5)
    assert len(os.listdir("/dev/fd")) == before + 1
    first.release()
    assert len(os.listdir("/dev/fd")) == before


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="its directory does not exist"):
        KernelLock(tmp_path / "nowhere" / "lock").take()


def test_a_system_without_posix_locks_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(ConfigError, match="Windows"):
        KernelLock(path).take()
