"""RabbitMQ on the bench: a virtual host with an exchange, and a fault proxy in front of it."""

import base64
from collections.abc import Sequence

from pillarbox.brokers.rabbitmq.frames import read
from pillarbox.core.message import Message
from servers.rabbitmq import RabbitMQ

EXCHANGE = "events"


def stored_in(server: RabbitMQ, vhost: str, queue: str, *, leave: bool = True) -> Sequence[Message]:
    """Look what a queue holds, in order, and leave it there or not. What is left goes back one by one: whoever looks
    again sees another order."""
    how = "ack_requeue_true" if leave else "ack_requeue_false"
    question = {"count": 100_000, "ackmode": how, "encoding": "base64"}
    return [message_of(one) for one in server.ask("POST", f"queues/{vhost}/{queue}/get", question)]


def message_of(found: dict[str, object]) -> Message:
    """Make a message of what the management API shows."""
    properties = found["properties"]
    assert isinstance(properties, dict)
    body = base64.b64decode(str(found["payload"]))
    headers = properties.get("headers") or {}
    return read(str(found["routing_key"]), headers, properties.get("content_type"), body)[0]
