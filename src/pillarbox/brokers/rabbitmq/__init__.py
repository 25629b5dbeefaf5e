"""The RabbitMQ broker: confirmed publishing to an exchange or to queues, and a durable queue per consumer and topic."""

from pillarbox.brokers.given import Given, Publishers, Subscribers
from pillarbox.brokers.rabbitmq.address import Address
from pillarbox.brokers.rabbitmq.looking import RabbitLooking
from pillarbox.brokers.rabbitmq.publisher import RabbitPublisher
from pillarbox.brokers.rabbitmq.subscriber import RabbitSubscriber
from pillarbox.brokers.rabbitmq.trial import RabbitTrial
from pillarbox.facts import Looking
from pillarbox.ports import Trial

__all__ = [
    "Address",
    "RabbitPublisher",
    "RabbitSubscriber",
    "open_looking",
    "open_publisher",
    "open_subscriber",
    "open_trial",
]


def open_publisher(given: Given) -> Publishers:
    address = Address.parse(":".join(given.url), given.tables.get("rabbitmq"))
    return lambda: RabbitPublisher(address, publish_timeout=given.publish_timeout)


def open_subscriber(given: Given) -> Subscribers:
    address = Address.parse(":".join(given.url), given.tables.get("rabbitmq"))
    return lambda consumer, topics: RabbitSubscriber(address, consumer=consumer, topics=topics)


def open_looking(given: Given) -> Looking:
    return RabbitLooking(Address.parse(":".join(given.url), given.tables.get("rabbitmq")))


def open_trial(given: Given) -> Trial:
    return RabbitTrial(Address.parse(":".join(given.url), given.tables.get("rabbitmq")))
