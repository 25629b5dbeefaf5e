"""RabbitMQ on the bench: a virtual host with an exchange, and a fault proxy in front of it."""

import base64
from collections.abc import Sequence

from pillarbox.brokers.rabbitmq.frames import read
from pillarbox.core.message import Message
from servers.rabbitmq import RabbitMQ

EXCHANGE = "events"


def stored_in(server: RabbitMQ, vhost: str, queue: str) -> Sequence[Message]:
    """Look what a queue holds, in order, and leave it there."""
    found = server.ask(
        "POST",
        f"queues/{vhost}/{queue}/get",
        {"count": 100_000, "ackmode": "ack_requeue_true", "encoding": "base64"},
    )
    return [message_of(one) for one in found]


def message_of(found: dict[str, object]) -> Message:
    """Make a message of what the management API shows."""
    properties = found["properties"]
    assert isinstance(properties, dict)
    body = base64.b64decode(str(found["payload"]))
    headers = properties.get("headers") or {}
    return read(str(found["routing_key"]), headers, properties.get("content_type"), body)[0]
