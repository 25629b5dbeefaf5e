"""Debezium carries the events: what its slot has confirmed is settled and may be deleted, and nothing else is.

mutant                            the rule that it takes out
--------------------------------  --------------------------------------------------------------------------------
any place                         a note becomes a tick when the slot has passed its place in the WAL
nearly there                      ... and not a byte before
the place before the snapshot     the place is read after the snapshot
the snapshot of the moment        what becomes a tick is the note's snapshot, not what is visible by then
by ids                            ... and the snapshot, not the ids that it had reached
any slot of that name             a slot that may have been made anew settles nothing
the end of the WAL at last        the end of the WAL is read before the slot is looked at
any counter                       a counter proves something only if it is above what can have been since
any process of that number        a reader is known by its number and its start
the kept WAL is not asked         a slot that keeps WAL from before the last look is the same one
the reader is not asked           ... so is one with the same reader
the counter is not asked          ... and one that has given out more than there was since
late ones are not noted           what committed late is noted too
the floor is forgotten            what an adoption has settled stays settled
detours stay                      every topic with a place of its own has met the main line
anybody takes                     relays get no lanes as long as somebody else carries the events
relays live on                    nobody else carries them as long as relays live
the old epochs                    ... and a relay that was taken for dead stores nothing after that
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pillarbox.core.retry import Dead
from pillarbox.errors import LaneLost, StoreError
from tests.conftest import skip_unless_ours
from tests.integration.postgres_bench import (
    Bench,
    Cases,
    InSql,
    Mutant,
    opened,
    publish,
    settle,
    until_waiting,
)
from tests.integration.postgres_shop import roles
from tests.integration.postgres_slot import Carried, drop_slots, reading
from tests.integration.postgres_world import (
    burn,
)

_EPOCH = "epoch = ('x' || translate(left(gen_random_uuid()::text, 18), '-', ''))::bit(64)::bigint"
_NEWEST = "SELECT max(id) FROM public.pillarbox_outbox"
MUTANTS: dict[str, Mutant] = {
    "any place": InSql("watch", {"WHERE t.w <= seen.confirmed": "WHERE true"}),
    "nearly there": InSql("watch", {"t.w <= seen.confirmed": "t.w <= seen.confirmed + 1"}),
    "the place before the snapshot": InSql("watch", {"reached.m, pg_current_wal_insert_lsn()": "reached.m, ends"}),
    "the snapshot of the moment": InSql(
        "watch",
        {"passed.s, passed.x, passed.m,": f"pg_current_snapshot(), passed.x, ({_NEWEST}),"},
    ),
    "by ids": InSql("watch", {"(SELECT max(p.floor_id) FROM public.pillarbox_positions(-1) p)": "passed.m"}),
    "any slot of that name": InSql("watch", {"IF NOT same THEN": "IF seen.wrong IS NOT NULL THEN"}),
    "the end of the WAL at last": InSql("watch", {"seen_end = ends": "seen_end = pg_current_wal_insert_lsn()"}),
    "any counter": InSql("watch", {"AND given > pg_snapshot_xmax": "AND given > 0 * pg_snapshot_xmax"}),
    "any process of that number": InSql("watch", {"(started = slot.backend_start": "(true"}),
    "a number for ever": InSql(
        "watch", {"slot.backend_start IS NULL AND slot.seen_at > public.pillarbox_now() - interval '1 minute'": "true"}
    ),
    "any cluster": InSql("watch", {"AND slot.cluster = here": ""}),
    "the kept WAL is not asked": InSql("watch", {"seen.restart < slot.seen_end": "false"}),
    "the reader is not asked": InSql("watch", {"seen.pid = slot.pid": "false"}),
    "the counter is not asked": InSql("watch", {"given >= slot.decoded": "false"}),
    "late ones are not noted": InSql("watch", {"JOIN public.pillarbox_outbox o ON o.xid = late.xid": "WHERE false"}),
    "the floor is forgotten": InSql("watch", {"(SELECT max(p.floor_id) FROM public.pillarbox_positions(-1) p)": "0"}),
    "detours stay": InSql("watch", {"WHERE p.topic IS NOT NULL AND NOT p.closed": "WHERE false"}),
    "anybody takes": InSql("take", {"IF EXISTS (SELECT 1 FROM public.pillarbox_slot) THEN": "IF false THEN"}),
    "relays live on": InSql(
        "watch_slot", {"WHEN NOT EXISTS (SELECT 1 FROM public.pillarbox_slot) AND": "WHEN false AND"}
    ),
    "the old epochs": InSql("watch_slot", {_EPOCH: "epoch = epoch"}),
}
CASES = Cases(MUTANTS)


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    skip_unless_ours()
    async with opened(database) as bench:
        yield bench
        drop_slots(bench)


@CASES.notices("any place", "the snapshot of the moment")
async def what_the_reader_has_confirmed_is_published_and_nothing_else(bench: Bench) -> None:
    carried = await Carried.of(bench)
    bench.add("A")
    await carried.watch()
    await carried.watch()
    assert carried.status() == {"A": "pending"}
    bench.add("B")
    carried.confirm(carried.noted())
    assert (await carried.watch()).settled == 1
    assert carried.status() == {"A": "published", "B": "pending"}
    assert await carried.prune() == {"B"}
    assert carried.carry() == ["B"]
    await carried.watch()
    assert await carried.prune() == set()


@CASES.notices("any place", "nearly there")
async def a_byte_before_the_place_is_not_enough(bench: Bench) -> None:
    carried = await Carried.of(bench)
    bench.add("A")
    await carried.watch()
    place = carried.noted()
    carried.confirm(bench.one("SELECT (%s::pg_lsn - 1)::text", [place]))
    await carried.watch()
    assert carried.published() == set()
    carried.confirm(place)
    await carried.watch()
    assert carried.published() == {"A"}


@CASES.notices("the place before the snapshot")
async def what_commits_between_the_look_and_the_snapshot_lies_before_the_place(bench: Bench) -> None:
    carried = await Carried.of(bench)
    await carried.watch()  # the function is known to the session then, and waits only where it asks for notes
    bench.add("A")
    between = bench.begin()
    between.execute("LOCK TABLE pillarbox_notes")
    looking = asyncio.create_task(carried.store.watch())
    await until_waiting(bench, "pillarbox_watch")
    before = bench.one("SELECT pg_current_wal_insert_lsn()::text")
    bench.add("B")
    between.commit()
    await looking
    carried.confirm(before)
    await carried.watch()
    assert carried.published() == set()
    assert carried.carry()[-1] == "B"
    await carried.watch()
    assert carried.published() == {"A", "B"}


@CASES.notices("by ids", "the snapshot of the moment")
async def who_commits_late_stays_pending_until_it_was_carried(bench: Bench) -> None:
    carried = await Carried.of(bench)
    late, prepared, nested = bench.begin(), bench.begin(autocommit=True), bench.begin()
    bench.add("Late", within=late)
    prepared.execute("BEGIN")
    bench.add("Prepared", within=prepared)
    prepared.execute(f"PREPARE TRANSACTION '{carried.slot}'".encode())
    with nested.transaction(), nested.transaction():
        bench.add("Nested", within=nested)
    nested.execute("SAVEPOINT more")
    bench.add("Nested again", within=nested)
    bench.add("A")
    await carried.watch()
    assert carried.carry() == ["Nested", "A"]
    late.commit()
    await carried.watch()
    assert carried.status() == {"Nested": "published", "A": "published", "Late": "pending"}
    assert await carried.prune() == {"Late"}
    prepared.execute(f"COMMIT PREPARED '{carried.slot}'".encode())
    nested.commit()
    await carried.watch()
    place = carried.noted()
    assert carried.status() == {"Late": "pending", "Prepared": "pending", "Nested again": "pending"}
    carried.confirm(place)
    await carried.watch()
    assert carried.published() == {"Late", "Prepared", "Nested again"}
    assert await carried.prune() == set()


@CASES.notices("late ones are not noted")
async def what_commits_late_is_noted_although_no_id_is_new(bench: Bench) -> None:
    carried = await Carried.of(bench)
    late = bench.begin()
    bench.add("Late", within=late)
    bench.add("A")
    await carried.watch()
    late.commit()
    await carried.watch()
    carried.confirm(carried.noted())
    await carried.watch()
    assert carried.published() == {"A", "Late"}


@CASES.notices("any slot of that name")
async def a_slot_that_was_made_anew_settles_nothing_until_somebody_vouches_for_it(bench: Bench) -> None:
    carried = await Carried.of(bench)
    bench.add("A")
    await carried.watch()
    assert carried.carry() == ["A"]
    await carried.watch()
    bench.add("Passed over")
    await carried.watch()
    carried.drop()
    carried.make()
    bench.add("B")
    assert carried.carry() == ["B"]
    assert "may have been made anew" in ((await carried.watch()).doubt or "")
    carried.carry()
    assert "may have been made anew" in ((await carried.watch()).doubt or "")
    assert carried.status() == {"A": "published", "Passed over": "pending", "B": "pending"}
    assert await carried.prune() == {"Passed over", "B"}
    await carried.store.watch_slot(carried.slot)
    await carried.watch()
    carried.carry()
    await carried.watch()
    assert carried.published() == {"Passed over", "B"}


@CASES.notices("the end of the WAL at last")
async def a_slot_that_is_made_anew_during_a_look_is_noticed_at_the_next(bench: Bench) -> None:
    carried = await Carried.of(bench)
    await carried.watch()
    between = bench.begin()
    between.execute("LOCK TABLE pillarbox_slot IN SHARE MODE")
    looking = asyncio.create_task(carried.store.watch())
    await until_waiting(bench, "pillarbox_watch")
    carried.drop()
    bench.add("Passed over")
    carried.make()
    between.commit()
    await looking
    await carried.watch()
    carried.carry()
    await carried.watch()
    assert carried.published() == set()


@CASES.notices("any counter")
async def a_new_slot_that_has_given_out_more_than_the_old_one_is_still_a_new_one(bench: Bench) -> None:
    carried = await Carried.of(bench, history=1)
    bench.add("Passed over")
    await carried.watch()
    carried.drop()
    carried.make()
    carried.beat(50)
    carried.carry()
    await carried.watch()
    carried.carry()
    await carried.watch()
    assert carried.published() == set()


@CASES.notices("any process of that number")
async def a_new_slot_whose_reader_has_the_old_ones_number_is_still_a_new_one(bench: Bench) -> None:
    carried = await Carried.of(bench)
    bench.add("Passed over")
    async with reading(bench, carried.slot):
        await carried.watch()
    carried.drop()
    carried.make()
    carried.carry()
    async with reading(bench, carried.slot) as reader:
        bench.sql("UPDATE pillarbox_slot SET pid = %s", [reader.pid])
        await carried.watch()
        assert carried.published() == set()


@CASES.notices("the reader is not asked")
async def a_slot_that_keeps_no_old_wal_is_known_by_its_reader(bench: Bench) -> None:
    carried = await Carried.of(bench, history=1)
    async with reading(bench, carried.slot) as reader:
        await carried.watch()
        await carried.keep_no_old_wal(reader)
        assert (await carried.watch()).doubt is None


@CASES.notices("a number for ever")
async def a_reader_whose_start_is_hidden_is_known_for_a_minute(bench: Bench) -> None:
    bench.sql(roles().decode())
    bench.sql("GRANT SELECT ON test_clock TO PUBLIC")
    carried = await Carried.of(bench, history=1)
    carried.store = await bench.store("relay", url=f"{bench.url}?options=-crole%3Dpillarbox_relay")
    async with reading(bench, carried.slot) as reader:
        await carried.watch()
        await carried.keep_no_old_wal(reader)
        bench.clock.advance(30)
        assert (await carried.watch()).doubt is None
        assert bench.one("SELECT pid IS NOT NULL AND backend_start IS NULL FROM pillarbox_slot")
        await carried.keep_no_old_wal(reader)
        bench.clock.advance(90)
        assert (await carried.watch()).doubt is not None


@CASES.notices("any cluster")
async def the_slot_of_another_cluster_settles_nothing(bench: Bench) -> None:
    carried = await Carried.of(bench)
    bench.add("A")
    await carried.watch()
    carried.carry()
    bench.sql("CREATE OR REPLACE FUNCTION pillarbox_cluster() RETURNS text LANGUAGE sql STABLE AS $$SELECT '7'$$")
    assert "another cluster" in ((await carried.watch()).doubt or "")
    with pytest.raises(StoreError, match="pillarbox adopt"):
        await carried.store.watch_slot(carried.slot)


@CASES.notices("the counter is not asked")
async def a_slot_that_keeps_no_old_wal_is_known_by_all_that_it_has_given_out(bench: Bench) -> None:
    carried = await Carried.of(bench)
    await carried.watch()
    await carried.keep_no_old_wal()
    assert (await carried.watch()).doubt is None


@CASES.notices("the kept WAL is not asked")
async def a_slot_is_known_by_the_old_wal_that_it_keeps(bench: Bench) -> None:
    carried = await Carried.of(bench, history=1)
    await carried.watch()
    burn(bench.url, 50)
    assert not carried.has_no_old_wal()
    assert (await carried.watch()).doubt is None


@CASES.notices("the floor is forgotten")
async def what_was_settled_in_another_cluster_stays_settled(bench: Bench) -> None:
    carried = await Carried.of(bench)
    bench.add("Adopted")
    bench.sql("UPDATE pillarbox_outbox SET xid = '99999999'")
    bench.sql("UPDATE pillarbox_ticks SET floor_id = (SELECT max(id) FROM pillarbox_outbox)")
    bench.add("A")
    await carried.watch()
    carried.carry()
    await carried.watch()
    assert carried.published() == {"Adopted", "A"}


@CASES.notices("detours stay")
async def a_topic_with_a_place_of_its_own_is_carried_with_the_others(bench: Bench) -> None:
    relay = await bench.holder("relay")
    await relay.pause("slow", "me", "why not")
    bench.add("A")
    bench.add("Slow", of="2", topic="slow")
    assert await publish(relay) == ["A"]
    await relay.release()
    await relay.resume("slow")
    carried = await Carried.of(bench)
    assert carried.status() == {"A": "published", "Slow": "pending"}
    await carried.watch()
    carried.carry()
    await carried.watch()
    assert carried.published() == {"A", "Slow"}
    bench.add("Slow too", of="2", topic="slow")
    bench.add("B")
    await carried.store.unwatch()
    assert sorted(await publish(await bench.holder("later"))) == ["B", "Slow too"]


@CASES.notices("anybody takes")
async def relays_get_no_lanes_while_somebody_else_carries_the_events(bench: Bench) -> None:
    carried = await Carried.of(bench)
    bench.add("A")
    relay = await bench.store("relay")
    with pytest.raises(StoreError, match=f"replication slot {carried.slot} .* `pillarbox relay watch`"):
        await relay.take()
    await carried.watch()
    carried.carry()
    await carried.watch()
    bench.add("B")
    await carried.store.unwatch()
    await relay.take()
    assert await publish(relay) == ["B"]


@CASES.notices("relays live on")
async def nobody_else_carries_the_events_while_relays_live(bench: Bench) -> None:
    relay = await bench.holder("relay")
    with pytest.raises(StoreError, match=r"relays are alive \(relay\)"):
        await Carried.of(bench)
    bench.add("A")
    assert await publish(relay) == ["A"]


@CASES.notices("the old epochs")
async def a_relay_that_was_taken_for_dead_stores_nothing(bench: Bench) -> None:
    relay = await bench.holder("relay")
    bench.add("A", "B")
    entries = await relay.entries(1)
    bench.clock.advance(20)
    carried = await Carried.of(bench)
    with pytest.raises(LaneLost):
        await settle(relay, entries)
    with pytest.raises(LaneLost):
        await settle(relay, entries, Dead("no"))
    assert carried.status() == {"A": "pending", "B": "pending"}


test_the_rule_holds, test_the_rule_is_missed, test_every_mutant_is_noticed_somewhere = CASES.tests()
