"""A partition that a member holds: what was given out, what is acknowledged, and what may come again.

Kafka keeps one number for a group and a partition, and a text beside it. The text says whether the partition is held,
and when it was given back in good order, up to where it had been given out; so the next holder knows what comes again:

    open         somebody works on it; if he is gone, the next MOST records may have been given out
    closed:57    everything below 57 had been given out
"""

from typing import NamedTuple

from pillarbox.brokers.kafka.client import Record, TopicPartition
from pillarbox.brokers.partitions import Held
from pillarbox.core.message import Delivery, Message

MOST = 1000
"""So many records of one partition are given out at most before they are acknowledged."""
OPEN, CLOSED = "open", "closed:"

Name = tuple[str, int]
"""A topic and the number of its partition."""


class Place(NamedTuple):
    """Where a record stands, and for which holding of its partition it was given out."""

    partition: Name
    offset: int
    epoch: str


class Partition:
    """One partition, from its assignment to its end."""

    def __init__(self, committed: TopicPartition, epoch: str) -> None:
        self.name: Name = (committed.topic, committed.partition)
        self.begins_at = committed.offset if committed.offset >= 0 else None
        self.held = Held(committed.offset - 1 if committed.offset >= 0 else -1, epoch=epoch)
        self.committed = self.held.position
        self._suspects, self._suspect_to = _suspicion(committed.metadata or "")

    def give(self, record: Record) -> Delivery:
        """Give a record out."""
        offset = record.offset()
        assert offset is not None
        again = offset < self._suspect_to or self._suspects > 0
        self._suspects -= 1
        self.held.give([offset])
        return Delivery(message_of(record), Place(self.name, offset, self.held.epoch), redelivered=again)

    @property
    def is_full(self) -> bool:
        return len(self.held) >= MOST

    def mark(self, text: str = OPEN) -> TopicPartition | None:
        """Give what Kafka is to keep; None if nobody knows where we are."""
        position = self.held.position
        if position < 0 and self.begins_at is None:
            return None
        return TopicPartition(*self.name, position + 1, text)

    def last_mark(self) -> TopicPartition | None:
        """Give what Kafka is to keep when we give it back."""
        return self.mark(f"{CLOSED}{max(self.held.cursor + 1, self._suspect_to)}")


def _suspicion(text: str) -> tuple[int, int]:
    """Read how many records may come again, or up to which offset."""
    end = text.removeprefix(CLOSED)
    if text.startswith(CLOSED) and end.isascii() and end.isdigit():
        return 0, int(end)
    return (MOST if text == OPEN else 0), 0


def message_of(record: Record) -> Message:
    """Read a message off a record. A header without a value is as good as none."""
    key = record.key()
    pairs: list[tuple[str, str | bytes | None]] = list(record.headers() or ())  # type: ignore[arg-type]  # never a dict
    headers = {name: _text(value) for name, value in pairs if value is not None}
    return Message(record.topic() or "", None if key is None else _text(key), headers, record.value() or b"")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="backslashreplace")


def name_of(record: Record) -> Name:
    """Say which partition a record is of."""
    return record.topic() or "", record.partition() or 0
