"""Options: the URL `kafka://host:9092,host:9092` and the table `[kafka]`, checked before anything is opened.

What librdkafka can be told is told by its own names, `linger.ms = 20`; what would lose, copy or reorder events is
refused unless somebody says `unsafe = true`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl, unquote

from pillarbox.brokers.urls import check_login, host_and_port
from pillarbox.errors import ConfigError

PORT = 9092
_SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_ALIASES = {
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "sasl.mechanism": "sasl.mechanisms",
}
_TRUE = ("true", "1", "t")
_FALSE = ("false", "0", "f")

_SAFE: dict[str, tuple[tuple[str, ...], str]] = {
    "acks": (("all", "-1"), "a broker that dies takes acknowledged events with it"),
    "enable.idempotence": (_TRUE, "a retry inside the client may repeat and reorder events"),
    "enable.gapless.guarantee": (_TRUE, "what follows a failed event may arrive without it"),
    "message.timeout.ms": (("0",), "what follows an event that timed out may arrive without it"),
    "partitioner": (("murmur2_random",), "an aggregate may go to another partition than with Java's clients"),
    "queuing.strategy": (("fifo",), "later events go first"),
    "max.in.flight.requests.per.connection": (tuple("12345"), "the broker cannot keep the order of more than 5"),
    "enable.auto.commit": (_FALSE, "what no handler has committed counts as handled"),
    "enable.auto.offset.store": (_FALSE, "what no handler has committed counts as handled"),
    "auto.offset.reset": (("earliest", "smallest", "beginning"), "a new consumer passes over what is there already"),
    "isolation.level": (("read_committed",), "what another producer took back is handled"),
    "group.instance.id": ((), "others do not take over when a member leaves"),
    "enable.ssl.certificate.verification": (_TRUE, "anybody may answer in the broker's place"),
    "ssl.endpoint.identification.algorithm": (("https",), "anybody may answer in the broker's place"),
}
"""The values that are safe, and what the others do."""

_PREFIX_SAFE = (
    "acks",
    "enable.idempotence",
    "enable.gapless.guarantee",
    "message.timeout.ms",
    "partitioner",
    "queuing.strategy",
    "max.in.flight.requests.per.connection",
)
_OURS = {
    "bootstrap.servers": "the hosts stand in the broker's URL",
    "metadata.broker.list": "the hosts stand in the broker's URL",
    "group.id": "the group is named like the inbox",
    "transactional.id": "events are not sent in Kafka's transactions",
    "delivery.report.only.error": "published means that Kafka said so",
    "enable.partition.eof": "nobody looks at it",
}


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Where the brokers are, and what their client is told."""

    servers: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By librdkafka's names."""
    unsafe: bool = False

    @classmethod
    def read(cls, rest: str, table: Mapping[str, Any]) -> Self:
        """Read the part of the URL that follows the colon, and the table [kafka]; the URL wins."""
        check_login(rest)
        address, _, query = rest.removeprefix("//").partition("?")
        login, _, hosts = address.rpartition("@")
        given_hosts = [host for host in hosts.rstrip("/").split(",") if host]
        if not given_hosts or "/" in hosts.rstrip("/"):
            raise ConfigError(f"broker: write kafka://host:{PORT}, or several hosts with commas between them")
        servers = ",".join(host_and_port(host, PORT) for host in given_hosts)
        given = dict(table) | dict(parse_qsl(query, keep_blank_values=True))
        unsafe = _switch("unsafe", given.pop("unsafe", False))
        properties = {_ALIASES.get(name, name): _text(name, value) for name, value in given.items()}
        for name, value in properties.items():
            _check(name, value, unsafe)
        return cls(servers, _login(login) | properties, unsafe)

    @property
    def prefix_safe(self) -> bool:
        """Say whether of a key's records the accepted ones form a prefix, as they do unless somebody was unsafe."""
        return all(self.properties[name].lower() in _SAFE[name][0] for name in _PREFIX_SAFE if name in self.properties)

    @property
    def begins_at_the_oldest(self) -> bool:
        """Say whether a new group begins at the oldest record."""
        return self.properties.get("auto.offset.reset", "earliest").lower() in _SAFE["auto.offset.reset"][0]

    def for_producer(self, publish_timeout: float) -> dict[str, str]:
        """Give the properties of a producer. Its time is up when we say so, never before."""
        patience = int(min(5.0, publish_timeout / 2) * 1000)
        return {
            "bootstrap.servers": self.servers,
            "client.id": "pillarbox",
            "acks": "all",
            "enable.idempotence": "true",
            "enable.gapless.guarantee": "true",
            "message.timeout.ms": "0",
            "partitioner": "murmur2_random",
            "topic.metadata.propagation.max.ms": str(patience),
            "queue.buffering.max.kbytes": str(256 << 10),
            "reconnect.backoff.max.ms": "1000",
            **self.properties,
        }

    def for_admin(self) -> dict[str, str]:
        """Give the properties of a client that only asks."""
        return {"bootstrap.servers": self.servers, "client.id": "pillarbox", **self.properties}

    def for_consumer(self, group: str) -> dict[str, str]:
        """Give the properties of a member of a group."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": "pillarbox",
            "group.id": group,
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "auto.offset.reset": "earliest",
            # Those who stay keep their partitions while somebody joins or leaves: nothing of theirs comes again.
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": "15000",
            "heartbeat.interval.ms": "1000",
            "queued.min.messages": "1000",
            "queued.max.messages.kbytes": str(16 << 10),
            "reconnect.backoff.max.ms": "1000",
            # How soon a topic is found that was not there at first.
            "topic.metadata.refresh.interval.ms": "5000",
            "fetch.error.backoff.ms": "100",
            **self.properties,
        }


def _login(login: str) -> dict[str, str]:
    """Read `user:password` before the host."""
    if not login:
        return {}
    user, _, password = login.partition(":")
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": unquote(user),
        "sasl.password": unquote(password),
    }


def _check(name: str, value: str, unsafe: bool) -> None:
    if name in _OURS:
        raise ConfigError(f"kafka.{name}: cannot be set: {_OURS[name]}; leave it out")
    safe, why = _SAFE.get(name, ((value.lower(),), ""))
    if value.lower() not in safe and not unsafe:
        cure = f"leave it out ({safe[0]} is what we use)" if len(safe) in (1, 2, 3) else "leave it out"
        raise ConfigError(f"kafka.{name}: {value} is not safe: {why}; {cure}, or set kafka.unsafe = true")


def _switch(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _SWITCHES:
        return _SWITCHES[value.lower()]
    raise ConfigError(f"kafka.{name}: expected true or false")


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ConfigError(f"the option kafka.{name} takes a text, a number, true or false, as librdkafka knows it")
