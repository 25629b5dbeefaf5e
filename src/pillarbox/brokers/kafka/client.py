"""The client library: producers and consumers made of our options, and what their errors mean."""

import logging
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.errors import ConfigError, MissingExtra

try:
    from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
    from confluent_kafka import Message as Record
    from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]  # it has it all the same
    from confluent_kafka.cimpl import NewTopic
except ModuleNotFoundError as error:
    raise MissingExtra("kafka", "a kafka:// broker") from error

__all__ = ["Consumer", "KafkaError", "KafkaException", "Producer", "Record", "TopicPartition"]

TOPIC_REFUSED = (KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED)
"""What is said of a topic, and so holds for every record of it."""
TOPIC_UNKNOWN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
GROUP_UNKNOWN = (KafkaError.GROUP_ID_NOT_FOUND,)
RECORD_REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
)
"""What is said of a whole batch, though one record of it is meant."""
TAKEN_OVER = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_MEMBER_EPOCH,
    KafkaError.STALE_MEMBER_EPOCH,
)
"""Another member holds it now, or will in a moment."""

_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")

_logger = logging.getLogger("pillarbox.brokers.kafka")
# They tell nothing that the outcomes do not, or that anybody could change.
_IDLE_TALK = ("CONFWARN", "GETPID", "FAIL", "ERROR", "FATAL", "TERMINATE", "COMMITFAIL", "REQTMOUT", "MAXPOLL")


class Journal:
    """What a client had to say lately. librdkafka says it in the thread that polls."""

    def __init__(self) -> None:
        self.errors: deque[KafkaError] = deque(maxlen=20)

    def log(self, level: int, _: str, facility: str, client: str, words: str) -> None:
        """Be the client's logger."""
        _logger.log(logging.DEBUG if facility in _IDLE_TALK else level, "%s %s: %s", facility, client, words)

    @property
    def all_down(self) -> bool:
        """No broker can be reached, or none lets us in."""
        return any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in self.errors)

    def last_words(self) -> str:
        """Say what went wrong last, and what is worth most: why nobody lets us in, or why one cannot be reached."""
        told = [error for error in self.errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
        denied = [error for error in told if error.code() == KafkaError._AUTHENTICATION]
        if denied:
            cure = "mend user and password there, or in the broker's URL or [kafka], which are read at the start"
            return f"{denied[-1].str()}; {cure}"
        return told[-1].str() if told else ""


def make_producer(options: KafkaOptions, publish_timeout: float, journal: Journal, **more: str) -> Producer:
    """Make a producer; it connects when it is needed."""
    properties: dict[str, Any] = options.for_producer(publish_timeout) | more
    # C functions alone: after a fatal error the library calls them with an exception on its way.
    properties["error_cb"] = journal.errors.append
    try:
        return Producer(properties, logger=journal)
    except (KafkaException, TypeError, ValueError) as error:
        raise _wrong_setting(error) from error


def make_consumer(options: KafkaOptions, group: str, journal: Journal, **callbacks: Any) -> Consumer:
    """Make a member of a group; it joins with its first subscription."""
    properties: dict[str, Any] = options.for_consumer(group) | {"error_cb": journal.errors.append, **callbacks}
    try:
        return Consumer(properties, logger=journal)
    except (KafkaException, TypeError, ValueError) as error:
        raise _wrong_setting(error) from error


def _make_admin(options: KafkaOptions, journal: Journal) -> AdminClient:
    properties: dict[str, Any] = options.for_admin() | {"error_cb": journal.errors.append}
    try:
        return AdminClient(properties, logger=journal)
    except (KafkaException, TypeError, ValueError) as error:
        raise _wrong_setting(error) from error


class Replication(NamedTuple):
    """Which brokers there are, and how many replicas each topic has: of the partition that has the fewest."""

    brokers: list[int]
    replicas: dict[str, int]


def replication(options: KafkaOptions, patience: float, journal: Journal) -> Replication | KafkaError:
    """Ask for the cluster, and wait for at most `patience` seconds; give it, or why not."""
    client = _make_admin(options, journal)
    try:
        # Of all topics: to ask for one by name may make it.
        found = client.list_topics(timeout=patience)
    except KafkaException as error:
        client.poll(0)
        return error_of(error)
    replicas = {
        name: min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
        for name, topic in found.topics.items()
    }
    return Replication(list(found.brokers), replicas)


def topic_settings(
    options: KafkaOptions, topics: Sequence[str], patience: float, journal: Journal
) -> dict[str, dict[str, str] | KafkaError]:
    """Ask for the settings of topics, and wait for at most `patience` seconds; give them, or why not. What cannot be
    the name of a topic is not asked for."""
    client = _make_admin(options, journal)
    wanted = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics if can_be_topic(topic)]
    asked = client.describe_configs(wanted, request_timeout=patience) if wanted else {}
    found = {resource.name: _values(answer) for resource, answer in asked.items()}
    client.poll(0)  # which writes into the journal why nobody was reached
    return found


def makes_topics(options: KafkaOptions, broker: int, patience: float, journal: Journal) -> bool | None:
    """Ask a broker whether it makes a topic that is not there; None if it does not tell."""
    wanted = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    client = _make_admin(options, journal)  # what it was asked for ends with it
    found = _values(client.describe_configs([wanted], request_timeout=patience)[wanted])
    said = None if isinstance(found, KafkaError) else found.get("auto.create.topics.enable")
    return None if said is None else said == "true"


def can_be_topic(name: str) -> bool:
    """Say whether Kafka lets a topic have this name."""
    return _NAME.fullmatch(name) is not None


def make_topics(
    options: KafkaOptions, topics: Sequence[str], partitions: int, patience: float, journal: Journal
) -> list[KafkaError]:
    """Make topics, replicated as the cluster does it by default; give why not."""
    wanted = [NewTopic(topic, num_partitions=partitions, replication_factor=-1) for topic in topics]
    client = _make_admin(options, journal)  # what it was asked for ends with it
    return _errors(client.create_topics(wanted, request_timeout=patience), patience)


def remove_topics(
    options: KafkaOptions, topics: Sequence[str], group: str, patience: float, journal: Journal
) -> list[KafkaError]:
    """Remove topics and a group; give why not."""
    client = _make_admin(options, journal)
    groups = client.delete_consumer_groups([group], request_timeout=patience)
    gone = client.delete_topics(list(topics), request_timeout=patience)
    return _errors(groups, patience) + _errors(gone, patience)


def _errors(asked: Mapping[str, Any], patience: float) -> list[KafkaError]:
    found = []
    for answer in asked.values():
        try:
            answer.result(patience)
        except KafkaException as error:
            found.append(error_of(error))
    return found


def _values(answer: Any) -> dict[str, str] | KafkaError:
    try:
        return {name: entry.value for name, entry in answer.result().items() if entry.value is not None}
    except KafkaException as error:
        return error_of(error)


def _wrong_setting(error: Exception) -> ConfigError:
    words = error_of(error).str() if isinstance(error, KafkaException) else str(error)
    named = re.search(r"""(?:property:? "?|`)([a-z][a-z0-9_.]+\.[a-z0-9_.]+)""", words)
    return ConfigError(f"kafka.{named[1]}: {words}" if named else f"kafka: {words}")


def error_of(exception: KafkaException) -> KafkaError:
    """Give the error that an exception carries."""
    error: KafkaError = exception.args[0]
    return error
