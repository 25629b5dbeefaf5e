"""Partitions: fair shares, fair reading, and positions that never skip anything."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from pillarbox.brokers.partitions import PARTITIONS, Held, Partition, partition_of, read_fairly, settle_share, share_of
from pillarbox.core.message import Message


def test_a_key_has_the_partition_that_sha256_gives_it() -> None:
    for key in ("a", "order 7", "ü", ""):
        expected = int.from_bytes(sha256(key.encode()).digest()) % PARTITIONS
        assert partition_of(Message("orders", key, {}, b"")) == expected


def test_without_a_key_the_id_spreads_messages() -> None:
    partitions = {partition_of(Message("orders", None, {"id": str(number)}, b"")) for number in range(500)}
    assert partitions == set(range(PARTITIONS))


@given(st.sets(st.integers(0, 1000), min_size=1, max_size=40))
def test_shares_add_up_and_differ_by_one_at_most(members: set[int]) -> None:
    shares = [share_of(member, members) for member in members]
    assert sum(shares) == PARTITIONS
    assert max(shares) - min(shares) <= 1


@given(st.lists(st.integers(0, 30), max_size=16), st.integers(0, 60))
def test_reading_fills_the_room_or_reads_everything(sizes: list[int], room: int) -> None:
    partitions = [Partition("orders", number) for number in range(len(sizes))]
    left = {partition: list(range(size)) for partition, size in zip(partitions, sizes, strict=True)}

    def read(partition: Partition, limit: int) -> list[tuple[Partition, int]]:
        things, left[partition] = left[partition][:limit], left[partition][limit:]
        return [(partition, thing) for thing in things]

    found, dry = read_fairly(partitions, room, read)
    assert len(found) == min(room, sum(sizes))
    assert not any(left[partition] for partition in dry)
    for partition in partitions:
        of_partition = [thing for other, thing in found if other == partition]
        assert of_partition == list(range(len(of_partition)))


@given(st.integers(2, 16), st.integers(16, 200))
def test_no_partition_starves_another(partitions: int, room: int) -> None:
    counts = dict.fromkeys((Partition("orders", number) for number in range(partitions)), 0)

    def read(partition: Partition, limit: int) -> list[int]:
        counts[partition] += limit
        return [0] * limit

    read_fairly(list(counts), room, read)
    assert max(counts.values()) - min(counts.values()) <= 1


@given(st.data())
def test_the_position_never_passes_what_is_not_acknowledged(data: st.DataObject) -> None:
    ids = sorted(data.draw(st.sets(st.integers(1, 100), max_size=20)))
    held = Held(0, "epoch")
    held.give(ids)
    acknowledged = set()
    for id in data.draw(st.permutations(ids)):
        held.acknowledge(id)
        held.acknowledge(id)
        acknowledged.add(id)
        open = [id for id in ids if id not in acknowledged]
        assert held.position == max((id for id in ids if id < min(open, default=101)), default=0)
    assert len(held) == 0


def test_what_is_above_the_share_leaves_once_it_is_acknowledged() -> None:
    held = {Partition("orders", number): Held(0, "epoch") for number in range(3)}
    last = Partition("orders", 2)
    held[last].give([7])
    assert settle_share(held, "orders", 2) == []
    assert held[last].leaving
    held[last].acknowledge(7)
    assert settle_share(held, "orders", 2) == [last]
    assert settle_share(held, "orders", 3) == []
    assert not held[last].leaving
