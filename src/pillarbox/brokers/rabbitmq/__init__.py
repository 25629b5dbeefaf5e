"""The RabbitMQ broker: confirmed publishing to an exchange or to queues, and a durable queue per consumer and topic."""

from pillarbox.brokers.rabbitmq.address import Address
from pillarbox.brokers.rabbitmq.publisher import RabbitPublisher
from pillarbox.brokers.rabbitmq.subscriber import RabbitSubscriber

__all__ = ["Address", "RabbitPublisher", "RabbitSubscriber"]
