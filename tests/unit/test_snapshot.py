"""Snapshots, marks and positions: against a model of transactions that begin, draw ids and end in any order."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from pillarbox.core.snapshot import Mark, Position, Snapshot

Deeds = list[tuple[str, int]]
History = list[tuple[Deeds, Deeds]]
START = Mark(Snapshot(3, 3, frozenset()), 2, 0)
"""The position of a new log: nothing is settled."""


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    xmax = draw(st.integers(3, 60))
    in_progress = frozenset(draw(st.sets(st.integers(3, xmax - 1)))) if xmax > 3 else frozenset()
    return Snapshot(min(in_progress, default=xmax), xmax, in_progress)


def test_a_snapshot_is_read_as_postgresql_writes_it() -> None:
    assert Snapshot.parse("10:14:10,12") == Snapshot(10, 14, frozenset({10, 12}))
    assert Snapshot.parse("726:726:") == Snapshot(726, 726, frozenset())


@given(snapshots())
def test_a_snapshot_is_written_as_it_was_read(snapshot: Snapshot) -> None:
    assert Snapshot.parse(str(snapshot)) == snapshot


@pytest.mark.parametrize(("xid", "seen"), [(9, True), (10, False), (11, True), (12, False), (13, True), (14, False)])
def test_a_snapshot_sees_what_had_ended(xid: int, seen: bool) -> None:
    assert Snapshot.parse("10:14:10,12").sees(xid) is seen


@given(snapshots(), snapshots())
def test_one_includes_another_if_it_sees_all_that_the_other_sees(one: Snapshot, other: Snapshot) -> None:
    sees_all = all(one.sees(xid) for xid in range(70) if other.sees(xid))
    # A higher xmax below which everything is in progress sees nothing more.
    assert one.includes(other) is (sees_all and one.xmax >= other.xmax)


def test_a_position_covers_what_is_settled() -> None:
    before = Mark(Snapshot.parse("10:12:10"), 12, 20)
    upto = Mark(Snapshot.parse("14:14:"), 14, 40)
    position = Position(before, upto, last=25, floor=5)
    assert position.covers(xid=99, id=5)  # below the floor, whatever wrote it
    assert position.covers(xid=11, id=39)  # seen before
    assert position.covers(xid=10, id=25)  # ended since, and given out
    assert not position.covers(xid=10, id=26)
    assert not position.covers(xid=15, id=20)  # ended later still


def test_what_may_be_late_was_in_progress_or_above_xmax_when_the_tick_was_written() -> None:
    before = Mark(Snapshot.parse("10:14:10,12"), 16, 20)
    upto = Mark(Snapshot.parse("12:18:12,15"), 18, 40)
    position = Position(before, upto)
    assert position.late == [10, 12, 14, 15, 16]
    assert position.late_visible == [10, 14, 16]


def test_a_position_ends_where_both_snapshots_are_one() -> None:
    before, upto = START, Mark(Snapshot.parse("5:5:"), 5, 7)
    position = Position(before, upto, last=3, floor=1)
    assert not position.is_at_end
    assert position.at_end() == Position(upto, upto, 0, 1)
    assert position.at_end().is_at_end
    later = Mark(Snapshot.parse("9:9:"), 9, 11)
    assert position.at_end().towards(later) == Position(upto, later, 0, 1)


class World:
    """A server: transactions have ids, rows draw theirs from a sequence, snapshots are as PostgreSQL takes them."""

    def __init__(self) -> None:
        self.next_xid = 3
        self.next_id = 1
        self.latest_ended = 2
        self.running: list[int] = []
        self.committed: set[int] = set()
        self.rows: list[tuple[int, int]] = []  # xid, id

    def begin(self) -> None:
        self.running.append(self.draw_xid())

    def draw_xid(self) -> int:
        self.next_xid += 1
        return self.next_xid - 1

    def write(self, of: int) -> None:
        if self.running:
            self.rows.append((self.running[of % len(self.running)], self.next_id))
            self.next_id += 1  # a row that is rolled back leaves a gap

    def end(self, of: int, *, commit: bool) -> None:
        if self.running:
            xid = self.running.pop(of % len(self.running))
            self.latest_ended = max(self.latest_ended, xid)
            if commit:
                self.committed.add(xid)

    def snapshot(self) -> Snapshot:
        xmax = self.latest_ended + 1
        in_progress = frozenset(xid for xid in self.running if xid < xmax)
        return Snapshot(min(in_progress, default=xmax), xmax, in_progress)

    def mark(self, between: Deeds) -> Mark:
        """Take a snapshot, then read the sequence, then draw the tick's own id; others go on in between."""
        snapshot = self.snapshot()
        self.run(between[::2])
        reached = self.next_id - 1
        self.run(between[1::2])
        x = self.draw_xid()
        self.running.append(x)
        self.end(self.running.index(x), commit=True)
        return Mark(snapshot, x, reached)

    def run(self, deeds: Deeds) -> None:
        for deed, which in deeds:
            if deed == "begin":
                self.begin()
            elif deed == "write":
                self.write(which)
            else:
                self.end(which, commit=deed == "commit")

    def read(self, position: Position) -> list[int]:
        """Read a batch as the store does: late transactions by their own ids, the main part above both bounds."""
        seen = [row for row in self.rows if row[0] in self.committed and position.upto.snapshot.sees(row[0])]
        late = [id for xid, id in seen if xid in position.late_visible]
        main = [id for xid, id in seen if xid > position.before.x and id > position.before.m]
        return sorted(late + main)


DEEDS = st.lists(st.tuples(st.sampled_from(["begin", "write", "write", "commit", "roll back"]), st.integers(0, 5)))
HISTORIES = st.lists(st.tuples(DEEDS, st.lists(st.tuples(st.sampled_from(["begin", "write"]), st.integers(0, 5)))))


def lost(history: History) -> set[int]:
    """Read a history batch by batch, each as it must be; give the ids of committed rows that were not read."""
    world = World()
    position = Position(START, START)
    read: list[int] = []
    for deeds, between in [*history, ([("commit", 0)] * 200, []), ([], [])]:
        world.run(deeds)
        position = position.at_end().towards(world.mark(between))
        read += world.read(position)
    assert len(read) == len(set(read))
    return {id for xid, id in world.rows if xid in world.committed} - set(read)


@given(HISTORIES)
def test_between_marks_every_committed_row_is_read_once(history: History) -> None:
    assert not lost(history)


@given(HISTORIES)
def test_a_batch_is_what_one_snapshot_sees_and_the_other_does_not_by_id(history: History) -> None:
    world = World()
    position = Position(START, START)
    for deeds, between in history:
        world.run(deeds)
        position = position.at_end().towards(world.mark(between))
        assert world.read(position) == [
            id for xid, id in world.rows
            if xid in world.committed and position.upto.snapshot.sees(xid) and not position.before.snapshot.sees(xid)
        ]  # fmt: skip


@pytest.mark.parametrize(
    "late",
    [lambda position: [], lambda position: sorted(position.before.snapshot.in_progress)],
    ids=["no late transactions", "none above xmax"],
)
def test_without_its_late_transactions_a_batch_loses_rows(
    late: Callable[[Position], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Position, "late", property(late))
    # That there is one is enough: to make it as short as can be takes a minute.
    find(HISTORIES, lambda history: bool(lost(history)), settings=settings(phases=[Phase.generate], database=None))


@given(HISTORIES, st.integers(0, 50))
def test_a_batch_that_was_read_in_part_goes_on_behind_what_is_settled(history: History, settled: int) -> None:
    world = World()
    position = Position(START, START)
    for deeds, between in history:
        world.run(deeds)
        position = position.at_end().towards(world.mark(between))
    batch = world.read(position)
    position = position._replace(last=batch[min(settled, len(batch) - 1)] if batch else 0)
    xid_of = {id: xid for xid, id in world.rows}
    assert [id for id in batch if not position.covers(xid_of[id], id)] == [id for id in batch if id > position.last]


@given(HISTORIES)
def test_later_marks_include_earlier_ones(history: History) -> None:
    world = World()
    marks = [START]
    for deeds, between in history:
        world.run(deeds)
        marks.append(world.mark(between))
    for earlier, later in pairwise(marks):
        assert later.snapshot.includes(earlier.snapshot)
        assert later.x > earlier.x
        assert later.m >= earlier.m
