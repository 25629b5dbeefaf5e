"""Whether RabbitMQ has somewhere to put events, and keeps them there until somebody has had them."""

from collections.abc import Iterator

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble
from pillarbox.facts import RabbitFacts
from pillarbox.settings.durations import write_duration

UNROUTABLE = "an event that nobody has a queue for is dead in one attempt"


def _of(facts: Facts) -> RabbitFacts:
    assert isinstance(facts.broker, RabbitFacts)
    return facts.broker


def _queues(facts: Facts) -> Iterator[Trouble]:
    rabbit = _of(facts)
    if rabbit.exchange_missing:
        line = (
            f"RabbitMQ has no exchange {rabbit.exchange}: {UNROUTABLE}; a consumer makes the exchange and its queues"
            " when it starts for the first time, so start it before the relay"
        )
        yield Trouble("problem", line)
    for topic in rabbit.queues_missing:
        line = (
            f"RabbitMQ has no queue {topic}, and without an exchange a topic is the queue of its name: {UNROUTABLE};"
            " start the consumer, which makes it, or make it yourself"
        )
        yield Trouble("problem", line, (f"rabbitmqadmin declare queue name={topic} durable=true",))
    for topic in rabbit.unbound:
        line = (
            f"no queue is bound to the exchange {rabbit.exchange} for the topic {topic}: {UNROUTABLE}; start the"
            " consumer, which binds its own, or bind one yourself"
        )
        bind = f"rabbitmqadmin declare binding source={rabbit.exchange} destination=QUEUE routing_key={topic}"
        yield Trouble("problem", line, (bind,))
    if rabbit.untold is not None:
        line = (
            f"RabbitMQ does not say what is bound to what, and what queues throw away: {rabbit.untold}; turn the plugin"
            ' on, say where it is (rabbitmq.management), or that there is none ("none")'
        )
        yield Trouble("note", line, ("rabbitmq-plugins enable rabbitmq_management",))


def _limits(facts: Facts) -> Iterator[Trouble]:
    for queue in _of(facts).queues:
        if not queue.durable:
            line = (
                f"the queue {queue.name} is not durable: with the next restart of the server it is gone, and what was"
                " published to it; make it anew as a durable one, best as a quorum queue"
            )
            yield Trouble("problem", line)
        if queue.has_dead_letters:
            continue
        if queue.drops_oldest:
            line = (
                f"the queue {queue.name} is bounded, and when it is full it drops its oldest messages (max-length with"
                " the overflow drop-head), whether somebody has had them or not; let it refuse new ones, with the"
                " overflow reject-publish"
            )
            yield Trouble("problem", line)
        if queue.lives is not None:
            line = (
                f"the queue {queue.name} drops what has waited for {write_duration(queue.lives)} (message-ttl), whether"
                " somebody has had it or not: a consumer that is away for longer misses it; take the limit off"
            )
            yield Trouble("problem", line)
        if queue.deliveries is not None:
            line = (
                f"the queue {queue.name} throws a message away when it has come {queue.deliveries} times"
                " (delivery-limit), as it does to a consumer that dies of it; take the limit off (-1)"
            )
            yield Trouble("note", line)


def _policies(facts: Facts) -> Iterator[Trouble]:
    for policy in _of(facts).idle_policies:
        line = (
            f"the policy {policy.name} applies to nothing: no queue or exchange is called {policy.pattern}, or another"
            " policy with a higher priority applies to it; mend its pattern, or drop it if nobody needs it"
        )
        yield Trouble("note", line, (f"rabbitmqctl list_policies; rabbitmqctl clear_policy {policy.name}",))


CHECKS: Checks = {"queues": _queues, "queue limits": _limits, "policies": _policies}
