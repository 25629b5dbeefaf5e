"""Ids: UUID version 7, greater than the last one, and unique everywhere."""

import os
import threading
from uuid import RFC_4122, UUID

import pytest

from pillarbox import ids
from pillarbox.ids import new_id


class Clock:
    """What `time_ns` says, and what chance gives, as told."""

    def __init__(self) -> None:
        self.milliseconds = 1_700_000_000_000
        self.bits = b"\x00"

    def time_ns(self) -> int:
        return self.milliseconds * 1_000_000 + 999_999

    def urandom(self, count: int) -> bytes:
        return self.bits * count


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ids, "time_ns", clock.time_ns)
    monkeypatch.setattr(ids, "urandom", clock.urandom)
    monkeypatch.setattr(ids, "_last", ids._Last())
    return clock


def test_an_id_is_a_uuid_of_version_7() -> None:
    value = new_id()
    assert (value.version, value.variant) == (7, RFC_4122)
    assert UUID(str(value)) == value
    assert hash(UUID(str(value))) == hash(value)
    assert value.is_safe == UUID(str(value)).is_safe


def test_an_id_begins_with_the_milliseconds(clock: Clock) -> None:
    assert new_id().int >> 80 == clock.milliseconds
    clock.bits = b"\xff"
    clock.milliseconds += 5
    assert str(new_id()) == "018bcfe5-6805-7fff-bfff-ffffffffffff"


def test_ids_of_the_same_millisecond_grow(clock: Clock) -> None:
    made = [new_id() for _ in range(100)]
    assert made == sorted(set(made))


def test_ids_grow_when_the_clock_steps_back(clock: Clock) -> None:
    before = new_id()
    clock.milliseconds -= 3_600_000
    assert new_id() > before


def test_ids_grow_when_the_random_bits_of_a_millisecond_are_used_up(clock: Clock) -> None:
    clock.bits = b"\xff"
    first = new_id()
    second = new_id()
    assert second > first
    assert second.int >> 80 == clock.milliseconds + 1
    assert (second.version, second.variant) == (7, RFC_4122)


def test_ids_of_one_thread_grow() -> None:
    made = [new_id() for _ in range(50_000)]
    assert made == sorted(set(made))


def test_ids_of_several_threads_are_unique_and_grow_in_each() -> None:
    made: list[list[UUID]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def make(mine: list[UUID]) -> None:
        start.wait()
        mine.extend(new_id() for _ in range(5_000))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(mine == sorted(mine) for mine in made)
    assert len({id for mine in made for id in mine}) == 40_000


def test_a_forked_process_does_not_go_on_where_its_parent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock stands in the past, so whoever goes on from the last id is bound to its milliseconds.
    last = (1 << 47, 12345)
    monkeypatch.setattr(ids._last, "value", last, raising=False)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_id().bytes)
        os._exit(0)
    os.waitpid(child, 0)
    theirs = UUID(bytes=os.read(reader, 16))
    os.close(reader)
    os.close(writer)
    assert new_id().int >> 80 == 1 << 47
    assert theirs.int >> 80 < 1 << 47
