"""Whether RabbitMQ has somewhere to put events."""

from collections.abc import Iterator

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble
from pillarbox.facts import RabbitFacts


def _queues(facts: Facts) -> Iterator[Trouble]:
    assert isinstance(facts.broker, RabbitFacts)
    rabbit = facts.broker
    unroutable = "an event that nobody has a queue for is dead in one attempt"
    if rabbit.exchange_missing:
        line = (
            f"RabbitMQ has no exchange {rabbit.exchange}: {unroutable}; a consumer makes the exchange and its queues"
            " when it starts for the first time, so start it before the relay"
        )
        yield Trouble("problem", line)
    for topic in rabbit.queues_missing:
        line = (
            f"RabbitMQ has no queue {topic}, and without an exchange a topic is the queue of its name: {unroutable};"
            " start the consumer, which makes it, or make it yourself"
        )
        yield Trouble("problem", line, (f"rabbitmqadmin declare queue name={topic} durable=true",))


CHECKS: Checks = {"queues": _queues}
