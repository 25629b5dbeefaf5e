"""What the rules of a store are run on, and the few words they are written in."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain, repeat
from typing import Any, Protocol

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.retry import PUBLISHED, Dead, RetryAt
from pillarbox.core.routing import Line
from pillarbox.core.window import Settled, Settlement
from pillarbox.ports import Query, Record, Replay, Store
from pillarbox.testing.clock import ManualClock
from pillarbox.testing.contracts.rules import Bench

LEASE = 15.0
"""Seconds of lease that a store on the bench has."""
ROUNDS = 100
"""How often a rule reads before it says that a store gives out entries without end."""


@dataclass(frozen=True, slots=True)
class StoreFeatures:
    """What a database can do."""

    late_commits: bool = False
    """A transaction may commit after one that began later."""
    shares: bool = False
    """Two relays divide the lanes between them; otherwise the second one waits."""


class StoreBench(Bench, Protocol):
    """One database with the tables, empty, and a clock that stands still. Leases last LEASE seconds by that clock."""

    features: StoreFeatures
    clock: ManualClock

    async def store(self, owner: str = "a") -> Store:
        """Open a store of its own on the database, as a relay in a process of its own would."""

    async def add(self, *events: Event[Any], commit: bool = True) -> None:
        """Add events in one transaction, and commit it or roll it back."""

    async def begin(self, *events: Event[Any]) -> Callable[[], Awaitable[None]]:
        """Add events in a transaction that stays open; give what commits it. Needs `late_commits`."""

    async def crash(self, store: Store) -> None:
        """End a store as kill -9 would end its process: nothing is released, and its locks are free."""

    async def hang(self, store: Store) -> None:
        """Stop a store as SIGSTOP would stop its process: it does nothing, and keeps its locks. It may wake up."""


def event(type: str, aggregate: str | None = "1", *, topic: str = "orders", **more: Any) -> Event[Any]:
    """Make an event; its type is its name in the rules."""
    of = None if aggregate is None else ("order", aggregate)
    return Event(type, {"name": type}, aggregate=of, topic=topic, **more)


def line(aggregate: str = "1", topic: str = "orders") -> Line:
    """Give the line of such an event."""
    return topic, "order", aggregate


def names(entries: Sequence[Entry]) -> list[str]:
    """List entries by their types."""
    return [entry.event_type for entry in entries]


async def holder(bench: StoreBench, owner: str = "a") -> Store:
    """Open a store that holds lanes."""
    store = await bench.store(owner)
    assert (await store.take()).lanes, f"{owner} got no lanes"
    return store


async def read(store: Store) -> list[Entry]:
    """Read until there is nothing more now."""
    entries: list[Entry] = []
    for _ in range(ROUNDS):
        found = await store.entries(100)
        if not found:
            return entries
        entries += found
    raise AssertionError(f"entries come out without end: {names(entries[:5])} and so on")


async def settle(store: Store, entries: Sequence[Entry], *verdicts: Settled) -> None:
    """Settle entries, each with its verdict; the last verdict, or Published, holds for the rest."""
    judged = chain(verdicts, repeat(verdicts[-1] if verdicts else PUBLISHED))
    await store.settle([Settlement(entry, verdict) for entry, verdict in zip(entries, judged, strict=False)])


async def settle_each(store: Store, entries: Sequence[Entry], **verdicts: Settled) -> None:
    """Settle entries, each with the verdict under its name."""
    await settle(store, entries, *(verdicts[entry.event_type] for entry in entries))


async def publish_all(store: Store) -> list[str]:
    """Read and publish until there is nothing more now; give the names in the order in which they came out."""
    published: list[str] = []
    for _ in range(ROUNDS):
        entries = await store.entries(100)
        if not entries:
            return published
        await settle(store, entries)
        published += names(entries)
    raise AssertionError(f"entries come out without end: {published[:5]} and so on")


async def replayed(store: Store, query: Query, id: str = "replay-1", **how: Any) -> int:
    """Replay what a query means, from beginning to end; give how many."""
    replay: Replay | None = await store.begin_replay(id, query, **how)
    for _ in range(ROUNDS):
        if replay is None or replay.finished_at is not None:
            break
        replay = await store.replay(id)
    assert replay is not None, f"{id} is gone"
    assert replay.finished_at is not None, f"{id} goes on without end"
    return replay.events


async def record(store: Store, type: str) -> Record:
    """Find the one event of this name."""
    [found] = await store.find(Query(type=type))
    return found


async def found(store: Store, query: Query) -> list[str]:
    """Find events; list them by their types."""
    return [one.type for one in await store.find(query)]


def soon(bench: StoreBench, seconds: float = 5.0) -> RetryAt:
    """Make the verdict of an event that failed and is tried again in some seconds."""
    return RetryAt(due(bench, seconds), "the broker said no")


def due(bench: StoreBench, seconds: float) -> datetime:
    """Give the instant in so many seconds."""
    return bench.clock.now() + timedelta(seconds=seconds)


DEAD = Dead("refused for good")
SKIPPED = Dead("refused for good", blocks=False)
