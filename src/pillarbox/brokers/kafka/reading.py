"""What was read ahead and not given out: in order, and bounded."""

from collections import deque
from collections.abc import Collection, Iterable

from pillarbox.brokers.kafka.client import Consumer, Record, TopicPartition
from pillarbox.brokers.kafka.partition import Name, name_of

MOST, MOST_BYTES = 1000, 16 << 20
"""Beyond so many records, or so many bytes of them, the partitions pause."""


class Reading:
    """The records that wait to be given out."""

    def __init__(self) -> None:
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._paused: list[TopicPartition] = []

    @property
    def paused(self) -> bool:
        return bool(self._paused)

    def add(self, record: Record) -> None:
        self._records.append(record)
        self._bytes += len(record)

    def first(self) -> Record | None:
        """Look at the oldest one."""
        return self._records[0] if self._records else None

    def take_first(self) -> None:
        self._bytes -= len(self._records.popleft())

    def drop(self, names: Collection[Name]) -> None:
        """Forget what was read of partitions."""
        self._records = deque(record for record in self._records if name_of(record) not in names)
        self._bytes = sum(map(len, self._records))

    def keep_in_bounds(self, consumer: Consumer, held: Iterable[Name]) -> None:
        """Let the partitions pause when there is too much, and go on when half of it is gone. Polling never stops, or
        the group would think us dead."""
        fullness = max(len(self._records) / MOST, self._bytes / MOST_BYTES)
        if self._paused and fullness <= 0.5:
            ours = set(held)
            consumer.resume([one for one in self._paused if (one.topic, one.partition) in ours])
            self._paused = []
        elif not self._paused and fullness > 1:
            self._paused = [TopicPartition(*name) for name in held]
            consumer.pause(self._paused)
