"""Redis Streams, and Valkey's: a topic is a stream, a message an entry of it.

options.py      the URL and the settings, checked; what is unsafe is refused
wire.py         one connection, and what the server's errors mean
entries.py      a message ⇄ the fields of an entry
publisher.py    the near end: one MULTI/EXEC per batch
scripts.py      the group's bookkeeping, as Lua that the server runs
member.py       one member of a consumer group: its share of the partitions
subscriber.py   the far end: waiting, and handing out
looking.py      how the server keeps what it has
trial.py        streams for a run
hint.py         no stream at all: the inbox's notes of what was handled
"""

from collections.abc import Sequence

from pillarbox.brokers.given import Given, Publishers, Subscribers
from pillarbox.brokers.redis.looking import RedisLooking
from pillarbox.brokers.redis.options import read_options
from pillarbox.brokers.redis.publisher import RedisPublisher
from pillarbox.brokers.redis.subscriber import RedisSubscriber
from pillarbox.brokers.redis.trial import RedisTrial
from pillarbox.facts import Looking
from pillarbox.ports import Keeping, Kept, Trial

__all__ = [
    "RedisPublisher",
    "RedisSubscriber",
    "open_keeping",
    "open_looking",
    "open_publisher",
    "open_subscriber",
    "open_trial",
]


def open_publisher(given: Given) -> Publishers:
    url, options = ":".join(given.url), given.tables.get("redis", {})
    read_options(url, options)
    return lambda: RedisPublisher(url, options=options, publish_timeout=given.publish_timeout, hooks=given.hooks)


def open_subscriber(given: Given) -> Subscribers:
    url, options = ":".join(given.url), given.tables.get("redis", {})
    read_options(url, options)
    return lambda consumer, topics: RedisSubscriber(url, consumer=consumer, topics=topics, options=options)


def open_keeping(given: Given) -> Keeping:
    options = read_options(":".join(given.url), given.tables.get("redis", {}))
    by = "its stream, which nobody trims" if options.maxlen is None else "redis.maxlen, which bounds its length only"

    async def keeping(topics: Sequence[str]) -> Sequence[Kept]:
        return [Kept(topic, None, by) for topic in topics]

    return keeping


def open_looking(given: Given) -> Looking:
    return RedisLooking(read_options(":".join(given.url), given.tables.get("redis", {})))


def open_trial(given: Given) -> Trial:
    return RedisTrial(read_options(":".join(given.url), given.tables.get("redis", {})))
