"""The SQLite store keeps the contract of a store."""

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pillarbox.core.event import Event
from pillarbox.core.routing import Topics
from pillarbox.dbapi import Outbox
from pillarbox.ports import Store
from pillarbox.stores import replays
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.clock import ManualClock
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.store import LEASE, StoreContract, StoreFeatures
from tests.integration.sqlite_view import ComparedStore


class SqliteBench:
    """A database file; every store is an object of its own, with a thread, a connection and a lock of its own.

    What a store finds, the view must say too."""

    features = StoreFeatures()

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "shop.db")
        self.clock = ManualClock()
        self._opened: list[Store] = []

    async def store(self, owner: str = "a") -> Store:
        lease = timedelta(seconds=LEASE)
        store = ComparedStore(self.path, owner=owner, lease=lease, topics=Topics(), clock=self.clock, hooks=Hooks())
        self._opened.append(store)
        await store.open()
        await store.up()
        return store

    async def add(self, *events: Event[Any], commit: bool = True) -> None:
        connection = sqlite3.connect(self.path)
        Outbox().add(connection, *events)
        if commit:
            connection.commit()
        connection.close()

    async def begin(self, *events: Event[Any]) -> Callable[[], Awaitable[None]]:
        raise AssertionError("SQLite has one writer at a time")

    async def crash(self, store: Store) -> None:
        await store.close()  # which releases nothing in the tables; the kernel's lock goes, as with the process

    async def hang(self, store: Store) -> None:
        """Leave it alone: its lease runs by the clock."""

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a replay of ten events be one of several batches."""
    monkeypatch.setattr(replays, "BATCH", 3)


@pytest.mark.parametrize("rule", rules_of(StoreContract, SqliteBench.features))
async def test_the_sqlite_store(rule: str, tmp_path: Path) -> None:
    await check(StoreContract, rule, SqliteBench(tmp_path))
