"""Whether the broker can be asked, and has the topics."""

from collections.abc import Iterator

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble, not_looked_at
from pillarbox.facts import BrokerFacts, KafkaFacts, NatsFacts

DEAD = "every event for it is dead in one attempt"


def _away(facts: Facts) -> Iterator[Trouble]:
    if "broker" in facts.unset:
        yield not_looked_at("none is set (broker in pillarbox.toml, or --broker)")
    if facts.away is not None:
        line = f"the broker cannot be asked: {facts.away}; while it is away, events wait in the outbox"
        yield Trouble("problem", line)


def _topics(facts: Facts) -> Iterator[Trouble]:
    """Name the topics that the broker does not have; or say that it was asked about none."""
    if facts.kept is None:
        return
    if not facts.topics:
        yield Trouble("note", "no topic is known here: name those to ask about with --topic")
    known = {kept.topic for kept in facts.kept}
    for topic in facts.topics:
        if topic not in known:
            yield _missing(topic, facts.broker)


def _missing(topic: str, broker: BrokerFacts | None) -> Trouble:
    match broker:
        case KafkaFacts(misnamed=names) if topic in names:
            line = (
                f"no topic of Kafka can be called {topic!r}: {DEAD}; a name has at most 249 letters (without accents),"
                " digits, dots, underscores and hyphens: mend it where the application names it"
            )
            return Trouble("problem", line)
        case KafkaFacts(makes_topics=False):
            line = (
                f"Kafka has no topic {topic}, and makes none by itself (auto.create.topics.enable): {DEAD}; create it,"
                " or mend its name"
            )
            return Trouble("problem", line, (f"kafka-topics.sh --create --topic {topic}",))
        case NatsFacts():
            line = (
                f"no stream of NATS takes the subject {topic}: {DEAD}; create one, add the subject to a stream, or mend"
                " its name"
            )
            return Trouble("problem", line)
    return Trouble("note", f"the broker has no topic {topic}, so nothing is known of it; is its name right?")


BROKER: Checks = {"broker": _away}
TOPICS: Checks = {"topics": _topics}
