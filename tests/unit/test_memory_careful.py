"""Careful mode of the memory store: an event that kills the relay is found, and nobody else pays."""

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.retry import PUBLISHED
from pillarbox.core.routing import Topics
from pillarbox.core.window import BLOCKED, Settlement
from pillarbox.ports import Query
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.telemetry.prometheus import RelayMetrics
from pillarbox.testing.clock import ManualClock
from pillarbox.testing.memory import MemoryDatabase, MemoryOutbox
from pillarbox.testing.memory_careful import CRASHED, CRASHES
from pillarbox.testing.memory_records import MemoryStore


@pytest.fixture
def database() -> MemoryDatabase:
    """Three orders with two events each; the killer is the first of the second."""
    database = MemoryDatabase()
    for type in ("First", "Killer", "Third", "Fourth", "Follower", "Sixth"):
        with database.transaction() as transaction:
            MemoryOutbox().add(transaction, Event(type, 0, aggregate=("order", "FKTFKT"[len(database.rows)])))
    return database


async def relay_until_death(database: MemoryDatabase, owner: str, hooks: Hooks | None = None) -> list[str]:
    """Publish until there is nothing more, or until the killer is given out; give what was published."""
    store, published = MemoryStore(database, owner, hooks=hooks), list[str]()
    await store.take()
    for _ in range(20):
        entries = await store.entries(10)
        if any(entry.event_type == "Killer" for entry in entries):
            store.crash()
            return published
        waits = [Topics().line_of(entry) in store.blocked for entry in entries]
        published += [entry.event_type for entry, wait in zip(entries, waits, strict=True) if not wait]
        verdicts = [BLOCKED if wait else PUBLISHED for wait in waits]
        await store.settle([Settlement(entry, verdict) for entry, verdict in zip(entries, verdicts, strict=True)])
    await store.release()
    return published


async def died(database: MemoryDatabase, times: int) -> list[str]:
    return [type for time in range(times) for type in await relay_until_death(database, f"relay-{time}")]


async def test_an_event_that_kills_every_relay_is_parked_and_its_followers_wait(database: MemoryDatabase) -> None:
    published = await died(database, CRASHES + 2)
    published += await relay_until_death(database, "the last")
    assert published == ["First", "Third", "Fourth", "Sixth"]
    [dead] = await MemoryStore(database).find(Query(status=("dead",)))
    assert (dead.type, dead.last_error) == ("Killer", CRASHED)


async def test_whoever_finds_it_guilty_tells_of_its_death_once(database: MemoryDatabase) -> None:
    await died(database, CRASHES + 2)
    told: list[Facts] = []
    metrics = RelayMetrics(ManualClock())
    hooks = Hooks(metrics, lambda moment, facts: told.append(facts) if moment is Moment.EVENT_DEAD else None)
    for owner in ("the judge", "the next"):
        await relay_until_death(database, owner, hooks)
    [facts] = told
    assert isinstance(facts["entry"], Entry)
    assert (facts["entry"].event_type, facts["error"]) == ("Killer", CRASHED)
    assert b"pillarbox_dead_total 1.0" in metrics.page(None, up=True)


async def test_it_is_not_found_guilty_before_it_was_suspected_twice(database: MemoryDatabase) -> None:
    await died(database, CRASHES + 1)
    assert await MemoryStore(database).find(Query(status=("dead",))) == []


async def test_whoever_retries_it_has_it_sent_once_more(database: MemoryDatabase) -> None:
    await died(database, CRASHES + 2)
    await relay_until_death(database, "the judge")
    await MemoryStore(database).retry(Query(status=("dead",)))
    store = MemoryStore(database, "the next")
    await store.take()
    assert [entry.event_type for entry in await store.entries(10)][:1] == ["Killer"]


async def test_lanes_whose_events_have_passed_count_anew(database: MemoryDatabase) -> None:
    for time in range(CRASHES - 1):
        store = MemoryStore(database, f"relay-{time}")
        await store.take()
        await store.entries(10)
        store.crash()
    store = MemoryStore(database, "lucky")
    await store.take()
    given: list[Entry] = [*await store.entries(10)]
    await store.settle([Settlement(entry, PUBLISHED) for entry in given])
    assert await store.entries(10) == []
    store.crash()
    await MemoryStore(database, "next").take()
    assert (await MemoryStore(database).stats()).suspect_lanes == 0
    assert {lane.crashes for lane in database.lanes} == {1}


async def test_who_released_its_lanes_did_not_die(database: MemoryDatabase) -> None:
    for time in range(CRASHES + 2):
        store = MemoryStore(database, f"relay-{time}")
        await store.take()
        await store.entries(10)
        await store.release()
    assert {lane.crashes for lane in database.lanes} == {0}
