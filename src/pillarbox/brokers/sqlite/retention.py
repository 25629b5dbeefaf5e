"""Retention of the embedded broker: messages go after 7 days, but never before a living consumer has had them."""

import sqlite3
from datetime import timedelta

from pillarbox.brokers.partitions import PARTITIONS
from pillarbox.brokers.sqlite.file import transaction

KEPT = timedelta(days=7)
BATCH = 5000
_MICROSECOND = timedelta(microseconds=1)

# A consumer that was not seen for as long as messages are kept holds nobody up any more.
_READ_TO = """
    SELECT min(position) FROM positions JOIN consumers USING (consumer)
    WHERE topic = ? AND partition = ? AND seen_at > ?
"""
# The inner limit comes first: the age is looked at for these few alone, not for the whole partition.
_DELETE = """
    DELETE FROM messages WHERE id IN (
        SELECT id FROM (
            SELECT id, at FROM messages WHERE topic = ? AND partition = ? AND id <= ? ORDER BY id LIMIT ?
        ) WHERE at <= ?
    )
"""
_NEXT_TOPIC = "SELECT min(topic) FROM messages WHERE topic > ?"


def prune(connection: sqlite3.Connection, now: int) -> int:
    """Delete one bounded batch of messages that are old and were read; give how many. Time is in microseconds."""
    cutoff = now - KEPT // _MICROSECOND
    deleted = 0
    with transaction(connection):
        topic = ""
        while deleted < BATCH and (topic := connection.execute(_NEXT_TOPIC, (topic,)).fetchone()[0]) is not None:
            for partition in range(PARTITIONS):
                (read_to,) = connection.execute(_READ_TO, (topic, partition, cutoff)).fetchone()
                bound = (1 << 63) - 1 if read_to is None else read_to
                parameters = (topic, partition, bound, BATCH - deleted, cutoff)
                deleted += connection.execute(_DELETE, parameters).rowcount
    return deleted
