"""The rule of ticks, word by word: a snapshot is used only once a tick that names it is committed durably, and only as
long as everything that memory came from is still there. No torture finds these holes; each has its recipe here.

    mutant                        the rule that it takes out
    ----------------------------  ------------------------------------------------------------------------------------
    a snapshot from before        snapshot, first chunk and tick come out of one statement
    the number alone              a tick is known by its number and its token
    ticks unchecked               nothing is read or written unless the ticks that memory came from exist
    any cluster                   ... and the cluster is the same
    any epoch                     ... and every lane's epoch is ours
    deaf to warnings              a warning on a tick: publish nothing, forget
    any transaction               a tick's transaction had no id before
    a lazy tick                   a tick that names a snapshot is durable, whatever the role's setting
    a lazy settlement             so is what parks
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.core.retry import Dead
from pillarbox.errors import LaneLost, StoreError
from pillarbox.stores.postgres.connection import Connection, Rows
from servers.postgres import Postgres
from tests.integration.postgres_bench import (
    VERSIONS,
    Bench,
    Cases,
    InPython,
    InSql,
    Mutant,
    names,
    opened,
    publish,
    settle,
    until,
)

_TICKS_EXIST = (
    "AND (SELECT count(*) FROM public.pillarbox_ticks t\n"
    "              JOIN unnest(_ns, _tokens) came(n, token) ON t.n = came.n AND t.token = came.token)\n"
    "            = cardinality(_ns)"
)
MUTANTS: dict[str, Mutant] = {
    "a snapshot from before": InSql(
        "poll", {"_cluster, pg_current_snapshot(), reached.m3": "_cluster, (SELECT s FROM read_before), reached.m3"}
    ),
    "the number alone": InSql("held", {"t.n = came.n AND t.token = came.token": "t.n = came.n"}),
    "ticks unchecked": InSql("held", {_TICKS_EXIST: ""}),
    "any cluster": InSql("held", {"AND public.pillarbox_cluster() = _cluster": ""}),
    "any epoch": InSql("held", {"l.lane = mine.lane AND l.epoch = mine.epoch": "l.lane = mine.lane"}),
    "deaf to warnings": InPython(Connection, "_notice", lambda self, diagnostic: None),
    "any transaction": InSql("poll", {"AND pg_current_xact_id_if_assigned() IS NULL": ""}),
    "a lazy tick": InSql("poll", {"ELSE 'on' END": "ELSE current_setting('synchronous_commit') END"}),
    "a lazy settlement": InSql("settle", {"ELSE 'on' END": "ELSE current_setting('synchronous_commit') END"}),
}
CASES = Cases(MUTANTS)
FUTURE = 50
"""So many transactions are gone, and their ids come again, after a crash that the mutant has slept through."""


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


@CASES.notices("a snapshot from before")
async def a_snapshot_that_was_read_before_a_crash_is_not_stored_after_it(bench: Bench) -> None:
    bench.sql(
        "CREATE TABLE read_before AS SELECT format('%%s:%%s:', x, x)::pg_snapshot AS s"
        " FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint + %s) t(x)",
        [FUTURE],
    )
    store = await bench.holder()
    between = bench.begin()  # the restart and the tick: its id is one that the snapshot takes for settled
    bench.add("1", "2", "3", "4", "5", within=between)
    bench.add("Before")
    assert await publish(store) == ["Before"]
    between.commit()
    assert await publish(store) == ["1", "2", "3", "4", "5"]


@CASES.notices("the number alone", "ticks unchecked")
async def another_tick_under_the_same_number_is_not_taken_for_ours(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("A")
    assert await publish(store) == ["A"]
    bench.sql("UPDATE pillarbox_ticks SET token = gen_random_uuid()")
    bench.add("B")
    with pytest.raises(LaneLost):
        await store.entries(10)


@CASES.notices("ticks unchecked")
async def a_chunk_is_not_read_on_the_word_of_a_tick_that_is_gone(bench: Bench) -> None:
    store = await bench.holder()
    bench.add(*"12345678")
    assert names(await store.entries(5)) == [*"12345"]
    bench.sql("DELETE FROM pillarbox_ticks WHERE owner <> 'migrate'")  # as a failover would
    with pytest.raises(LaneLost):
        await store.entries(5)
    await store.take()
    assert await publish(store) == [*"12345678"]


@CASES.notices("ticks unchecked")
async def nothing_is_settled_or_parked_on_the_word_of_a_tick_that_is_gone(bench: Bench) -> None:
    store = await bench.holder()
    bench.add(*"1234")
    entries = await store.entries(4)
    bench.sql("DELETE FROM pillarbox_ticks WHERE owner <> 'migrate'")
    with pytest.raises(LaneLost):
        await settle(store, entries[:1])
    with pytest.raises(LaneLost):
        await settle(store, entries[1:], Dead("no"))
    assert bench.sql("SELECT owner FROM pillarbox_ticks") == [("migrate",)]
    assert bench.sql("SELECT 1 FROM pillarbox_parked") == []


@CASES.notices("any cluster")
async def a_relay_in_mid_batch_stops_where_the_server_is_another_cluster(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("A", "B")
    entries = await store.entries(1)
    here = bench.one("SELECT pillarbox_cluster()")
    bench.sql("CREATE OR REPLACE FUNCTION pillarbox_cluster() RETURNS text LANGUAGE sql STABLE AS $$SELECT '7'$$")
    with pytest.raises(LaneLost):
        await store.entries(1)
    with pytest.raises(LaneLost):
        await settle(store, entries)
    with pytest.raises(StoreError, match="pillarbox adopt"):
        await store.take()
    bench.sql(f"CREATE OR REPLACE FUNCTION pillarbox_cluster() RETURNS text LANGUAGE sql STABLE AS $$SELECT '{here}'$$")
    await store.take()
    assert await publish(store) == ["A", "B"]


@CASES.notices("any epoch")
async def a_relay_whose_lanes_were_taken_reads_settles_and_parks_nothing(bench: Bench) -> None:
    first = await bench.holder("first")
    bench.add("A", "B", "C", "D")
    entries = await first.entries(2)
    bench.clock.advance(20)
    second = await bench.holder("second")
    ticks = bench.one("SELECT count(*) FROM pillarbox_ticks")
    with pytest.raises(LaneLost):
        await first.entries(2)
    assert bench.one("SELECT count(*) FROM pillarbox_ticks") == ticks
    with pytest.raises(LaneLost):
        await settle(first, entries[:1])
    with pytest.raises(LaneLost):
        await settle(first, entries[1:], Dead("no"))
    assert bench.one("SELECT count(*) FROM pillarbox_ticks") == ticks
    assert bench.sql("SELECT 1 FROM pillarbox_parked") == []
    assert await publish(second) == ["A", "B", "C", "D"]


@CASES.notices("any epoch")
async def a_zombie_that_wakes_up_to_settle_writes_nothing(bench: Bench) -> None:
    first = await bench.holder("first")
    bench.add("A", "B")
    entries = await first.entries(2)
    bench.clock.advance(20)
    second = await bench.holder("second")
    assert await publish(second) == ["A", "B"]
    with pytest.raises(LaneLost):
        await settle(first, entries, Dead("no"))
    assert bench.sql("SELECT 1 FROM pillarbox_parked") == []


@CASES.notices("deaf to warnings")
async def a_warning_on_a_tick_publishes_nothing(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("A", "B")
    _warn_at_ticks(bench)
    with pytest.raises(LaneLost, match="in doubt: so so"):
        await store.entries(10)
    bench.sql("DROP TRIGGER warn ON pillarbox_ticks")
    await store.take()
    assert await publish(store) == ["A", "B"]


@CASES.notices("deaf to warnings")
async def a_warning_as_something_is_parked_leaves_nothing_in_memory(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("A", "B")
    entries = await store.entries(1)
    _warn_at_ticks(bench)
    with pytest.raises(LaneLost):
        await settle(store, entries, Dead("no"))
    bench.sql("DROP TRIGGER warn ON pillarbox_ticks")
    await store.take()
    assert bench.sql("SELECT event_type, state FROM pillarbox_parked") == [("A", "dead")]
    assert names(await store.entries(10)) == ["B"]
    assert store.blocked == {("orders", "order", "1")}


def _warn_at_ticks(bench: Bench) -> None:
    bench.sql(
        "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE WARNING 'so so'; RETURN new; END $$"
    )
    bench.sql("CREATE TRIGGER warn BEFORE INSERT ON pillarbox_ticks FOR EACH ROW EXECUTE FUNCTION warn()")


@CASES.notices("any transaction")
async def a_tick_in_a_transaction_that_had_an_id_before_is_refused(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("A")
    run = store._reading.run

    async def run_later(sql: str, parameters: Any = (), **more: Any) -> Rows:
        if "poll(" not in sql:
            return await run(sql, parameters, **more)
        await run("BEGIN")
        await run("SELECT pg_current_xact_id()::text")
        rows = await run(sql, parameters)
        await run("COMMIT")
        return rows

    store._reading.run = run_later  # type: ignore[method-assign]
    with pytest.raises(LaneLost):
        await store.entries(10)
    assert bench.sql("SELECT owner FROM pillarbox_ticks") == [("migrate",)]


@CASES.notices("a lazy tick", "a lazy settlement")
async def a_tick_is_durable_although_the_role_is_not(bench: Bench) -> None:
    bench.sql("CREATE TABLE commits (how text, flushed pg_lsn)")
    bench.sql(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO commits VALUES (current_setting('synchronous_commit'), pg_current_wal_insert_lsn());"
        " RETURN null; END $$"
    )
    bench.sql(
        "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON pillarbox_ticks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
        " EXECUTE FUNCTION note()"
    )
    store = await bench.holder(url=f"{bench.url}?options=-csynchronous_commit%3Doff")
    bench.add("A", "B", "C")
    entries = await store.entries(10)
    # Written before the commit, so the commit lies beyond; the WAL writer alone would come to it later.
    assert bench.one("SELECT pg_current_wal_flush_lsn() > max(flushed) FROM commits")
    await settle(store, entries[:1])
    await settle(store, entries[1:], Dead("no"))
    assert [how for how, _ in bench.sql("SELECT * FROM commits ORDER BY flushed")] == ["on", "off", "on"]


@VERSIONS
async def test_a_stronger_setting_of_the_role_is_kept(bench: Bench) -> None:
    bench.sql("CREATE TABLE commits (how text)")
    bench.sql(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO commits VALUES (current_setting('synchronous_commit')); RETURN null; END $$"
    )
    bench.sql(
        "CREATE CONSTRAINT TRIGGER note AFTER INSERT ON pillarbox_ticks DEFERRABLE INITIALLY DEFERRED FOR EACH ROW"
        " EXECUTE FUNCTION note()"
    )
    store = await bench.holder(url=f"{bench.url}?options=-csynchronous_commit%3Dremote_apply")
    bench.add("A")
    await settle(store, await store.entries(10), Dead("no"))
    assert bench.sql("SELECT DISTINCT how FROM commits") == [("remote_apply",)]


@VERSIONS
async def test_nothing_in_the_session_remembers_a_tick(bench: Bench) -> None:
    store = await bench.holder(url=f"{bench.url}?options=-csynchronous_commit%3Doff")
    bench.add("A")
    await publish(store)
    for setting, value in (("synchronous_commit", "off"), ("enable_seqscan", "on"), ("enable_sort", "on")):
        assert await store._reading.run(f"SELECT current_setting('{setting}')") == [(value,)]


async def test_a_tick_that_is_cancelled_while_it_waits_for_a_standby_publishes_nothing(
    own_postgres: Callable[[str], Postgres],
) -> None:
    server = own_postgres("15")
    async with opened(server.create_database("shop")) as bench:
        store = await bench.holder()
        bench.add("A")
        server.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        server.execute("SELECT pg_reload_conf()")
        reading = asyncio.create_task(store.entries(10))
        await until(bench, "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        server.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        with pytest.raises(LaneLost, match="in doubt"):
            await reading
        server.execute("ALTER SYSTEM RESET synchronous_standby_names")
        server.execute("SELECT pg_reload_conf()")
        await store.take()
        assert await publish(store) == ["A"]


@VERSIONS
async def test_a_batch_may_begin_while_the_one_before_is_in_flight(bench: Bench) -> None:
    store = await bench.holder("first")
    late = bench.begin()
    bench.add("Late", of="late", within=late)
    bench.add("A1", of="a")
    first = await store.entries(10)
    bench.add("A2", of="a")
    late.commit()
    second = await store.entries(10)
    bench.add("A3", of="a")
    third = await store.entries(10)
    assert (names(first), names(second), names(third)) == (["A1"], ["Late", "A2"], ["A3"])
    await settle(store, first)
    await settle(store, second[:1])
    store = await bench.takeover(store, "second")
    assert await publish(store) == ["A2", "A3"]


@VERSIONS
@pytest.mark.parametrize("settled", range(1, 8))
async def test_a_takeover_repeats_exactly_what_was_not_settled_of_several_batches(bench: Bench, settled: int) -> None:
    store = await bench.holder("first")
    late = bench.begin()
    bench.add("Late 1", "Late 2", of="late", within=late)
    given = []
    for batch in range(3):
        bench.add(f"A{batch}", of="a")
        if batch == 1:
            late.commit()
        given += list(await store.entries(10))
        bench.add(f"B{batch}", of="b", within=(still := bench.begin()))  # stays open over the next tick
        still.commit()
    order = ["A0", "Late 1", "Late 2", "B0", "A1", "B1", "A2"]
    assert names(given) == order
    await settle(store, given[:settled])
    store = await bench.takeover(store, "second")
    assert await publish(store) == [*order[settled:], "B2"]


@VERSIONS
async def test_progress_that_was_not_stored_is_repeated_and_nothing_is_lost(bench: Bench) -> None:
    store = await bench.holder("first", progress=timedelta(hours=1))
    for batch in range(4):
        bench.add(f"A{batch}", f"B{batch}")
        await settle(store, await store.entries(10))
    store = await bench.takeover(store, "second")
    assert await publish(store) == ["A3", "B3"]


test_the_rule_holds, test_the_rule_is_missed, test_every_mutant_is_noticed_somewhere = CASES.tests()
