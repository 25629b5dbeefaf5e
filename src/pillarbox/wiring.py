"""Wiring: settings → Relay, Consumer, Admin. The only file that chooses concrete classes, imported when chosen."""

import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pillarbox.admin.admin import Admin
from pillarbox.admin.doctor import Doctor
from pillarbox.admin.source import SourceAdmin
from pillarbox.brokers.given import Given, Publishers, Subscribers
from pillarbox.core.message import Message
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topics
from pillarbox.core.secrets import without_secrets
from pillarbox.errors import ConfigError, MissingExtra
from pillarbox.facts import FactStore, Looking
from pillarbox.inbox import consumer as consumers
from pillarbox.inbox.hint import Hint
from pillarbox.inbox.inbox import Handlers
from pillarbox.inbox.programs import Wrap
from pillarbox.ports import Clock, Keeping, Publisher, Subscriber, Trial
from pillarbox.relay import relay as relays
from pillarbox.relay import watch as watches
from pillarbox.serving import serve_consumer, serve_relay
from pillarbox.settings import Settings
from pillarbox.settings.brokers import BROKERS
from pillarbox.settings.urls import Url, file_of, parse_url
from pillarbox.stores.audit import user
from pillarbox.telemetry.hooks import Hooks
from pillarbox.telemetry.logging import By, LogMoments

if TYPE_CHECKING:
    from pillarbox.stores.postgres import PostgresStore
    from pillarbox.telemetry.opentelemetry import Traces

DATABASES = ("sqlite", "postgresql", "postgres")


class SystemClock:
    """The wall clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)


class NearEnd(Protocol):
    """What a relay needs of a broker that is an object instead of a URL, such as `MemoryBroker()` in a test."""

    def publisher(self) -> Publisher: ...


class FarEnd(Protocol):
    """What a consumer needs of one."""

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
        broker: str | NearEnd | None = None,
        publish: Callable[[list[Message]], Any] | None = None,
        hooks: Hooks | None = None,
        clock: Clock | None = None,
    ) -> None:
        settings = _settled(settings, database=database, broker=broker)
        self.name = _owner()
        clock, hooks = clock or SystemClock(), hooks or Hooks(LogMoments(by=By("relay", self.name)))
        self._serving = serving = serve_relay(self, settings, clock, hooks, open_admin)
        hooks = serving.hooks
        if publish is not None and broker is not None:
            raise ConfigError("publish, broker: give one of them: a function of your own, or where events go")
        open_publisher = _publisher(settings, broker, clock, hooks) if publish is None else _function(publish, settings)
        open_store = _store(settings, self.name, clock, hooks)
        system = _system(settings, broker) if publish is None else "function"

        def open_parts() -> relays.Parts:
            return relays.Parts(serving.store(open_store()), serving.publisher(_traced(open_publisher(), system)))

        super().__init__(open_parts, settings, clock, hooks)

    async def run(self) -> None:
        async with self._serving.server:
            await super().run()


class Watch(watches.Watch):
    """Keeps status and retention of an outbox whose events the reader of a replication slot carries."""

    def __init__(self, settings: Settings, *, hooks: Hooks | None = None) -> None:
        clock, self.name = SystemClock(), _owner()
        hooks = hooks or Hooks(LogMoments(by=By("relay", self.name)))
        self._serving = serving = serve_relay(self, settings, clock, hooks, open_admin)
        open_store = _watching_store(settings, self.name, clock, serving.hooks)
        super().__init__(lambda: serving.store(open_store()), settings, serving.hooks)

    async def run(self) -> None:
        async with self._serving.server:
            await super().run()


class Consumer(consumers.Consumer):
    """Receives events from a broker and applies each once, through an inbox.

    `inbox` is an Inbox of one of the doors, with its handlers; `topics` is what it receives.
    """

    def __init__(
        self,
        inbox: Any,
        *,
        topics: Sequence[str],
        broker: str | FarEnd | None = None,
        settings: Settings | None = None,
        hooks: Hooks | None = None,
        clock: Clock | None = None,
    ) -> None:
        settings = _settled(settings, broker=broker)
        clock = clock or SystemClock()
        if isinstance(topics, str) or not topics:
            raise ConfigError(f'topics: {topics!r} is no list of topics; name at least one: ["order-events"]')
        if not isinstance(getattr(inbox, "handlers", None), Handlers):
            raise ConfigError(f"inbox: {inbox!r:.60} is no Inbox of a door, such as pillarbox.sqlalchemy")
        self.name = inbox.handlers.consumer
        hooks = hooks or Hooks(LogMoments(by=By("consumer", self.name)))
        self._serving = serve_consumer(self, settings, hooks, topics)
        hooks = self._serving.hooks
        open_subscriber = _subscriber(settings, broker, inbox.handlers.consumer, topics, clock, hooks)
        super().__init__(
            inbox,
            open_subscriber,
            policy=_policy(settings),
            concurrency=settings.inbox.concurrency,
            topics=Topics(settings.topics),
            clock=clock,
            hooks=hooks,
            remembers=settings.retention.inbox,
            unordered=settings.inbox.unordered,
            stores=settings.inbox.mode == "store",
            unhandled=settings.inbox.unhandled,
            open_hint=_hint(settings),
            open_wrap=partial(_wrap, _system(settings, broker), inbox.handlers.consumer),
        )

    async def run(self) -> None:
        async with self._serving.server:
            await super().run()


def _traces(system: str) -> "Traces | None":
    """Give what traces, if this process does: what it has not imported, it does not use."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from pillarbox.telemetry.opentelemetry import open_traces

    return open_traces(system)


def _traced(publisher: Publisher, system: str) -> Publisher:
    traces = _traces(system)
    return publisher if traces is None else traces.publisher(publisher)


def _wrap(system: str, consumer: str) -> Wrap | None:
    traces = _traces(system)
    if traces is None:
        return None
    return lambda handler: traces.handler(handler.function, consumer, is_async=handler.is_async)


def _hint(settings: Settings) -> Callable[[], Hint] | None:
    if settings.inbox.hint is None:
        return None
    try:
        from pillarbox.brokers.redis.hint import LONGEST, RedisHint, read_hint
    except MissingExtra as error:
        raise MissingExtra(error.extra, "inbox.hint") from error.__cause__
    options = read_hint(settings.inbox.hint)
    kept = settings.retention.inbox
    return lambda: RedisHint(options, LONGEST if kept is None else min(kept, LONGEST))


def open_admin(settings: Settings) -> Admin:
    """Make the admin service for the outbox that the settings name; `async with` opens it."""
    who, clock = user(), SystemClock()
    return Admin(_store(settings, who, clock, Hooks())(), who, clock)


def open_keeping(settings: Settings) -> Keeping | None:
    """Make what asks the settings' broker how long it keeps messages; None if it keeps none that were had."""
    keeping: Keeping | None = _asking(settings, "open_keeping")
    return keeping


def open_looking(settings: Settings) -> Looking | None:
    """Make what asks the settings' broker how it is; None if there is nothing to ask."""
    looking: Looking | None = _asking(settings, "open_looking")
    return looking


def open_trial(settings: Settings) -> Trial | None:
    """Make what makes topics at the settings' broker, and removes them; None if nobody has to."""
    trial: Trial | None = _asking(settings, "open_trial")
    return trial


def open_publisher(settings: Settings) -> Publisher:
    """Make the near end of the settings' broker, for who publishes without a relay."""
    return _publisher(settings, None, SystemClock(), Hooks())()


def open_store(settings: Settings) -> FactStore:
    """Make the relay's access to the outbox that the settings name, for who reads it without a relay."""
    return _store(settings, _owner(), SystemClock(), Hooks())()


def _asking(settings: Settings, name: str) -> Any:
    if settings.broker is None:
        return None
    module, given = _chosen(settings, SystemClock(), Hooks())
    return getattr(module, name)(given) if hasattr(module, name) else None


def check_urls(settings: Settings) -> None:
    """Refuse settings without a database and a broker, each of a known kind."""
    _url("database", settings.database, "sqlite:///shop.db")
    _url("broker", settings.broker, "sqlite:///stream.db")
    check_kinds(settings, "database", "broker")


def check_kinds(settings: Settings, *names: Literal["database", "broker"]) -> None:
    """Refuse a database or a broker of no known kind, or a file that can be none, as far as they are set; open and
    import nothing."""
    for name in names:
        text = settings.database if name == "database" else settings.broker
        if text is None:
            continue
        url = parse_url(name, text)
        if name == "broker":
            _system(settings, None)
        elif url.scheme not in DATABASES:
            raise _unknown("database", text, ["sqlite", "postgresql"])
        if url.scheme == "sqlite":
            file_of(name, url)


def open_doctor(settings: Settings) -> Doctor:
    """Make what asks the outbox and the broker that the settings name, as far as they do, for what may go wrong."""
    clock = SystemClock()
    store = None if settings.database is None else _store(settings, user(), clock, Hooks())()
    return Doctor(settings, store, open_keeping(settings), open_looking(settings), clock)


def open_source(settings: Settings) -> SourceAdmin:
    """Make the admin service that can say who carries the events; `async with` opens it."""
    who, clock = user(), SystemClock()
    return SourceAdmin(_watching_store(settings, who, clock, Hooks())(), who, clock)


def _settled(
    settings: Settings | None, *, database: str | None = None, broker: str | NearEnd | FarEnd | None = None
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


def _store(settings: Settings, owner: str, clock: Clock, hooks: Hooks) -> Callable[[], FactStore]:
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
        return _watching_store(settings, owner, clock, hooks)
    raise _unknown("database", settings.database, ["sqlite", "postgresql"])


def _watching_store(settings: Settings, owner: str, clock: Clock, hooks: Hooks) -> Callable[[], "PostgresStore"]:
    url = _url("database", settings.database, "postgresql://localhost/shop")
    if url.scheme not in ("postgresql", "postgres"):
        raise ConfigError(f"database: replication slots are PostgreSQL's own, and this is {url.scheme}")
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


def _publisher(settings: Settings, broker: str | NearEnd | None, clock: Clock, hooks: Hooks) -> Callable[[], Publisher]:
    if broker is not None and not isinstance(broker, str):
        return broker.publisher
    module, given = _chosen(settings, clock, hooks)
    publishers: Publishers = module.open_publisher(given)
    return publishers


def _function(publish: Callable[[list[Message]], Any], settings: Settings) -> Callable[[], Publisher]:
    from pillarbox.brokers.function import FunctionPublisher

    return lambda: FunctionPublisher(publish, publish_timeout=settings.relay.publish_timeout)


def _subscriber(
    settings: Settings, broker: str | FarEnd | None, consumer: str, topics: Sequence[str], clock: Clock, hooks: Hooks
) -> Callable[[], Subscriber]:
    if broker is not None and not isinstance(broker, str):
        return partial(broker.subscriber, consumer, topics)
    module, given = _chosen(settings, clock, hooks)
    if not hasattr(module, "open_subscriber"):
        raise ConfigError(
            f"broker: {without_secrets(settings.broker or '')!r} is nothing that Pillarbox consumes from: a webhook is"
            " received by its endpoint, a web application, and nothing comes back out of stdout"
        )
    subscribers: Subscribers = module.open_subscriber(given)
    return partial(subscribers, consumer, topics)


def _chosen(settings: Settings, clock: Clock, hooks: Hooks) -> tuple[ModuleType, Given]:
    url, name = _url("broker", settings.broker, "sqlite:///stream.db"), _system(settings, None)
    given = Given(url, settings.options, settings.relay.publish_timeout, clock, hooks)
    return import_module(f"pillarbox.brokers.{name}"), given


def _system(settings: Settings, broker: str | NearEnd | FarEnd | None) -> str:
    """Say what a broker is called: one by a URL as its module in `brokers/`."""
    if broker is not None and not isinstance(broker, str):
        return type(broker).__name__
    url = _url("broker", settings.broker, "sqlite:///stream.db")
    name = next((name for name, kind in BROKERS.items() if url.scheme in kind.schemes), None)
    if name is None:
        known = [scheme for name, kind in BROKERS.items() if name != "memory" for scheme in kind.schemes]
        raise _unknown("broker", settings.broker, known)
    return name


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
