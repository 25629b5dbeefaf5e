"""Wiring: settings → Relay, Consumer, Admin. The only file that chooses concrete classes, imported when chosen."""

import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from getpass import getuser
from typing import TYPE_CHECKING, Any, Protocol

from pillarbox.admin.admin import Admin
from pillarbox.core.message import Message
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topics
from pillarbox.errors import ConfigError
from pillarbox.inbox import consumer as consumers
from pillarbox.inbox.inbox import Handlers
from pillarbox.ports import Clock, Publisher, Store, Subscriber
from pillarbox.relay import relay as relays
from pillarbox.settings import Settings
from pillarbox.settings.urls import Url, file_of, parse_url, without_secrets
from pillarbox.telemetry.hooks import Hooks
from pillarbox.telemetry.logging import LogMoments

if TYPE_CHECKING:
    from pillarbox.brokers.memory import MemoryBroker


BROKERS = ("sqlite", "kafka", "rabbitmq", "redis", "nats")
"""The schemes of those that can be published to and consumed from."""


class SystemClock:
    """The wall clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class Broker(Protocol):
    """A broker as an object, instead of a URL: both its ends, such as `MemoryBroker()` in a test."""

    def publisher(self) -> Publisher: ...
    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber: ...


class Relay(relays.Relay):
    """Carries every committed event from an outbox to a broker, in order per aggregate.

    >>> relay = Relay(database="sqlite:///shop.db", broker="sqlite:///stream.db")

    `publish` is a way out of your own: called with a list of messages, awaited if async; an exception fails the batch.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        database: str | None = None,
        broker: str | Broker | None = None,
        publish: Callable[[list[Message]], Any] | None = None,
        hooks: Hooks | None = None,
        clock: Clock | None = None,
    ) -> None:
        settings = _settled(settings, database=database, broker=broker)
        clock, hooks = clock or SystemClock(), hooks or Hooks(LogMoments())
        if publish is not None and broker is not None:
            raise ConfigError("publish, broker: give one of them: a function of your own, or where events go")
        open_publisher = _publisher(settings, broker, hooks) if publish is None else _function(publish, settings)
        open_store = _store(settings, _owner(), clock, hooks)
        super().__init__(lambda: relays.Parts(open_store(), open_publisher()), settings, clock, hooks)


class Consumer(consumers.Consumer):
    """Receives events from a broker and applies each once, through an inbox.

    `inbox` is an Inbox of one of the doors, with its handlers; `topics` is what it receives.
    """

    def __init__(
        self,
        inbox: Any,
        *,
        topics: Sequence[str],
        broker: str | Broker | None = None,
        settings: Settings | None = None,
        hooks: Hooks | None = None,
        clock: Clock | None = None,
    ) -> None:
        settings = _settled(settings, broker=broker)
        clock, hooks = clock or SystemClock(), hooks or Hooks(LogMoments())
        if isinstance(topics, str) or not topics:
            raise ConfigError(f'topics: {topics!r} is no list of topics; name at least one: ["order-events"]')
        if not isinstance(getattr(inbox, "handlers", None), Handlers):
            raise ConfigError(f"inbox: {inbox!r:.60} is no Inbox of pillarbox.sqlalchemy or pillarbox.dbapi")
        if settings.inbox.mode != "handle":
            raise ConfigError(f"inbox.mode: this release knows only 'handle', not {settings.inbox.mode!r}")
        open_subscriber = _subscriber(settings, broker, inbox.handlers.consumer, topics, clock, hooks)
        super().__init__(
            inbox,
            open_subscriber,
            policy=_policy(settings),
            concurrency=settings.inbox.concurrency,
            topics=Topics(settings.topics),
            clock=clock,
            hooks=hooks,
        )


def open_admin(settings: Settings) -> Admin:
    """Make the admin service for the outbox that the settings name; `async with` opens it."""
    who, clock = f"{_user()}@{socket.gethostname()}", SystemClock()
    return Admin(_store(settings, who, clock, Hooks())(), who, clock)


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid {os.getuid()}"


def _settled(
    settings: Settings | None, *, database: str | None = None, broker: "str | Broker | None" = None
) -> Settings:
    settings = settings or Settings()
    if database is not None:
        settings = replace(settings, database=database)
    return replace(settings, broker=broker) if isinstance(broker, str) else settings


def _owner() -> str:
    """Name this start of this process: no other relay ever has the same name."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _policy(settings: Settings) -> RetryPolicy:
    return RetryPolicy(settings.relay.retries, settings.relay.backoff_first, settings.relay.backoff_longest)


def _store(settings: Settings, owner: str, clock: Clock, hooks: Hooks) -> Callable[[], Store]:
    url = _url("database", settings.database, "sqlite:///shop.db")
    if url.scheme == "sqlite":
        from pillarbox.stores.sqlite.store import SqliteStore

        path = file_of("database", url)
        return lambda: SqliteStore(
            path,
            owner=owner,
            prefix=settings.outbox.prefix,
            lease=settings.relay.lease,
            topics=Topics(settings.topics),
            clock=clock,
            hooks=hooks,
        )
    if url.scheme in ("postgresql", "postgres"):
        from pillarbox.stores.postgres import PostgresStore

        return lambda: PostgresStore(
            f"postgresql:{url.rest}",
            owner=owner,
            schema=settings.outbox.schema,
            prefix=settings.outbox.prefix,
            lease=settings.relay.lease,
            topics=Topics(settings.topics),
            clock=clock,
            hooks=hooks,
            window=2 * settings.relay.batch,
        )
    raise _unknown("database", settings.database, ["sqlite", "postgresql"])


def _publisher(settings: Settings, broker: str | Broker | None, hooks: Hooks) -> Callable[[], Publisher]:
    if broker is not None and not isinstance(broker, str):
        return broker.publisher
    url = _url("broker", settings.broker, "sqlite:///stream.db")
    timeout = settings.relay.publish_timeout
    match url.scheme:
        case "sqlite":
            from pillarbox.brokers.sqlite import SqlitePublisher

            path = file_of("broker", url)
            return lambda: SqlitePublisher(path, publish_timeout=timeout, hooks=hooks)
        case "stdout":
            from pillarbox.brokers.stdout import StdoutPublisher

            return lambda: StdoutPublisher(sys.stdout, publish_timeout=timeout)
        case "memory":
            return _memory_broker(url).publisher
        case "kafka":
            from pillarbox.brokers.kafka import KafkaOptions, KafkaPublisher

            kafka = KafkaOptions.read(url.rest, settings.options.get("kafka", {}))
            return lambda: KafkaPublisher(kafka, publish_timeout=timeout)
        case "nats" | "tls":
            from pillarbox.brokers.nats import NatsOptions, NatsPublisher

            nats = NatsOptions.read(url.scheme, url.rest, settings.options.get("nats", {}))
            return lambda: NatsPublisher(nats, publish_timeout=timeout)
        case "rabbitmq" | "amqp" | "amqps":
            from pillarbox.brokers.rabbitmq import Address, RabbitPublisher

            rabbitmq = Address.parse(f"{url.scheme}:{url.rest}", settings.options.get("rabbitmq"))
            return lambda: RabbitPublisher(rabbitmq, publish_timeout=timeout)
        case "redis" | "rediss":
            from pillarbox.brokers.redis import RedisPublisher

            server, own = f"{url.scheme}:{url.rest}", settings.options.get("redis", {})
            return lambda: RedisPublisher(server, options=own, publish_timeout=timeout, hooks=hooks)
        case "https" | "http":
            from pillarbox.brokers.webhook import WebhookOptions, WebhookPublisher

            endpoint = WebhookOptions.read(f"{url.scheme}:{url.rest}", settings.options.get("webhooks", {}))
            return lambda: WebhookPublisher(endpoint, publish_timeout=timeout)
    raise _unknown("broker", settings.broker, [*BROKERS, "https", "stdout"])


def _function(publish: Callable[[list[Message]], Any], settings: Settings) -> Callable[[], Publisher]:
    from pillarbox.brokers.function import FunctionPublisher

    return lambda: FunctionPublisher(publish, publish_timeout=settings.relay.publish_timeout)


def _subscriber(
    settings: Settings, broker: str | Broker | None, consumer: str, topics: Sequence[str], clock: Clock, hooks: Hooks
) -> Callable[[], Subscriber]:
    if broker is not None and not isinstance(broker, str):
        return partial(broker.subscriber, consumer, topics)
    url = _url("broker", settings.broker, "sqlite:///stream.db")
    match url.scheme:
        case "sqlite":
            from pillarbox.brokers.sqlite import SqliteSubscriber

            path = file_of("broker", url)
            return lambda: SqliteSubscriber(path, consumer=consumer, topics=topics, hooks=hooks, clock=clock)
        case "memory":
            return partial(_memory_broker(url).subscriber, consumer, topics)
        case "kafka":
            from pillarbox.brokers.kafka import KafkaOptions, KafkaSubscriber

            kafka = KafkaOptions.read(url.rest, settings.options.get("kafka", {}))
            return lambda: KafkaSubscriber(kafka, consumer=consumer, topics=topics)
        case "nats" | "tls":
            from pillarbox.brokers.nats import NatsOptions, NatsSubscriber

            nats = NatsOptions.read(url.scheme, url.rest, settings.options.get("nats", {}))
            return lambda: NatsSubscriber(nats, consumer=consumer, topics=topics)
        case "rabbitmq" | "amqp" | "amqps":
            from pillarbox.brokers.rabbitmq import Address, RabbitSubscriber

            rabbitmq = Address.parse(f"{url.scheme}:{url.rest}", settings.options.get("rabbitmq"))
            return lambda: RabbitSubscriber(rabbitmq, consumer=consumer, topics=topics)
        case "redis" | "rediss":
            from pillarbox.brokers.redis import RedisSubscriber

            server, own = f"{url.scheme}:{url.rest}", settings.options.get("redis", {})
            return lambda: RedisSubscriber(server, consumer=consumer, topics=topics, options=own)
        case "https" | "http":
            raise ConfigError("broker: webhooks are received by the endpoint itself, a web application; see its guide")
    raise _unknown("broker", settings.broker, BROKERS)


@cache
def _memory_broker(url: Url) -> "MemoryBroker":
    """Give the broker in this process's memory: relay and consumer must meet in the same one."""
    from pillarbox.brokers.memory import MemoryBroker

    return MemoryBroker()


def _url(setting: str, text: str | None, example: str) -> Url:
    if text is None:
        raise ConfigError(
            f"{setting}: is not set: give --{setting} {example}, PILLARBOX_{setting.upper()}, or {setting} = … in "
            "pillarbox.toml, which `pillarbox init` writes"
        )
    return parse_url(setting, text)


def _unknown(setting: str, text: str | None, schemes: Sequence[str]) -> ConfigError:
    known = f"known are {', '.join(schemes)}" if len(schemes) > 1 else f"the only known one is {schemes[0]}"
    return ConfigError(f"{setting}: {without_secrets(text or '')!r} is of no known kind; {known}")
