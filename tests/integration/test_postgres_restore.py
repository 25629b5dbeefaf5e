"""A database that was dumped and restored into another cluster: refused, then adopted; nothing lost, nothing resent."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import psycopg
import pytest

from pillarbox.core.event import Event
from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.core.window import Settlement
from pillarbox.errors import StoreError
from pillarbox.ports import Query
from pillarbox.psycopg import Outbox
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres
from servers.process import run_tool
from tests.conftest import EVERY_POSTGRES, installed, skip_unless_ours
from tests.integration.postgres_world import (
    CLUSTER_UNCHECKED,
    NEW_FOR_OLD,
    QUIET,
    SETTLED_KEEP_THEIR_XIDS,
    Mutant,
    SlowRelay,
    add,
    burn,
    migrate,
    new_database,
    next_xid,
    run,
    until,
)

SETTLED = [f"settled-{n}" for n in range(6)]
BACKLOG = [f"backlog-{n}" for n in range(6)]
NEW = [f"new-{n}" for n in range(6)]


class Clusters(NamedTuple):
    old: Postgres
    new: Postgres


@pytest.fixture(scope="module", params=EVERY_POSTGRES)
def clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    """The old cluster and the new one."""
    skip_unless_ours()
    with ExitStack() as started:
        old, new = (started.enter_context(installed(lambda: Postgres(request.param, settings=QUIET))) for _ in range(2))
        yield Clusters(old, new)


class Copied(NamedTuple):
    """An outbox in the old cluster, and its place in the new one, where nothing is before `copy`."""

    name: str
    clusters: Clusters

    @property
    def old(self) -> str:
        return self.clusters.old.url(self.name)

    @property
    def new(self) -> str:
        return self.clusters.new.url(self.name)

    def copy(self) -> None:
        copy(self.clusters.old, self.clusters.new, self.name)


def copy(source: Postgres, target: Postgres, name: str) -> None:
    """Dump a database and restore it into another cluster, under the same name."""
    dump, tools = source.directory / f"{name}.sql", source.build
    run_tool(
        [tools.program("pg_dump"), "-f", dump, source.url(name)],
        directory=source.directory,
        environment=tools.environment,
    )
    target.drop_database(name)
    target.create_database(name)
    run_tool(
        [tools.program("psql"), "-q", "-v", "ON_ERROR_STOP=1", "-f", dump, target.url(name)],
        directory=source.directory,
        environment=tools.environment,
    )


@pytest.fixture
async def copied(clusters: Clusters) -> Copied:
    ahead = 1000  # the old one has used up more transaction ids
    burn(clusters.old.url(), max(0, next_xid(clusters.new.url()) + ahead - next_xid(clusters.old.url())))
    name = new_database(clusters.old)
    await migrate(clusters.old.url(name))
    return Copied(name, clusters)


async def settle_some(copied: Copied) -> None:
    """Leave what a relay leaves that is killed in mid-batch: settled events, a late one below them, a backlog."""
    late = psycopg.connect(copied.old)
    Outbox(topic="orders").add(late, Event("late", {}, aggregate=("order", "2")))
    add(copied.old, *SETTLED[:3])
    async with SlowRelay(copied.old) as relay:
        await relay.store.take()
        await relay.carry()
        assert relay.wire == SETTLED[:3]
        late.commit()
        late.close()
        add(copied.old, *SETTLED[3:], *BACKLOG)
        begun = await relay.read(5)
        assert [entry.event_type for entry in begun] == ["late", *SETTLED[3:], BACKLOG[0]]
        await relay.settle(begun[:4])


async def settle_around_a_late_one(copied: Copied) -> None:
    """Leave settled events above one that is not, because its transaction committed late."""
    late = psycopg.connect(copied.old)
    Outbox(topic="orders").add(late, Event(BACKLOG[0], {}, aggregate=("order", "1")))
    add(copied.old, *SETTLED, aggregate="2")
    async with SlowRelay(copied.old) as relay:
        await relay.store.take()
        await relay.carry()
        assert relay.wire == SETTLED
    late.commit()
    late.close()
    add(copied.old, *BACKLOG[1:])


async def wake_on(url: str) -> list[str]:
    """Start a relay, let it carry all there is, end it; give what it has published."""
    async with SlowRelay(url) as relay:
        await relay.store.take()
        await relay.carry()
        await relay.store.release()
        return relay.wire


async def adopt(url: str) -> int:
    async with SlowRelay(url) as relay:
        return await relay.store.adopt()


async def test_a_relay_refuses_a_copy_and_names_the_cure(copied: Copied) -> None:
    await settle_some(copied)
    copied.copy()
    with pytest.raises(StoreError, match=r"copied from another cluster.*`pillarbox adopt`"):
        await wake_on(copied.new)


async def test_the_backlog_and_what_came_after_the_copy_are_published_and_nothing_old(copied: Copied) -> None:
    await settle_some(copied)
    copied.copy()
    add(copied.new, *NEW[:3])
    assert await adopt(copied.new) == len(BACKLOG) + 3
    add(copied.new, *NEW[3:])
    assert await wake_on(copied.new) == [*BACKLOG, *NEW]


async def published_after_an_adoption(copied: Copied, mutant: Mutant | None = None) -> list[str]:
    """Adopt a copy with a late transaction, publish, and let the counter pass the old ids; give what was published."""
    await settle_around_a_late_one(copied)
    copied.copy()
    if mutant is not None:
        mutant.install(copied.new)
    assert next_xid(copied.new) < int(run(copied.old, "SELECT min(xid::text::bigint) FROM pillarbox_outbox")[0][0])
    add(copied.new, *NEW[:3])
    await adopt(copied.new)
    wire = await wake_on(copied.new)
    burn(copied.new, next_xid(copied.old) - next_xid(copied.new) + 100)
    wire += await wake_on(copied.new)
    add(copied.new, *NEW[3:])
    return wire + await wake_on(copied.new)


async def test_nothing_settled_comes_again_when_the_counter_passes_the_old_ids(copied: Copied) -> None:
    assert await published_after_an_adoption(copied) == [*BACKLOG, *NEW]


async def published_when_an_old_id_is_given_out_again(copied: Copied, mutant: Mutant | None = None) -> list[str]:
    """Let a transaction get the very id of one whose events are settled, and be open when a relay ticks."""
    await settle_around_a_late_one(copied)
    copied.copy()
    if mutant is not None:
        mutant.install(copied.new)
    await adopt(copied.new)
    [[used]] = run(copied.old, f"SELECT xid::text::bigint FROM pillarbox_outbox WHERE event_type = '{SETTLED[3]}'")
    burn(copied.new, used - next_xid(copied.new))
    with psycopg.connect(copied.new) as again:
        assert again.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() == (used,)
        async with SlowRelay(copied.new) as relay:
            await relay.store.take()
            await relay.carry()
            Outbox(topic="orders").add(again, Event(NEW[0], {}, aggregate=("order", "1")))
            again.commit()
            await relay.carry()
            return relay.wire


async def test_nothing_settled_comes_again_with_a_transaction_that_gets_its_id(copied: Copied) -> None:
    assert await published_when_an_old_id_is_given_out_again(copied) == [*BACKLOG, NEW[0]]


async def test_settled_events_that_kept_their_ids_would_come_again(copied: Copied) -> None:
    assert SETTLED[3] in await published_when_an_old_id_is_given_out_again(copied, SETTLED_KEEP_THEIR_XIDS)


async def test_what_is_written_before_the_adoption_would_be_taken_for_old_by_its_id_alone(copied: Copied) -> None:
    assert not set(NEW[:3]) & set(await published_after_an_adoption(copied, NEW_FOR_OLD))


async def test_a_copy_of_a_copy_is_adopted_like_the_first(copied: Copied) -> None:
    await settle_some(copied)
    copied.copy()
    assert await adopt(copied.new) == len(BACKLOG)
    async with SlowRelay(copied.new) as relay:
        await relay.store.take()
        begun = await relay.read()
        await relay.settle(begun[:2])
    copy(copied.clusters.new, copied.clusters.old, copied.name)
    add(copied.old, *NEW)
    assert await adopt(copied.old) == len(BACKLOG) - 2 + len(NEW)
    assert await wake_on(copied.old) == [*BACKLOG[2:], *NEW]


async def test_a_second_adoption_of_the_same_copy_is_refused_and_changes_nothing(copied: Copied) -> None:
    await settle_some(copied)
    copied.copy()
    await adopt(copied.new)
    with pytest.raises(StoreError, match="belongs to this cluster already"):
        await adopt(copied.new)
    assert await wake_on(copied.new) == BACKLOG


async def test_the_cluster_that_the_log_belongs_to_adopts_nothing(copied: Copied) -> None:
    await settle_some(copied)
    with pytest.raises(StoreError, match="belongs to this cluster already"):
        await adopt(copied.old)


async def test_nothing_is_adopted_while_a_relay_is_alive_there(copied: Copied) -> None:
    await settle_some(copied)
    copied.copy()
    async with SlowRelay(copied.new) as relay:
        with pytest.raises(StoreError, match="pillarbox adopt"):
            await relay.store.take()
        with pytest.raises(StoreError, match="relays are alive"):
            await adopt(copied.new)
    alive = "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'pillarbox%'"
    until(lambda: not run(copied.new, alive), "the relay's backends are gone")
    assert await adopt(copied.new) == len(BACKLOG)


async def test_a_copy_whose_sequence_is_behind_is_refused(copied: Copied) -> None:
    await settle_some(copied)
    copied.copy()
    run(copied.new, "SELECT setval('pillarbox_outbox_id_seq', 3)")
    with pytest.raises(StoreError, match="stands at 3"):
        await adopt(copied.new)


async def test_a_detour_and_the_parking_lot_are_adopted_too(copied: Copied) -> None:
    async with SlowRelay(copied.old) as relay:
        await relay.store.take()
        await relay.store.pause("letters", "a test", "to keep them back")
        add(copied.old, "letter-1", "letter-2", topic="letters")
        add(copied.old, "order-1", "order-2", "order-3")
        entries = [entry for _ in range(3) for entry in await relay.read()]
        assert [entry.event_type for entry in entries] == ["order-1", "order-2", "order-3"]
        await relay.store.settle(
            [Settlement(entries[0], PUBLISHED), Settlement(entries[1], Dead("refused", blocks=True))]
        )
        await relay.store.release()
    copied.copy()
    add(copied.new, "letter-3", topic="letters")
    add(copied.new, "order-4")
    await adopt(copied.new)
    async with SlowRelay(copied.new) as relay:
        await relay.store.take()
        await relay.carry()
        assert relay.wire == []
        assert await relay.store.retry(Query(status=("dead",))) == 1
        await relay.store.resume("letters")
        await relay.carry()
        letters, orders = ([name for name in relay.wire if name.startswith(kind)] for kind in ("letter", "order"))
        assert letters == ["letter-1", "letter-2", "letter-3"]
        assert orders == ["order-2", "order-3", "order-4"]


async def led_to_a_copy(copied: Copied, mutant: Mutant | None = None) -> list[str]:
    """Switch the pooler of a relay that sleeps to a copy, in which its ticks and epochs are the same."""
    with PgBouncer(copied.clusters.old.port) as pooler:
        async with SlowRelay(pooler.url(copied.name)) as relay:
            await relay.store.take()
            if mutant is not None:
                mutant.install(copied.old)
            add(copied.old, *SETTLED)
            await relay.carry()
            copied.copy()
            relay.wire.clear()
            pooler.point_to(copied.clusters.new.port)
            add(copied.new, *NEW)
            await relay.carry()
            return relay.wire


async def test_memory_of_one_cluster_does_not_hold_in_its_copy(copied: Copied) -> None:
    with pytest.raises(StoreError, match="copied from another cluster"):
        await led_to_a_copy(copied)


async def test_without_the_cluster_in_the_check_new_events_would_be_swallowed(copied: Copied) -> None:
    assert await led_to_a_copy(copied, CLUSTER_UNCHECKED) == []
