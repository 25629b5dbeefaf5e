"""Lanes and leases of the PostgreSQL store: who may read.

mutant                        the rule that it takes out
----------------------------  ------------------------------------------------------------------------------------
epochs that stay              every taking gives a lane a new epoch, also to a holder of the same name
any epoch                     what is held is held under its epoch
leases for ever               a lease ends by the database's clock
stored of one, stored of both lanes that become one are stored again if one of them was not stored
forgotten in silence          who loses lanes as it takes more hears of it: what was given out is forgotten
lanes that are skipped        lanes in our own name are taken anew only once no old statement holds them
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from pillarbox.core.retry import Dead
from pillarbox.core.snapshot import Mark, Position, Snapshot
from pillarbox.core.window import BLOCKED
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.ports import Query
from pillarbox.stores.postgres import PostgresStore
from pillarbox.stores.postgres.route import Route
from pillarbox.stores.postgres.ways import Way
from tests.integration.postgres_bench import (
    VERSIONS,
    Bench,
    Cases,
    InSource,
    InSql,
    Mutant,
    names,
    opened,
    publish,
    settle,
    until_waiting,
)

_NEW_EPOCH = "epoch = ('x' || translate(left(gen_random_uuid()::text, 18), '-', ''))::bit(64)::bigint"
MUTANTS: dict[str, Mutant] = {
    "epochs that stay": InSql("take", {_NEW_EPOCH: "epoch = l.epoch"}),
    "any epoch": InSql("held", {"l.lane = mine.lane AND l.epoch = mine.epoch": "l.lane = mine.lane"}),
    "leases for ever": InSql("lives", {"r.expires_at > public.pillarbox_now() AND ": ""}),
    "stored of one, stored of both": InSource(Route, "_merge", {"first.stored = way.stored": "pass"}),
    "forgotten in silence": InSource(PostgresStore, "take", {"if held and": "if False and"}),
    "lanes that are skipped": InSql(
        "take",
        {
            "ORDER BY l.lane FOR UPDATE": "",
            "WHERE l.owner = _owner AND l.lane <> ALL (_held);\n    wanted": ("WHERE false;\n    wanted"),
        },
    ),
}
CASES = Cases(MUTANTS)


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


@CASES.notices("epochs that stay", "any epoch")
async def two_relays_under_one_name_fence_each_other(bench: Bench) -> None:
    first = await bench.holder("twin")
    bench.add("A", "B")
    entries = await first.entries(1)
    second = await bench.holder("twin")
    with pytest.raises(LaneLost):
        await first.entries(1)
    with pytest.raises(LaneLost):
        await settle(first, entries, Dead("no"))
    assert bench.sql("SELECT 1 FROM pillarbox_parked") == []
    assert await publish(second) == ["A", "B"]
    await first.take()  # and the other way round
    bench.add("C")
    with pytest.raises(LaneLost):
        await second.entries(1)
    assert await publish(first) == ["C"]


@CASES.notices("leases for ever")
async def a_relay_that_slept_past_its_lease_is_replaced_and_told_so(bench: Bench) -> None:
    first = await bench.holder("first")
    bench.add("A", "B")
    [a] = await first.entries(1)
    second = await bench.store("second")
    bench.clock.advance(14.9)
    assert not (await second.take()).lanes
    bench.clock.advance(0.2)
    assert len((await second.take()).lanes) == 64
    assert await publish(second) == ["A", "B"]
    with pytest.raises(LaneLost):
        await settle(first, [a])


@CASES.notices("any epoch", "epochs that stay")
async def a_relay_that_slept_past_its_lease_hears_of_it_when_it_reads(bench: Bench) -> None:
    first = await bench.holder("first")
    bench.add("A", "B")
    await first.entries(1)
    bench.clock.advance(20)
    await bench.holder("second")
    with pytest.raises(LaneLost):
        await first.entries(1)


@VERSIONS
async def test_a_relay_that_slept_past_its_lease_hears_of_it_when_it_renews(bench: Bench) -> None:
    first = await bench.holder("first")
    bench.clock.advance(20)
    await bench.holder("second")
    with pytest.raises(LaneLost):
        await first.renew(None)


@VERSIONS
async def test_a_relay_that_slept_past_its_lease_and_met_nobody_goes_on(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("A", "B")
    [a] = await store.entries(1)
    bench.clock.advance(100)
    await settle(store, [a])
    assert await publish(store) == ["B"]


@CASES.notices("lanes that are skipped")
async def a_statement_still_on_its_way_when_its_relay_takes_its_lanes_anew_is_waited_for(bench: Bench) -> None:
    """The relay lost patience with it and began anew; what it does then must not be undone by the old one."""
    store = await bench.holder("same")
    bench.add("A", "B")
    entries = await store.entries(10)
    blocker = bench.begin()
    blocker.execute("LOCK TABLE pillarbox_ticks IN SHARE ROW EXCLUSIVE MODE")
    epochs = bench.sql("SELECT lane, epoch FROM pillarbox_lanes ORDER BY lane")
    settling = asyncio.create_task(settle(store, entries, Dead("no")))
    await until_waiting(bench, "pillarbox_settle")
    again = await bench.store("same", lease=timedelta(seconds=15))
    taking = asyncio.create_task(again.take())
    await until_waiting(bench, "pillarbox_take")  # for the lanes, which the old statement still holds
    blocker.rollback()
    await settling
    assert len((await taking).lanes) == 64
    assert not set(epochs) & set(bench.sql("SELECT lane, epoch FROM pillarbox_lanes"))
    assert await publish(again) == []
    assert bench.sql("SELECT event_type, state FROM pillarbox_parked ORDER BY id") == [("A", "dead"), ("B", "dead")]


@VERSIONS
async def test_a_connection_that_is_opened_anew_does_not_name_the_backend_that_died(bench: Bench) -> None:
    store = await bench.holder("first")
    other = await bench.store("second")
    assert store._chores.direct_backend is not None
    bench.sql("SELECT pg_terminate_backend(%s, 5000)", [store._chores.direct_backend[0]])
    with pytest.raises(StoreUnavailable):
        await store.renew(None)
    await store.renew(None)
    assert not (await other.take()).lanes  # the first one lives
    bench.add("A")
    assert await publish(store) == ["A"]


@VERSIONS
async def test_a_relay_alone_takes_lanes_although_its_backend_has_just_died(bench: Bench) -> None:
    store = await bench.store("first")
    assert store._chores.direct_backend is not None
    bench.sql("SELECT pg_terminate_backend(%s, 5000)", [store._chores.direct_backend[0]])
    with pytest.raises(StoreUnavailable):
        await store.take()
    assert len((await store.take()).lanes) == 64


async def _take(store: PostgresStore) -> None:
    with contextlib.suppress(StoreUnavailable):
        await store.take()


@CASES.notices("forgotten in silence")
async def a_relay_that_could_not_take_more_lanes_hears_that_what_it_holds_is_forgotten(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("A", "B")
    assert names(await store.entries(1)) == ["A"]
    assert store._chores.direct_backend is not None
    bench.sql("SELECT pg_terminate_backend(%s, 5000)", [store._chores.direct_backend[0]])
    with pytest.raises(LaneLost):
        await _take(store)
    await store.take()
    assert await publish(store) == ["A", "B"]


@VERSIONS
async def test_lanes_at_different_places_go_on_as_one(bench: Bench) -> None:
    first = await bench.holder("first")
    second = await bench.store("second")
    await second.take()
    lanes = sorted((await first.renew(None)).lanes)
    late = bench.begin()
    bench.add("Late", of="late", within=late)
    bench.add("A", of="a")
    assert await publish(first) == ["A"]
    await first.release(lanes[32:])
    await second.take()
    bench.add("B", of="a")
    bench.add("C", of="c")
    assert sorted(await publish(first) + await publish(second)) == ["B", "C"]
    late.commit()
    for index in range(20):
        bench.add(f"D{index}", of=str(index))
    await bench.crash(second)
    await first.take()
    published = await publish(first, 7)
    assert sorted(published) == sorted(["Late", *(f"D{index}" for index in range(20))])
    bench.add("E")
    assert await publish(first) == ["E"]
    assert len(first._log._memory.route.ways) == 1


@CASES.notices("stored of one, stored of both")
async def lanes_that_become_one_are_stored_again_if_one_of_them_was_not(bench: Bench) -> None:
    for stored in (True, False):
        route = Route(())
        for lane in (1, 2):
            before, upto = (Mark(Snapshot(x, x, frozenset()), x, x) for x in (5, 9))
            way = Way(frozenset({lane}), None, False, frozenset(), Position(before, upto), frozenset())
            way.end()
            if stored == (lane == 1):
                way.stored = way.settled
            route.ways.append(way)
        leader, _ = route.leader()
        assert leader.lanes == {1, 2}
        assert leader.stored != leader.settled


@VERSIONS
async def test_lanes_that_became_one_hand_over_everything_that_they_have_published(bench: Bench) -> None:
    first, second = await bench.holder("first"), await bench.store("second")
    await second.take()
    lanes = sorted((await first.renew(None)).lanes)
    await first.release(lanes[32:])
    assert len((await second.take()).lanes) == 32
    for index in range(20):
        bench.add(f"A{index}", of=str(index))
    await publish(first)
    await bench.crash(first)
    await bench.crash(second)
    third = await bench.holder("third", progress=timedelta(hours=1))  # at two places
    assert len(await publish(third)) < 20
    bench.add("B")
    assert await publish(third) == ["B"]
    assert len(third._log._memory.route.ways) == 1
    await third.release()
    fourth = await bench.holder("fourth")
    assert await publish(fourth) == []
    assert (await fourth.stats()).pending == 0


@VERSIONS
async def test_a_lane_whose_parking_lot_is_full_stops_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.stores.postgres.parking.ROOM", 3)
    store = await bench.holder()
    bench.add("1", "2", "3", "4", of="full")
    bench.add("A", of="free")
    assert bench.lane("full") != bench.lane("free")
    entries = await store.entries(10)
    await settle(store, entries[:1], Dead("no"))
    await settle(store, entries[1:3], BLOCKED)
    await settle(store, entries[3:4], BLOCKED)
    await settle(store, entries[4:])
    bench.add("5", of="full")
    bench.add("B", of="free")
    assert await publish(store) == ["B"]
    assert await store.drop(Query(type="1")) == 1
    assert await publish(store) == ["2", "3", "4", "5"]
    bench.add("6", of="full")
    bench.add("C", of="free")
    assert await publish(store) == ["6", "C"]


@VERSIONS
async def test_a_full_lane_survives_a_takeover(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.stores.postgres.parking.ROOM", 1)
    store = await bench.holder("first")
    bench.add("1", of="full")
    await settle(store, await store.entries(10), Dead("no"))
    bench.add("2", "3", of="full")
    bench.add("B", of="free")
    assert await publish(store) == ["B"]
    store = await bench.takeover(store, "second")
    bench.add("C", of="free")
    assert await publish(store) == ["C"]
    await store.retry(Query(status=("dead",)))
    assert await publish(store) == ["1", "2", "3"]


test_the_rule_holds, test_the_rule_is_missed, test_every_mutant_is_noticed_somewhere = CASES.tests()
