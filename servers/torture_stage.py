"""The stage of `servers.torture`: PostgreSQL and a broker that were started for it, and what is done to them."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import psycopg

from pillarbox.torture.faults import FAILOVER, TOO_LARGE, UNROUTABLE, Strike
from pillarbox.torture.stage import Deed
from pillarbox.torture.taps.rabbitmq import EXCHANGE
from pillarbox.torture.writer import NOWHERE
from servers.fault_proxy import FaultProxy
from servers.kafka import Kafka
from servers.nats import Nats
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres
from servers.postgres_pair import Pair
from servers.process import STARTED
from servers.rabbitmq import RabbitMQ
from servers.redis import Redis

SLOW = 20_000.0
"""Bytes in a second, where the way to the broker is slow."""
YOUNG = 6.0
"""Seconds for which a quorum queue of RabbitMQ does not survive a kill, with all that was confirmed in it."""
AnyBroker = Redis | Kafka | Nats | RabbitMQ


class Broker(NamedTuple):
    """A broker that runs: the way straight to it, and the one through a proxy."""

    server: AnyBroker
    url: str
    proxy: FaultProxy
    proxied: str


class Way:
    """A way through a proxy, which can do one thing at a time: where faults overlap, the newest that lasts."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._lasting: dict[Strike, Callable[[FaultProxy], None]] = {}

    def deed(self, fault: Callable[[FaultProxy], None]) -> Deed:
        return Deed(lambda strike: self._begin(strike, fault), self._end)

    def _begin(self, strike: Strike, fault: Callable[[FaultProxy], None]) -> None:
        self._lasting[strike] = fault
        fault(self._proxy)

    def _end(self, strike: Strike) -> None:
        del self._lasting[strike]
        if self._lasting:
            [*self._lasting.values()][-1](self._proxy)
        else:
            self._proxy.heal()


class OwnServers:
    """PostgreSQL behind PgBouncer and a proxy, perhaps with a standby; a broker behind a proxy; a Redis for hints."""

    poisons: Collection[str] = (TOO_LARGE, UNROUTABLE)

    def __init__(self, servers: ExitStack, broker: str, major: str, *, failover: bool) -> None:
        self._postgres = servers.enter_context(Postgres(major))
        self._postgres.create_database("torture")
        self._pair = servers.enter_context(Pair(self._postgres, "torture")) if failover else None
        self._pooler = self._pair.pooler if self._pair else servers.enter_context(PgBouncer(self._postgres.port))
        self._to_database = servers.enter_context(FaultProxy(self._pooler.port))
        self.database = self._pair.direct if self._pair else self._postgres.url("torture")
        self.way_to_database = f"postgresql://postgres@127.0.0.1:{self._to_database.port}/torture"
        self.ledger, self.way_to_ledger = self.database, self.way_to_database
        self._books: Postgres | None = None
        if failover:
            self._books = servers.enter_context(Postgres(major))
            self.ledger = self.way_to_ledger = self._books.create_database("books")
        self._broker = BROKERS[broker](servers)
        self.broker, self.way_to_broker = self._broker.url, self._broker.proxied
        self._hints = servers.enter_context(Redis())  # one of its own, which can be flushed while the broker is away
        self.hint: str | None = self._hints.url()
        self._held: dict[Strike, psycopg.Connection[Any]] = {}
        self._may_be_young = isinstance(self._broker.server, RabbitMQ)
        self._broker_away: set[Strike] = set()
        deeds = {**self._to_servers(), **self._to_networks(), **self._to_more()}
        self.deeds: Mapping[str, Deed] = {name: deed._replace(whom=self._whom(name)) for name, deed in deeds.items()}

    def _whom(self, fault: str) -> Callable[[Strike], str]:
        """Name the server that a fault strikes, or to which it bars the way: after a failover it is another one."""
        if "broker" in fault:
            return lambda strike: type(self._broker.server).__name__
        if "hint" in fault:
            return lambda strike: "the Redis of hints"
        if "ledger" in fault:
            return lambda strike: "PostgreSQL of the ledger"
        return lambda strike: "PgBouncer" if "pooler" in fault else f"PostgreSQL on port {self._postgres.port}"

    def versions(self) -> Sequence[str]:
        return sorted(STARTED)

    def _to_servers(self) -> dict[str, Deed]:
        return {
            "kill the database": Deed(lambda strike: _again(self._postgres)),
            "terminate backends": Deed(lambda strike: self._terminate()),
            "hold a write transaction": Deed(self._holding("SELECT pg_current_xact_id()"), self._let_go),
            "hold a snapshot": Deed(self._holding("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"), self._let_go),
            "restart the pooler": Deed(lambda strike: self._restart_pooler()),
            "kill the broker": Deed(self._kill_broker, self._restart_broker),
            "flush the hint": Deed(lambda strike: self._flush()),
        }

    def _to_networks(self) -> dict[str, Deed]:
        ways = {"database": Way(self._to_database), "broker": Way(self._broker.proxy)}
        return {
            sentence.format(where): way.deed(fault)
            for where, way in ways.items()
            for sentence, fault in (
                ("cut the way to the {}", FaultProxy.cut),
                ("reset connections to the {}", FaultProxy.reset),
                ("slow the way to the {}", lambda proxy: proxy.slow(SLOW)),
                ("lose answers of the {}", FaultProxy.lose_answers),
            )
        }

    def _to_more(self) -> dict[str, Deed]:
        """Give what can be done where there is a standby, and a second PostgreSQL."""
        pair, books = self._pair, self._books
        if pair is None or books is None:
            return {}

        def fail_over(strike: Strike) -> None:
            pair.fail_over()
            self._postgres = pair.standby

        return {
            "kill the ledger's database": Deed(lambda strike: _again(books)),
            FAILOVER: Deed(lambda strike: pair.part(), fail_over),
        }

    def _restart_pooler(self) -> None:
        """Kill it: asked to end, it would wait for whoever is frozen or has lost an answer, and we for it."""
        self._pooler.kill()
        self._pooler.restart()

    def _kill_broker(self, strike: Strike) -> None:
        if self._may_be_young:
            time.sleep(YOUNG)  # the consumers have made their queues right before the first fault
            self._may_be_young = False
        self._broker.server.kill()
        if strike.lasts:
            self._broker_away.add(strike)
        else:
            self._restart_broker(strike)

    def _restart_broker(self, strike: Strike) -> None:
        """Let it come back, once nothing keeps it away any more."""
        self._broker_away.discard(strike)
        if not self._broker_away:
            self._broker.server.restart()

    def _flush(self) -> None:
        with self._hints.client() as client:
            client.flushdb()

    def _terminate(self) -> None:
        """End every session of the database but our own: those of relays, consumers and writers."""
        self._postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = 'torture' AND pid <> pg_backend_pid()",
            "torture",
        )

    def _holding(self, begin: str) -> Callable[[Strike], None]:
        """Keep a transaction open, as a report, a backup or somebody's coffee would."""

        def hold(strike: Strike) -> None:
            connection = psycopg.connect(self.database)
            connection.execute(begin.encode())
            connection.execute("SELECT count(*) FROM pillarbox_torture.accounts")
            self._held[strike] = connection

        return hold

    def _let_go(self, strike: Strike) -> None:
        self._held.pop(strike).close()


def _again(server: Postgres) -> None:
    server.kill()
    server.restart()


def _redis(servers: ExitStack) -> Broker:
    redis = servers.enter_context(Redis())
    with redis.client() as client:
        client.set(NOWHERE, "no stream, so no event can be added")
    proxy = servers.enter_context(FaultProxy(redis.port))
    return Broker(redis, redis.url(), proxy, redis.url(port=proxy.port))


def _kafka(servers: ExitStack) -> Broker:
    kafka = servers.enter_context(Kafka())
    return Broker(kafka, kafka.url, kafka.proxies[0], kafka.proxied(0))


def _nats(servers: ExitStack) -> Broker:
    nats = servers.enter_context(Nats())
    proxy = servers.enter_context(FaultProxy(nats.port))
    return Broker(nats, nats.url, proxy, f"nats://127.0.0.1:{proxy.port}")


def _rabbitmq(servers: ExitStack) -> Broker:
    rabbitmq = servers.enter_context(RabbitMQ())
    proxy = servers.enter_context(FaultProxy(rabbitmq.port))
    options = f"?exchange={EXCHANGE}"
    return Broker(rabbitmq, rabbitmq.url() + options, proxy, rabbitmq.url(port=proxy.port) + options)


BROKERS: Mapping[str, Callable[[ExitStack], Broker]] = {
    "redis": _redis,
    "kafka": _kafka,
    "nats": _nats,
    "rabbitmq": _rabbitmq,
}
