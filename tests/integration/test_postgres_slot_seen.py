"""The slot whose reader carries the events: what is refused, what is seen of it, and the daemon that watches."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from pillarbox.core.retry import RetryAt
from pillarbox.errors import StoreError
from pillarbox.ports import Query, Watched
from pillarbox.relay.watch import Watch
from pillarbox.settings import Settings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from tests.conftest import skip_unless_ours
from tests.integration.postgres_bench import VERSIONS, Bench, opened, settle, until
from tests.integration.postgres_shop import roles
from tests.integration.postgres_slot import Carried, drop_slots, reading


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    skip_unless_ours()
    async with opened(database) as bench:
        yield bench
        drop_slots(bench)


async def test_a_slot_that_carries_nothing_is_refused(bench: Bench, postgres_name: str) -> None:
    store = await bench.store()
    bench.sql("SELECT pg_create_physical_replication_slot(%s)", [f"physical_{postgres_name}"])
    bench.sql("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"unpublished_{postgres_name}"])
    try:
        for name, why in (
            (f"nobody_{postgres_name}", "there is no replication slot .* let the connector make it first"),
            (f"physical_{postgres_name}", "is a physical one"),
            (f"unpublished_{postgres_name}", "no publication has the inserts of public.pillarbox_outbox"),
        ):
            with pytest.raises(StoreError, match=why):
                await store.watch_slot(name)
        bench.sql("CREATE PUBLICATION deletes FOR TABLE pillarbox_outbox WITH (publish = 'delete')")
        with pytest.raises(StoreError, match="no publication has the inserts"):
            await store.watch_slot(f"unpublished_{postgres_name}")
        bench.sql("CREATE PUBLICATION inserts FOR TABLE pillarbox_outbox WITH (publish = 'insert')")
        await store.watch_slot(f"unpublished_{postgres_name}")
    finally:
        bench.sql("SELECT pg_drop_replication_slot(%s)", [f"physical_{postgres_name}"])


async def test_a_temporary_slot_is_refused(bench: Bench) -> None:
    store = await bench.store()
    bench.sql("SELECT pg_create_logical_replication_slot('for_a_moment', 'test_decoding', true)")
    with pytest.raises(StoreError, match="is a temporary one"):
        await store.watch_slot("for_a_moment")
    bench.sql("SELECT pg_drop_replication_slot('for_a_moment')")


async def test_a_slot_of_another_database_is_refused(bench: Bench, database_beside: str) -> None:
    store = await bench.store()
    with psycopg.connect(database_beside, autocommit=True) as beside:
        beside.execute("SELECT pg_create_logical_replication_slot('beside', 'test_decoding')")
        try:
            with pytest.raises(StoreError, match="belongs to the database"):
                await store.watch_slot("beside")
        finally:
            beside.execute("SELECT pg_drop_replication_slot('beside')")


@pytest.fixture
def postgres_name(database: str) -> str:
    """What tells this test's slots from others: they belong to the whole server."""
    return database.rpartition("_")[2]


@pytest.fixture
def database_beside(database: str) -> str:
    return database.rpartition("/")[0] + "/postgres"


async def test_what_is_kept_aside_must_go_first(bench: Bench) -> None:
    relay = await bench.holder("relay")
    bench.add("A", "B")
    entries = await relay.entries(2)
    await settle(relay, entries[:1], RetryAt(bench.clock.now() + timedelta(hours=1), "not now"))
    await relay.release()
    with pytest.raises(StoreError, match="1 event is kept aside"):
        await Carried.of(bench)


async def test_a_paused_topic_must_be_resumed_first(bench: Bench) -> None:
    store = await bench.store()
    await store.pause("orders", "me", "why not")
    with pytest.raises(StoreError, match=r"topics are paused \(orders\)"):
        await Carried.of(bench)


async def test_what_only_a_relay_can_do_is_refused(bench: Bench) -> None:
    carried = await Carried.of(bench)
    for refused in (
        carried.store.begin_replay("replay-1", Query()),
        carried.store.replay("replay-1"),
        carried.store.retry(Query()),
        carried.store.pause("orders", "me", "why not"),
    ):
        with pytest.raises(StoreError, match=f"carried by the reader of the replication slot {carried.slot}"):
            await refused
    assert await carried.store.retry(Query(side="inbox")) == 0


async def test_a_slot_that_is_gone_or_unpublished_is_doubted_for_good(bench: Bench) -> None:
    bench.sql("CREATE PUBLICATION inserts FOR TABLE pillarbox_outbox WITH (publish = 'insert')")
    carried = await Carried.of(bench, plugin="pgoutput")
    assert (await carried.watch()).doubt is None
    bench.sql("DROP PUBLICATION inserts")
    assert "no publication has the inserts" in ((await carried.watch()).doubt or "")
    bench.sql("CREATE PUBLICATION inserts FOR TABLE pillarbox_outbox WITH (publish = 'insert')")
    assert "no publication has the inserts" in ((await carried.watch()).doubt or "")
    await carried.store.watch_slot(carried.slot)
    assert (await carried.watch()).doubt is None
    carried.drop()
    assert (await carried.watch()).doubt == "is gone, seen at 2000-01-01 00:00:00 UTC".replace(
        "2000-01-01 00:00:00", f"{bench.clock.now():%Y-%m-%d %H:%M:%S}"
    )
    carried.make("pgoutput")
    assert "is gone" in ((await carried.watch()).doubt or "")
    seen = (await carried.store.stats()).slot
    assert seen is not None
    assert "is gone" in (seen.trouble or "")


@VERSIONS
async def test_the_slots_state_is_seen(bench: Bench) -> None:
    bench.sql("CREATE PUBLICATION inserts FOR TABLE pillarbox_outbox WITH (publish = 'insert')")
    carried = await Carried.of(bench, plugin="pgoutput")
    seen = (await carried.store.stats()).slot
    assert seen is not None
    assert (seen.name, seen.trouble, seen.is_read, seen.at_risk) == (carried.slot, None, False, False)
    async with reading(bench, carried.slot, "(proto_version '1', publication_names 'inserts')") as reader:
        bench.add("A")
        stats = await carried.store.stats()
        assert stats.slot is not None
        assert (stats.slot.is_read, stats.pending) == (True, 1)
        assert 0 < stats.slot.behind <= stats.slot.kept
        with pytest.raises(StoreError, match=f"process {reader.pid} reads the replication slot {carried.slot}"):
            await carried.store.unwatch()
        await carried.watch()
        carried.beat()
        reader.confirm(bench.one("SELECT pg_current_wal_flush_lsn()::text"))
        for _ in range(300):
            if (await carried.watch()).settled:
                break
            await asyncio.sleep(0.01)
        assert carried.published() == {"A"}
    await carried.store.unwatch()
    with pytest.raises(StoreError, match="nothing to change"):
        await carried.store.unwatch()
    assert (await carried.store.stats()).slot is None
    assert await carried.store.watch() is None


async def test_the_roles_are_enough(bench: Bench) -> None:
    bench.sql(roles().decode())
    bench.sql("GRANT SELECT ON test_clock TO PUBLIC")
    carried = await Carried.of(bench)
    await carried.store.unwatch()
    relay = await bench.store("relay", url=f"{bench.url}?options=-crole%3Dpillarbox_relay")
    viewer = await bench.store("viewer", url=f"{bench.url}?options=-crole%3Dpillarbox_viewer")
    await relay.watch_slot(carried.slot)
    bench.add("A")
    await relay.watch()
    carried.carry()
    assert await relay.watch() == Watched(carried.slot, None, 1)
    async with reading(bench, carried.slot):
        await relay.watch()
        seen = (await viewer.stats()).slot
        assert seen is not None
        assert (seen.name, seen.is_read) == (carried.slot, True)
    await relay.unwatch()
    with pytest.raises(StoreError, match="PostgreSQL refuses"):
        await viewer.watch_slot(carried.slot)


async def test_notes_do_not_pile_up_behind_a_slow_reader(bench: Bench) -> None:
    carried = await Carried.of(bench)
    bench.add("A")
    await carried.watch()
    bench.sql(
        "INSERT INTO pillarbox_notes (s, x, m, w) SELECT s, x, m, w FROM pillarbox_notes, generate_series(1, 300)"
    )
    bench.add("B")
    for left in (151, 76):
        await carried.watch()
        assert bench.one("SELECT count(*) FROM pillarbox_notes") == left
    carried.carry()
    await carried.watch()
    assert bench.one("SELECT count(*) FROM pillarbox_notes") == 0
    assert carried.published() == {"A", "B"}


async def test_nothing_is_written_into_the_log_of_ticks_while_nothing_happens(bench: Bench) -> None:
    carried = await Carried.of(bench)
    bench.add("A")
    for _ in range(3):
        await carried.watch()
        carried.carry()
    ticks = bench.one("SELECT count(*) FROM pillarbox_ticks")
    for _ in range(3):
        await carried.watch()
        carried.carry()
    assert bench.one("SELECT count(*) FROM pillarbox_ticks") == ticks
    assert bench.one("SELECT count(*) FROM pillarbox_notes") == 0


async def test_the_daemon_settles_prunes_and_ends_when_relays_carry_the_events_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.relay.watch.LOOK_EVERY", timedelta(milliseconds=20))
    monkeypatch.setattr("pillarbox.relay.watch.PRUNE_FIRST", timedelta(0))
    monkeypatch.setattr("pillarbox.relay.watch.PRUNE_EVERY", timedelta(0))
    told: list[Moment] = []

    def note(moment: Moment, facts: Facts) -> None:
        if moment is not Moment.PRUNED:
            told.append(moment)

    carried = await Carried.of(bench)
    daemons = await bench.store("daemon")
    await daemons.close()
    settings = Settings.load(environment={"PILLARBOX_RETENTION_PUBLISHED": "none"}, flags={"database": bench.url})
    bench.add("A")
    async with Watch(lambda: daemons, settings, Hooks(note)):
        await until(bench, "SELECT 1 FROM pillarbox_notes")
        carried.carry()
        await until(bench, "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pillarbox_outbox)")
        [living] = [seen for seen in (await carried.store.stats()).relays if seen.lease_until > bench.clock.now()]
        assert living.lanes == 0
        carried.drop()
        await until(bench, "SELECT 1 FROM pillarbox_slot WHERE doubt IS NOT NULL")
        await asyncio.sleep(0.1)
    assert told == [Moment.SLOT_WATCHED, Moment.SLOT_PASSED, Moment.SLOT_DOUBTED]
    assert not [seen for seen in (await carried.store.stats()).relays if seen.lease_until > bench.clock.now()]
    await carried.store.unwatch()
    with pytest.raises(StoreError, match="relays carry the events of this outbox"):
        await Watch(lambda: daemons, settings, Hooks()).run()
