"""Lanes, leases and careful mode of the PostgreSQL store: who may read, and what becomes of what killed a relay.

mutant                        the rule that it takes out
----------------------------  ------------------------------------------------------------------------------------
epochs that stay              every taking gives a lane a new epoch, also to a holder of the same name
any epoch                     what is held is held under its epoch
leases for ever               a lease ends by the database's clock
a suspect forgotten           the event that is about to be sent is written down before
no careful mode               after three dead holders in a row events go one at a time
acquitted on arrival          what a lane counts begins anew only when what may have killed its holders has passed
acquitted as it moves         and not when its position has moved a little
progress now and then         progress is stored before there is more of it than careful mode searches
careful on the main way only  also a topic with a way of its own goes one at a time
suspected for ever            what failed and is tried again is not what killed a relay
stored of one, stored of both lanes that become one are stored again if one of them was not stored
lanes that are skipped        lanes in our own name are taken anew only once no old statement holds them
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.retry import Dead, RetryAt
from pillarbox.core.routing import Topic
from pillarbox.core.snapshot import Mark, Position, Snapshot
from pillarbox.core.window import BLOCKED
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.ports import Query
from pillarbox.stores.postgres import PostgresStore
from pillarbox.stores.postgres.careful import Careful
from pillarbox.stores.postgres.log import Log
from pillarbox.stores.postgres.positions import Positions
from pillarbox.stores.postgres.route import Route
from pillarbox.stores.postgres.ways import Way
from tests.integration.postgres_bench import (
    VERSIONS,
    Bench,
    Cases,
    InPython,
    InSource,
    InSql,
    Mutant,
    Story,
    names,
    opened,
    publish,
    settle,
    until_waiting,
)


async def _suspects_nobody(self: Careful, connection: Any, entry: Entry) -> None:
    self.flying.add(entry.position)


def _takes_nothing_amiss(self: Careful, taken: Any) -> dict[int, int]:
    return {}


async def _suspects_for_ever(self: Careful, connection: Any, entries: Any) -> None:
    self.flying -= {entry.position for entry in entries}


_NEW_EPOCH = "epoch = ('x' || translate(left(gen_random_uuid()::text, 18), '-', ''))::bit(64)::bigint"
MUTANTS: dict[str, Mutant] = {
    "epochs that stay": InSql("take", {_NEW_EPOCH: "epoch = l.epoch"}),
    "any epoch": InSql("held", {"l.lane = mine.lane AND l.epoch = mine.epoch": "l.lane = mine.lane"}),
    "leases for ever": InSql("lives", {"r.expires_at > public.pillarbox_now() AND ": ""}),
    "a suspect forgotten": InPython(Careful, "suspect", _suspects_nobody),
    "no careful mode": InPython(Careful, "take", _takes_nothing_amiss),
    "acquitted on arrival": InSource(Careful, "_has_passed", {"self._reach": "0"}),
    "acquitted as it moves": InSource(Careful, "_has_passed", {"self._reach": "1"}),
    "progress now and then": InSource(Log, "_is_due", {"enough or": ""}),
    "careful on the main way only": InSource(Positions, "_way", {"max(": "0 if topic else max("}),
    "suspected for ever": InPython(Careful, "landed", _suspects_for_ever),
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
CRASHES = 6


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


async def test_a_relay_that_slept_past_its_lease_hears_of_it_when_it_renews(bench: Bench) -> None:
    first = await bench.holder("first")
    bench.clock.advance(20)
    await bench.holder("second")
    with pytest.raises(LaneLost):
        await first.renew(None)


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
    assert len(first._log._route.ways) == 1


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
    assert len(third._log._route.ways) == 1
    await third.release()
    fourth = await bench.holder("fourth")
    assert await publish(fourth) == []
    assert (await fourth.stats()).pending == 0


@CASES.notices("no careful mode", "a suspect forgotten", "acquitted on arrival")
async def an_event_that_kills_every_relay_is_parked_and_the_others_flow(bench: Bench) -> None:
    bench.add("Before", of="1")
    bench.add("Killer", of="2")
    bench.add("After", of="1")
    published = await _with_a_killer(bench, "Killer")
    assert list(dict.fromkeys(published)) == ["Before", "After"]
    [[error]] = bench.sql("SELECT last_error FROM pillarbox_parked WHERE event_type = 'Killer' AND state = 'dead'")
    assert error.startswith("crashed the relay")


@CASES.notices("no careful mode", "acquitted on arrival")
async def an_event_that_kills_every_relay_is_found_behind_others_of_its_line(bench: Bench) -> None:
    for index in range(5):
        bench.add(f"E{index}", of="1")
    bench.add("Killer", "Follower", of="1")
    published = await _with_a_killer(bench, "Killer")
    assert list(dict.fromkeys(published)) == [f"E{index}" for index in range(5)]
    rows = bench.sql("SELECT event_type, state FROM pillarbox_parked ORDER BY id")
    assert rows == [("Killer", "dead"), ("Follower", "blocked")]


@CASES.notices("acquitted as it moves", "progress now and then")
async def an_event_that_kills_every_relay_is_found_deep_in_a_backlog(bench: Bench) -> None:
    for index in range(45):
        bench.add(f"E{index}", of=str(index))
    bench.add("Killer")
    published = await _with_a_killer(bench, "Killer", room=1, window=20, progress=timedelta(hours=1))
    assert list(dict.fromkeys(published)) == [f"E{index}" for index in range(45)]


@CASES.notices("no careful mode", "careful on the main way only")
async def an_event_that_kills_every_relay_is_found_in_a_topic_that_is_one_line(bench: Bench) -> None:
    bench.add("Before", "Killer", topic="prices")
    bench.add("Other")
    published = await _with_a_killer(bench, "Killer", topics={"prices": Topic(order="global")})
    assert set(published) == {"Before", "Other"}


@CASES.notices("no careful mode", "careful on the main way only")
async def an_event_that_kills_every_relay_is_found_in_a_topic_that_was_paused(bench: Bench) -> None:
    store = await bench.holder("relay")
    await store.pause("orders", "me", "why not")
    bench.add("Before", "Killer")
    bench.add("Other", topic="others")
    assert await publish(store) == ["Other"]
    await store.resume("orders")
    await bench.crash(store)
    assert set(await _with_a_killer(bench, "Killer")) == {"Before"}


async def _with_a_killer(bench: Bench, killer: str, *, room: int = 10, **more: Any) -> list[str]:
    """Run relays, one after the other; each dies as it sends the killer. Give what was published."""
    published: list[str] = []
    for crash in range(CRASHES):
        store = await bench.holder(f"relay-{crash}", **more)
        published += await _publish_until(store, killer, room)
        await bench.crash(store)
        if bench.sql("SELECT 1 FROM pillarbox_parked WHERE event_type = %s", [killer]):
            store = await bench.holder("last", **more)
            return published + await _publish_until(store, "nothing", room)
    raise AssertionError(f"{CRASHES} relays died of {killer}, and it is not parked")


async def _publish_until(store: PostgresStore, killer: str, room: int) -> list[str]:
    """Publish one after the other, blocked ones excepted, until it is the killer's turn."""
    published: list[str] = []
    for _ in range(200):
        entries = await store.entries(room)
        if not entries:
            break
        for entry in entries:
            if entry.event_type == killer:
                return published
            if (entry.topic, entry.aggregate_type, entry.aggregate_id) in store.blocked:
                await settle(store, [entry], BLOCKED)
            else:
                await settle(store, [entry])
                published.append(entry.event_type)
    return published


async def test_ten_random_kills_park_nothing(bench: Bench) -> None:
    for index in range(40):
        bench.add(f"E{index}", of=str(index % 5))
    published: list[str] = []
    for kill in range(10):
        store = await bench.holder(f"relay-{kill}")
        entries = await store.entries(10)
        if kill % 3:
            await settle(store, entries[: kill // 2])
            published += names(entries[: kill // 2])
        await bench.crash(store)
    store = await bench.holder("last")
    published += await publish(store)
    assert list(dict.fromkeys(published)) == [f"E{index}" for index in range(40)]
    assert bench.sql("SELECT 1 FROM pillarbox_parked") == []


@CASES.notices("suspected for ever")
async def an_event_that_fails_again_and_again_is_not_taken_for_a_killer(bench: Bench) -> None:
    bench.add("Failing")
    store = await bench.holder("relay-0")
    for crash in range(1, 4):  # before anything is settled: careful from now on
        await store.entries(10)
        store = await bench.takeover(store, f"relay-{crash}")
    for _ in range(3):  # it is sent, refused, and tried again, by one and the same relay
        [entry] = await store.entries(10)
        await settle(store, [entry], RetryAt(bench.clock.now() + timedelta(seconds=1), "no"))
        bench.clock.advance(2)
        await store.renew(None)
    store = await bench.takeover(store, "last")  # one random kill
    assert await publish(store) == ["Failing"]


async def test_an_event_found_guilty_is_sent_again_when_it_is_retried(bench: Bench) -> None:
    bench.add("Killer")
    await _with_a_killer(bench, "Killer")
    store = bench.stores[-1]
    assert await store.retry(Query(status=("dead",))) == 1
    assert await publish(store) == ["Killer"]


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


@VERSIONS
@pytest.mark.parametrize("story", CASES.sound)
async def test_the_rule_holds(story: Story, bench: Bench) -> None:
    await story(bench)


@pytest.mark.parametrize(("story", "mutant"), CASES.broken)
async def test_the_rule_is_missed(story: Story, mutant: Any, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.break_rule(mutant, monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await story(bench)


def test_every_mutant_is_noticed_somewhere() -> None:
    assert not CASES.unnoticed
