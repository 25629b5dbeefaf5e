"""The embedded broker: a durable log in a SQLite file, for one machine and any number of processes on it.

file.py         the tables, opening, foreign errors
publisher.py    appends, in durable transactions of some MB
retention.py    deletes what is old and was read
subscriber.py   the far end: waiting, and handing to the worker thread
member.py       one member of a consumer group: its share of the partitions, its positions
"""

from pillarbox.brokers.sqlite.publisher import SqlitePublisher
from pillarbox.brokers.sqlite.subscriber import SqliteSubscriber

__all__ = ["SqlitePublisher", "SqliteSubscriber"]
