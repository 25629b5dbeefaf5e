"""Kafka: a topic is a topic, a message a record of it, the key decides the partition as Java's clients do it.

options.py      the URL and the settings, checked; what is unsafe is refused
client.py       the client library: producers and consumers, and what its errors mean
flight.py       one send on its way, and the reports that have come of it
carrier.py      the producer's thread: hands over, collects, gives up in time, finds out which record was refused
publisher.py    the near end
partition.py    a partition that a member holds: what was given out, what is acknowledged, what may come again
reading.py      what was read ahead
member.py       the consumer's thread: one member of a group
subscriber.py   the far end
keeping.py      how long a topic's records are kept
looking.py      how they are kept
trial.py        topics for a run
"""

from pillarbox.brokers.given import Given, Publishers, Subscribers
from pillarbox.brokers.kafka.keeping import KafkaKeeping
from pillarbox.brokers.kafka.looking import KafkaLooking
from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.brokers.kafka.publisher import KafkaPublisher
from pillarbox.brokers.kafka.subscriber import KafkaSubscriber
from pillarbox.brokers.kafka.trial import KafkaTrial
from pillarbox.facts import Looking
from pillarbox.ports import Keeping, Trial

__all__ = [
    "KafkaOptions",
    "KafkaPublisher",
    "KafkaSubscriber",
    "open_keeping",
    "open_looking",
    "open_publisher",
    "open_subscriber",
    "open_trial",
]


def open_publisher(given: Given) -> Publishers:
    options = KafkaOptions.read(given.url.rest, given.tables.get("kafka", {}))
    return lambda: KafkaPublisher(options, publish_timeout=given.publish_timeout)


def open_subscriber(given: Given) -> Subscribers:
    options = KafkaOptions.read(given.url.rest, given.tables.get("kafka", {}))
    return lambda consumer, topics: KafkaSubscriber(options, consumer=consumer, topics=topics)


def open_keeping(given: Given) -> Keeping:
    return KafkaKeeping(KafkaOptions.read(given.url.rest, given.tables.get("kafka", {})))


def open_looking(given: Given) -> Looking:
    return KafkaLooking(KafkaOptions.read(given.url.rest, given.tables.get("kafka", {})))


def open_trial(given: Given) -> Trial:
    return KafkaTrial(KafkaOptions.read(given.url.rest, given.tables.get("kafka", {})))
