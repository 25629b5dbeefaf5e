"""Facts: what a store says of itself for `pillarbox doctor` to judge. Values; what of it is bad is not said here."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, NamedTuple, Protocol

from pillarbox.ports import SchemaStatus, Store


@dataclass(frozen=True, slots=True)
class Drift:
    """Something of the tables that is not as the migrations made it."""

    what: str
    """For people: "the index pillarbox_outbox_xid is missing"."""
    statement: str | None = None
    """The SQL that mends it, if one statement does."""


@dataclass(frozen=True, slots=True)
class SqliteFacts:
    """How an SQLite file is, and how one opens it that sets nothing."""

    schema: SchemaStatus
    drift: Sequence[Drift] = ()
    journal_mode: str | None = None
    """As the file says; None if there is no file."""
    synchronous: int | None = None
    """What a connection has that does not set it: 0 OFF, 1 NORMAL, 2 FULL, 3 EXTRA."""

    @property
    def readable(self) -> bool:
        """The tables can be read, and to open the store changes nothing."""
        return self.schema.version == self.schema.needed and self.journal_mode == "wal"


@dataclass(frozen=True, slots=True)
class Lax:
    """Where commits are told not to wait for the disk: a role, a database, both; neither is the server itself."""

    role: str | None = None
    database: str | None = None


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction of somebody that has not ended."""

    pid: int
    user: str | None
    program: str | None
    state: str | None
    since: datetime


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction that was prepared for two-phase commit, and neither committed nor rolled back."""

    gid: str
    owner: str
    since: datetime


@dataclass(frozen=True, slots=True)
class XminHolder:
    """Who keeps vacuum from removing what was deleted: by so many transactions it lags behind."""

    kind: Literal["transaction", "prepared transaction", "slot", "standby"]
    name: str
    """A pid, a gid, or the slot's name."""
    behind: int


@dataclass(frozen=True, slots=True)
class VacuumedTable:
    """How one of our tables is vacuumed."""

    name: str
    autovacuum: bool
    live: int
    dead: int


@dataclass(frozen=True, slots=True)
class Rights:
    """What the user of this connection may do with our tables, compared with what a relay needs."""

    user: str
    superuser: bool
    owner: bool
    missing: Sequence[str] = ()
    """For people: "DELETE on pillarbox_outbox"."""
    beyond: Sequence[str] = ()
    """What the outbox lets it do that no relay needs: "UPDATE"."""
    public: Sequence[str] = ()
    """Of what tables everybody may do something."""
    sees_others: bool = True
    """It sees what the sessions of other users are at."""


Pooling = Literal["transaction", "session", "statement"]
"""For how long a pooler gives somebody a session of the server."""


@dataclass(frozen=True, slots=True)
class PostgresFacts:
    """How a PostgreSQL server is, and our tables in it."""

    schema: SchemaStatus
    version: int
    """As server_version_num: 150018."""
    standby: bool
    skew: timedelta
    """So far the server's clock is ahead of this machine's, as far as can be told."""
    pooler: Pooling | None
    """How a pooler works that stands between."""
    rights: Rights
    refusal: str | None = None
    """Why no relay starts on this server, if it is not for its being a standby or for the pooler."""
    drift: Sequence[Drift] = ()
    fsync: bool = True
    full_page_writes: bool = True
    autovacuum: bool = True
    track_counts: bool = True
    lax: Sequence[Lax] = ()
    identity_cache: int = 1
    """So many ids of the outbox a session draws at once."""
    transactions: Sequence[OpenTransaction] = ()
    """The oldest first."""
    prepared: Sequence[PreparedTransaction] = ()
    xmin: Sequence[XminHolder] = ()
    """The furthest behind first."""
    tables: Sequence[VacuumedTable] = ()

    @property
    def readable(self) -> bool:
        """The tables can be read, and to open the store changes nothing."""
        return self.schema.version == self.schema.needed


class FactStore(Store, Protocol):
    """A store that can say how its database is."""

    async def facts(self) -> SqliteFacts | PostgresFacts:
        """Look, and change nothing: not even what opening the store would set right. Needs no `open`, only `close`."""


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """How a Redis keeps what it has; None where it does not tell, as one that others run may not."""

    durable: bool
    """The relay waits for the disk (redis.durable)."""
    appendonly: str | None
    appendfsync: str | None
    maxmemory: int | None
    """0: as much as there is."""
    maxmemory_policy: str | None
    replica: bool = False
    """It is a copy of another one, and takes nothing itself."""
    replicas: int = 0
    """So many others are copies of it now."""
    awaited: int = 0
    """The relay waits for so many of them (redis.replicas)."""
    maxlen: int | None = None
    """The relay keeps streams this short (redis.maxlen)."""
    version: tuple[int, int] | None = None
    """Of Valkey, which Redis it is like."""
    waitaof: bool | None = None
    """It can be asked to wait for its disk, as redis.durable does."""


@dataclass(frozen=True, slots=True)
class NatsStream:
    """The stream that takes a topic."""

    topic: str
    name: str
    storage: str
    acknowledges: bool
    discard: str
    bounded: bool
    """It has a limit of messages or bytes."""
    duplicate_window: timedelta
    replicas: int
    clustered: bool
    """There are other servers that could have a replica."""
    largest: int
    """The largest message in bytes, headers and all."""


@dataclass(frozen=True, slots=True)
class NatsFacts:
    """The streams of those topics that have one."""

    streams: Sequence[NatsStream]
    version: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class RabbitQueue:
    """How a queue keeps what it gets."""

    name: str
    durable: bool
    drops_oldest: bool
    """When it is full."""
    lives: timedelta | None
    """So long a message may wait in it."""
    deliveries: int | None
    """So often it delivers a message."""
    has_dead_letters: bool
    """What it throws away goes somewhere."""


class IdlePolicy(NamedTuple):
    """A policy that applies to nothing."""

    name: str
    pattern: str


@dataclass(frozen=True, slots=True)
class RabbitFacts:
    """Where RabbitMQ has nowhere to put events, and what becomes of them there."""

    exchange: str
    """Where events are published; empty: to the queue that is named as the topic."""
    exchange_missing: bool
    queues_missing: Sequence[str]
    """The topics without such a queue, if there is no exchange."""
    unbound: Sequence[str] = ()
    """The topics for which no queue is bound to the exchange."""
    queues: Sequence[RabbitQueue] = ()
    """Those that get one of the topics."""
    idle_policies: Sequence[IdlePolicy] = ()
    untold: str | None = None
    """Why nothing is known of bindings, queues and policies, which AMQP does not tell."""


@dataclass(frozen=True, slots=True)
class KafkaTopic:
    """How a topic is replicated, and what it takes."""

    name: str
    replicas: int
    """Of the partition that has the fewest; 0 if that is not known."""
    min_insync: int
    unclean: bool
    """A replica that lags behind may become the leader."""
    largest: int
    """The largest batch in bytes, and so the largest message."""


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """The cluster, and those of the topics that it has."""

    brokers: int
    largest: int
    """The largest message in bytes that the relay would send."""
    topics: Sequence[KafkaTopic]
    misnamed: Sequence[str] = ()
    """What no topic can be called."""
    makes_topics: bool | None = None
    """The brokers make a topic that is not there; None if they do not tell."""


@dataclass(frozen=True, slots=True)
class WebhookFacts:
    """The endpoint of webhooks, which can be reached."""

    origin: str
    certificate_until: datetime | None
    """When its certificate runs out, if it has one that was looked at."""


BrokerFacts = RedisFacts | NatsFacts | RabbitFacts | KafkaFacts | WebhookFacts


class Looking(Protocol):
    """Asks a broker how it is, and changes nothing."""

    async def __call__(self, topics: Sequence[str]) -> BrokerFacts:
        """Ask, about these topics. Raises BrokerUnavailable while it cannot be asked."""
