"""The embedded broker: a durable log in a SQLite file, for one machine and any number of processes on it.

file.py         the tables, opening, foreign errors
publisher.py    appends, in durable transactions of some MB
retention.py    deletes what is old and was read
subscriber.py   the far end: waiting, and handing to the worker thread
member.py       one member of a consumer group: its share of the partitions, its positions
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from pillarbox.brokers.given import Given, Publishers, Subscribers
from pillarbox.brokers.sqlite.file import look
from pillarbox.brokers.sqlite.publisher import SqlitePublisher
from pillarbox.brokers.sqlite.retention import KEPT
from pillarbox.brokers.sqlite.subscriber import SqliteSubscriber
from pillarbox.ports import Keeping, Kept
from pillarbox.settings.urls import file_of

__all__ = ["SqlitePublisher", "SqliteSubscriber", "open_keeping", "open_publisher", "open_subscriber"]


def open_publisher(given: Given) -> Publishers:
    path = file_of("broker", given.url)
    return lambda: SqlitePublisher(path, publish_timeout=given.publish_timeout, hooks=given.hooks)


def open_subscriber(given: Given) -> Subscribers:
    path, hooks, clock = file_of("broker", given.url), given.hooks, given.clock
    return lambda consumer, topics: SqliteSubscriber(path, consumer=consumer, topics=topics, hooks=hooks, clock=clock)


def open_keeping(given: Given) -> Keeping:
    path = Path(file_of("broker", given.url))

    async def keeping(topics: Sequence[str]) -> Sequence[Kept]:
        await asyncio.to_thread(look, path)
        return [Kept(topic, KEPT, "the embedded broker") for topic in topics]

    return keeping
