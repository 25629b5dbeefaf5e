"""Partitions: how messages are shared out among the members of a consumer group. Pure; the brokers in this package
that keep a log of their own (memory, embedded) share it.

    topic ── 16 partitions by key ── each held by one member ── position: everything up to here is acknowledged
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple, TypeVar

from pillarbox.core.message import Message

PARTITIONS = 16
T = TypeVar("T")


class Partition(NamedTuple):
    """One of a topic's shares."""

    topic: str
    number: int


class Place(NamedTuple):
    """Where a delivery comes from: the epoch tells whether the one who acknowledges it still holds the partition."""

    partition: Partition
    id: int
    epoch: str


def partition_of(message: Message) -> int:
    """Give the partition: by the key; what has none is not ordered and goes by the event's id, or by its body."""
    if message.key is not None:
        return _of_text(message.key)
    return _hash(message.headers.get("id", "").encode() or message.body)


@lru_cache(maxsize=4096)
def _of_text(key: str) -> int:
    return _hash(key.encode())


def _hash(seed: bytes) -> int:
    return sha256(seed).digest()[-1] % PARTITIONS


def share_of(member: int, members: Iterable[int]) -> int:
    """Say how many of 16 partitions are fair for one of the members: shares differ by one at most, and add up."""
    ranked = sorted(members)
    share, rest = divmod(PARTITIONS, len(ranked))
    return share + (ranked.index(member) < rest)


class Held:
    """A partition that a member holds: what it gave out, and up to where everything of that is acknowledged."""

    __slots__ = ("_acknowledged", "_given", "cursor", "epoch", "leaving", "position", "suspect_to")

    def __init__(self, position: int, epoch: str, suspect_to: int = 0) -> None:
        self.position = position
        self.cursor = position
        """The newest id that was given out."""
        self.epoch = epoch
        self.suspect_to = suspect_to
        """Ids up to here may have been given out by a former holder that did not hand over."""
        self.leaving = False
        """More than the fair share: nothing is given out of it any more; released when all is acknowledged."""
        self._given: deque[int] = deque()
        self._acknowledged: set[int] = set()

    def __len__(self) -> int:
        """Count what is given out beyond the position."""
        return len(self._given)

    def give(self, ids: Sequence[int]) -> None:
        """Note what is given out, in order."""
        self._given.extend(ids)
        if ids:
            self.cursor = ids[-1]

    def acknowledge(self, id: int) -> None:
        """Note an acknowledgement; the position moves only over an unbroken run of them."""
        if id <= self.position:
            return
        self._acknowledged.add(id)
        while self._given and self._given[0] in self._acknowledged:
            self.position = self._given.popleft()
            self._acknowledged.remove(self.position)


def settle_share(held: dict[Partition, Held], topic: str, share: int) -> list[Partition]:
    """Mark the partitions beyond the share as leaving; give those that can be released now."""
    mine = sorted(partition for partition in held if partition.topic == topic)
    for index, partition in enumerate(mine):
        held[partition].leaving = index >= share
    return [partition for partition in mine if held[partition].leaving and not len(held[partition])]


def read_fairly(
    partitions: Sequence[Partition], room: int, read: Callable[[Partition, int], Sequence[T]]
) -> tuple[list[T], list[Partition]]:
    """Read from the partitions in equal parts until the room is full or all are dry; give what came, and the dry ones.

    `read` gives at most so many further things of a partition; fewer than asked means that it is dry.
    """
    found: list[T] = []
    dry: list[Partition] = []
    open = list(partitions)
    while open and len(found) < room:
        part = max(1, (room - len(found)) // len(open))
        for partition in open[: room - len(found)]:
            things = read(partition, part)
            found += things
            if len(things) < part:
                open.remove(partition)
                dry.append(partition)
    return found, dry
