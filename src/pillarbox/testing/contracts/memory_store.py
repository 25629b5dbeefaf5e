"""The bench of the memory store; with a broken store class on it, the suite proves that its rules can fail."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from pillarbox.core.event import Event
from pillarbox.ports import Store
from pillarbox.testing.clock import ManualClock
from pillarbox.testing.contracts.store_bench import LEASE, StoreFeatures
from pillarbox.testing.memory import MemoryDatabase, MemoryOutbox
from pillarbox.testing.memory_records import MemoryStore


class MemoryStoreBench:
    """One database in memory."""

    features = StoreFeatures(late_commits=True, shares=True)

    def __init__(self, kind: type[MemoryStore] = MemoryStore) -> None:
        self.clock = ManualClock()
        self.database = MemoryDatabase(self.clock)
        self._kind = kind

    async def store(self, owner: str = "a") -> Store:
        return self._kind(self.database, owner, lease=timedelta(seconds=LEASE))

    async def add(self, *events: Event[Any], commit: bool = True) -> None:
        transaction = self.database.begin()
        MemoryOutbox().add(transaction, *events)
        if commit:
            transaction.commit()
        else:
            transaction.rollback()

    async def begin(self, *events: Event[Any]) -> Callable[[], Awaitable[None]]:
        transaction = self.database.begin()
        MemoryOutbox().add(transaction, *events)

        async def commit() -> None:
            transaction.commit()

        return commit

    async def crash(self, store: Store) -> None:
        assert isinstance(store, MemoryStore)
        store.crash()

    async def hang(self, store: Store) -> None:
        """Leave it alone: its lease runs by the clock."""

    async def close(self) -> None:
        """There is nothing to let go of."""
