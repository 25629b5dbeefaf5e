"""The brokers there are. A new one is a line here, a module in `brokers/`, a line in the suite and a page."""

from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of broker: the schemes of its URLs, and the table of the settings that has its options."""

    schemes: tuple[str, ...]
    table: str | None = None


BROKERS = {
    "sqlite": Kind(("sqlite",)),
    "kafka": Kind(("kafka",), "kafka"),
    "rabbitmq": Kind(("rabbitmq", "amqp", "amqps"), "rabbitmq"),
    "redis": Kind(("redis", "rediss"), "redis"),
    "nats": Kind(("nats", "tls"), "nats"),
    "webhook": Kind(("https", "http"), "webhooks"),
    "stdout": Kind(("stdout",)),
    "memory": Kind(("memory",)),
}
"""By the names of their modules in `brokers/`."""
