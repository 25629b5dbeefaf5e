"""The PostgreSQL store keeps the contract of a store."""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from pillarbox.core.event import Event
from pillarbox.core.routing import Topics
from pillarbox.ports import Store
from pillarbox.psycopg import Outbox
from pillarbox.stores import replays
from pillarbox.stores.postgres import PostgresStore
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.clock import ManualClock
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.store import LEASE, StoreContract, StoreFeatures
from tests.conftest import EVERY_POSTGRES


class DatabaseClock(ManualClock):
    """A manual clock that the database goes by too: `pillarbox_now()` is the only clock that our statements ask."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._connection = psycopg.connect(url, autocommit=True)
        self._replace_the_databases_clock()

    def _replace_the_databases_clock(self) -> None:
        self._connection.execute("CREATE TABLE test_clock (at timestamptz)")
        self._connection.execute("INSERT INTO test_clock VALUES (%s)", [self.now()])
        self._connection.execute(
            "CREATE OR REPLACE FUNCTION pillarbox_now() RETURNS timestamptz LANGUAGE sql VOLATILE"
            " AS 'SELECT at FROM public.test_clock'"
        )

    def advance(self, by: timedelta | float) -> None:
        super().advance(by)
        self._connection.execute("UPDATE test_clock SET at = %s", [self.now()])

    def wait_until_gone(self, pid: int) -> None:
        """Wait until the server has noticed that a client is gone: some milliseconds."""
        deadline = time.monotonic() + 10
        while self._connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone():
            assert time.monotonic() < deadline, f"backend {pid} does not end"

    def close(self) -> None:
        self._connection.close()


class PostgresBench:
    """A database of its own; every store has connections of its own."""

    features = StoreFeatures(late_commits=True, shares=True)

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = DatabaseClock(url)
        self._opened: list[PostgresStore] = []
        self._transactions: list[psycopg.Connection[Any]] = []

    async def store(self, owner: str = "a") -> Store:
        store = PostgresStore(
            self.url,
            owner=owner,
            lease=timedelta(seconds=LEASE),
            topics=Topics(),
            clock=self.clock,
            hooks=Hooks(),
            progress=timedelta(0),
        )
        self._opened.append(store)
        await store.open()
        return store

    async def add(self, *events: Event[Any], commit: bool = True) -> None:
        with psycopg.connect(self.url) as connection:
            Outbox().add(connection, *events)
            if not commit:
                connection.rollback()

    async def begin(self, *events: Event[Any]) -> Callable[[], Awaitable[None]]:
        connection = psycopg.connect(self.url)
        self._transactions.append(connection)
        Outbox().add(connection, *events)

        async def commit() -> None:
            connection.commit()

        return commit

    async def crash(self, store: Store) -> None:
        assert isinstance(store, PostgresStore)
        backend = store._chores.direct_backend
        await store.close()  # which releases nothing in the tables; its backends go, as with the process
        if backend is not None:
            self.clock.wait_until_gone(backend[0])

    async def hang(self, store: Store) -> None:
        """Leave it alone: its lease runs by the clock."""

    async def close(self) -> None:
        for store in self._opened:
            await store.close()
        for connection in self._transactions:
            connection.close()
        self.clock.close()


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a replay of ten events be one of several batches."""
    monkeypatch.setattr(replays, "BATCH", 3)


@pytest.mark.parametrize("migrated", EVERY_POSTGRES, indirect=True)
@pytest.mark.parametrize("rule", rules_of(StoreContract, PostgresBench.features))
async def test_the_postgres_store(rule: str, migrated: str) -> None:
    await check(StoreContract, rule, PostgresBench(migrated))
