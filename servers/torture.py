"""`python -m servers.torture`: torture on servers that are started for it, to which everything may be done.

Relays and consumers reach PostgreSQL through a pooler and a fault proxy, and the broker through a fault proxy; writers,
the tap and the judge go straight to them.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from secrets import randbelow
from typing import Any

import psycopg

from pillarbox.torture.faults import GROUPS, Strike, named
from pillarbox.torture.program import torture
from pillarbox.torture.stage import GivenServers, Stage
from servers.fault_proxy import FaultProxy
from servers.kafka import Kafka
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres
from servers.process import STARTED
from servers.redis import Redis

SLOW = 20_000.0
"""Bytes in a second, where the way to the broker is slow."""


class OwnServers:
    """PostgreSQL behind PgBouncer and a proxy, and a broker behind a proxy."""

    def __init__(self, servers: ExitStack, broker: str) -> None:
        self._postgres = servers.enter_context(Postgres("15"))
        self._postgres.create_database("torture")
        self._pooler = servers.enter_context(PgBouncer(self._postgres.port))
        self._to_database = servers.enter_context(FaultProxy(self._pooler.port))
        self.database = self._postgres.url("torture")
        self.way_to_database = f"postgresql://postgres@127.0.0.1:{self._to_database.port}/torture"
        self._broker: Redis | Kafka
        if broker == "kafka":
            self._broker = kafka = servers.enter_context(Kafka())
            self._to_broker, self.broker, self.way_to_broker = kafka.proxies[0], kafka.url, kafka.proxied(0)
        else:
            self._broker = redis = servers.enter_context(Redis())
            self._to_broker = servers.enter_context(FaultProxy(redis.port))
            self.broker, self.way_to_broker = redis.url(), redis.url(port=self._to_broker.port)
        self._held: dict[Strike, psycopg.Connection[Any]] = {}
        self._deeds: dict[str, Callable[[Strike], None]] = {
            "kill the database": lambda strike: self._again(self._postgres),
            "terminate backends": lambda strike: self._terminate(),
            "hold a write transaction": lambda strike: self._hold(strike, "SELECT pg_current_xact_id()"),
            "hold a snapshot": lambda strike: self._hold(strike, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"),
            "restart the pooler": lambda strike: self._pooler.restart(),
            "kill the broker": self._kill_broker,
            "cut the way to the database": lambda strike: self._to_database.cut(),
            "cut the way to the broker": lambda strike: self._to_broker.cut(),
            "reset connections to the broker": lambda strike: self._to_broker.reset(),
            "slow the way to the broker": lambda strike: self._to_broker.slow(SLOW),
            "lose answers of the broker": lambda strike: self._to_broker.lose_answers(),
        }
        self.offers: Collection[str] = frozenset(self._deeds)

    def strike(self, strike: Strike) -> None:
        self._deeds[strike.name](strike)

    def heal(self, strike: Strike) -> None:
        if strike.name == "kill the broker":
            self._broker.restart()
        elif strike in self._held:
            self._held.pop(strike).close()
        elif strike.name == "cut the way to the database":
            self._to_database.heal()
        else:
            self._to_broker.heal()

    def versions(self) -> Sequence[str]:
        return sorted(STARTED)

    def _again(self, server: "Postgres | Redis | Kafka") -> None:
        server.kill()
        server.restart()

    def _kill_broker(self, strike: Strike) -> None:
        if strike.lasts:
            self._broker.kill()
        else:
            self._again(self._broker)

    def _terminate(self) -> None:
        """End every session of the database but our own: those of relays, consumers and writers."""
        self._postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = 'torture' AND pid <> pg_backend_pid()",
            "torture",
        )

    def _hold(self, strike: Strike, begin: str) -> None:
        """Keep a transaction open, as a report, a backup or somebody's coffee would."""
        connection = psycopg.connect(self.database)
        connection.execute(begin.encode())
        connection.execute("SELECT count(*) FROM pillarbox_torture.accounts")
        self._held[strike] = connection


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m servers.torture", description=__doc__)
    parser.add_argument("--broker", choices=["redis", "kafka", "embedded"], default="redis")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--faults", default=",".join(GROUPS), help="kinds of faults, with commas between")
    parser.add_argument("--keep", type=Path, default=None, help="an empty directory for the evidence")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    groups = given.faults.split(",")
    seed = randbelow(1_000_000) if given.seed is None else given.seed
    command = f"python -m servers.torture --broker {given.broker} --minutes {given.minutes:g} --seed {seed}"
    with ExitStack() as servers:
        directory = given.keep or Path(servers.enter_context(tempfile.TemporaryDirectory(prefix="pillarbox-torture-")))
        directory.mkdir(parents=True, exist_ok=True)
        stage: Stage = (
            GivenServers(f"sqlite:///{directory}/shop.db", f"sqlite:///{directory}/stream.db")
            if given.broker == "embedded"
            else OwnServers(servers, given.broker)
        )
        assert named(groups), "there is no such kind of fault"
        return torture(
            stage, directory.resolve(), given.minutes, seed, groups, f"{command} --faults {given.faults}",
            kept=given.keep is not None, as_json=given.json,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
