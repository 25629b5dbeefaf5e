"""How Kafka keeps the records of topics, and how large they may be."""

from collections.abc import Iterator

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble
from pillarbox.admin.wording import counted, sized
from pillarbox.facts import KafkaFacts, KafkaTopic


def _of(facts: Facts) -> KafkaFacts:
    assert isinstance(facts.broker, KafkaFacts)
    return facts.broker


def _replicas(facts: Facts) -> Iterator[Trouble]:
    kafka = _of(facts)
    for topic in kafka.topics:
        if topic.replicas != 1:
            continue
        line = f"the topic {topic.name} has no second replica: with the disk of its broker all its events are gone"
        if kafka.brokers == 1:
            yield Trouble("note", f"{line}; the cluster has one broker only, so this is for trying things out")
        else:
            line += (
                ", and while that broker is away nothing is published; give it three with kafka-reassign-partitions.sh"
            )
            yield Trouble("problem", line)


def _in_sync(facts: Facts) -> Iterator[Trouble]:
    for topic in _of(facts).topics:
        if topic.replicas and topic.min_insync > topic.replicas:
            line = (
                f"the topic {topic.name} wants {counted(topic.min_insync, 'replica')} in sync (min.insync.replicas) and"
                f" has {topic.replicas}: it takes no event at all"
            )
            yield Trouble("problem", line, (_alter(topic, f"min.insync.replicas={max(1, topic.replicas - 1)}"),))
        elif topic.replicas > 1 and topic.min_insync == 1:
            line = (
                f"the topic {topic.name} acknowledges an event as soon as one replica has it (min.insync.replicas is"
                " 1): if the others lag behind and that broker dies, what was published is gone"
            )
            yield Trouble("problem", line, (_alter(topic, f"min.insync.replicas={topic.replicas // 2 + 1}"),))
        elif topic.replicas > 1 and topic.min_insync == topic.replicas:
            line = (
                f"the topic {topic.name} wants all of its {topic.replicas} replicas in sync (min.insync.replicas):"
                " while one broker is away, if only for an upgrade, nothing is published"
            )
            yield Trouble("note", line, (_alter(topic, f"min.insync.replicas={topic.replicas - 1}"),))


def _unclean(facts: Facts) -> Iterator[Trouble]:
    for topic in _of(facts).topics:
        if topic.unclean:
            line = (
                f"a replica of the topic {topic.name} that lags behind may become its leader"
                " (unclean.leader.election.enable): what it does not have is gone, though it was acknowledged"
            )
            yield Trouble("problem", line, (_alter(topic, "unclean.leader.election.enable=false"),))


def _sizes(facts: Facts) -> Iterator[Trouble]:
    kafka = _of(facts)
    for topic in kafka.topics:
        if topic.largest < kafka.largest:
            line = (
                f"the topic {topic.name} takes at most {sized(topic.largest)} (max.message.bytes), and the relay sends"
                f" up to {sized(kafka.largest)} (kafka.message.max.bytes): an event in between is dead in one attempt"
            )
            yield Trouble("note", line, (_alter(topic, f"max.message.bytes={kafka.largest}"),))


def _alter(topic: KafkaTopic, setting: str) -> str:
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {topic.name} --add-config {setting}"


CHECKS: Checks = {
    "replicas": _replicas,
    "replicas in sync": _in_sync,
    "unclean elections": _unclean,
    "size of messages": _sizes,
}
