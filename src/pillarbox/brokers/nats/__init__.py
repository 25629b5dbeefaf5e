"""NATS JetStream: a topic is a subject that some stream takes. Core NATS is never used, for nobody acknowledges there.

    options.py      what can be set, in the URL and in the table [nats]
    connection.py   one connection that comes back by itself
    streams.py      which stream takes a subject, asked once
    wire.py         a message ⇄ NATS headers and bytes
    answers.py      what an acknowledgement or a refusal means
    publisher.py    the near end
    seat.py         one topic of a subscriber: who may read it, and what it has in hand
    subscriber.py   the far end
    keeping.py      how long a stream keeps what it has
    looking.py      how it keeps it
    trial.py        a stream for a run

Only these files import the library nats-py, whose own name is `nats`.
"""

from pillarbox.brokers.given import Given, Publishers, Subscribers
from pillarbox.brokers.nats.keeping import NatsKeeping
from pillarbox.brokers.nats.looking import NatsLooking
from pillarbox.brokers.nats.options import NatsOptions
from pillarbox.brokers.nats.publisher import NatsPublisher
from pillarbox.brokers.nats.subscriber import NatsSubscriber
from pillarbox.brokers.nats.trial import NatsTrial
from pillarbox.facts import Looking
from pillarbox.ports import Keeping, Trial

__all__ = [
    "NatsOptions",
    "NatsPublisher",
    "NatsSubscriber",
    "open_keeping",
    "open_looking",
    "open_publisher",
    "open_subscriber",
    "open_trial",
]


def open_publisher(given: Given) -> Publishers:
    options = NatsOptions.read(*given.url, given.tables.get("nats", {}))
    return lambda: NatsPublisher(options, publish_timeout=given.publish_timeout)


def open_subscriber(given: Given) -> Subscribers:
    options = NatsOptions.read(*given.url, given.tables.get("nats", {}))
    return lambda consumer, topics: NatsSubscriber(options, consumer=consumer, topics=topics)


def open_keeping(given: Given) -> Keeping:
    return NatsKeeping(NatsOptions.read(*given.url, given.tables.get("nats", {})))


def open_looking(given: Given) -> Looking:
    return NatsLooking(NatsOptions.read(*given.url, given.tables.get("nats", {})))


def open_trial(given: Given) -> Trial:
    return NatsTrial(NatsOptions.read(*given.url, given.tables.get("nats", {})))
