"""Redis Streams, and Valkey's: a topic is a stream, a message an entry of it.

options.py      the URL and the settings, checked; what is unsafe is refused
wire.py         one connection, and what the server's errors mean
entries.py      a message ⇄ the fields of an entry
publisher.py    the near end: one MULTI/EXEC per batch
scripts.py      the group's bookkeeping, as Lua that the server runs
member.py       one member of a consumer group: its share of the partitions
subscriber.py   the far end: waiting, and handing out
"""

from pillarbox.brokers.given import Given, Publishers, Subscribers
from pillarbox.brokers.redis.options import read_options
from pillarbox.brokers.redis.publisher import RedisPublisher
from pillarbox.brokers.redis.subscriber import RedisSubscriber

__all__ = ["RedisPublisher", "RedisSubscriber", "open_publisher", "open_subscriber"]


def open_publisher(given: Given) -> Publishers:
    url, options = ":".join(given.url), given.tables.get("redis", {})
    read_options(url, options)
    return lambda: RedisPublisher(url, options=options, publish_timeout=given.publish_timeout, hooks=given.hooks)


def open_subscriber(given: Given) -> Subscribers:
    url, options = ":".join(given.url), given.tables.get("redis", {})
    read_options(url, options)
    return lambda consumer, topics: RedisSubscriber(url, consumer=consumer, topics=topics, options=options)
