"""Settling on PostgreSQL: all of it or nothing, whenever the connection dies; and payloads of any size.

mutant                        the rule that it takes out
----------------------------  ------------------------------------------------------------------------------------
the position first            position and parking lot change in one transaction
parked again                  what is parked already is not parked twice
memory kept                   after an error everything in memory is forgotten
any size                      a chunk is bounded by bytes too
any headers                   ... of headers as well as of payload
the end too soon              a chunk that was cut by its size does not end its batch
"""

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.retry import PUBLISHED, Dead, RetryAt
from pillarbox.core.window import BLOCKED, Settled, Settlement
from pillarbox.errors import LaneLost, StoreUnavailable
from pillarbox.ports import Query
from pillarbox.stores.postgres import PostgresStore
from pillarbox.stores.postgres.parking import CHUNK
from pillarbox.stores.postgres.reading import Reading
from pillarbox.stores.postgres.settling import Settling
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
)

_ALL = "await self.write(ticks + [self.tick(detour) for _, detour in detours], parked, settled)"
MUTANTS: dict[str, Mutant] = {
    "the position first": InSource(
        Settling, "record", {_ALL: "await self.write(ticks, [], []); await self.write([], parked, settled)"}
    ),
    "parked again": InSql("settle", {"WHERE NOT EXISTS (SELECT 1 FROM public.pillarbox_parked there": (
        "WHERE true OR NOT EXISTS (SELECT 1 FROM public.pillarbox_parked there")}),
    "memory kept": InSource(Settling, "write", {"self._memory.forget()": "pass"}),
    "any size": InSql("more", {"WHERE coalesce(bytes_before, 0) < _bytes": "WHERE true"}),
    "any headers": InSql("more", {" + coalesce(pg_column_size(headers), 0)": ""}),
    "the end too soon": InSource(Reading, "_give", {"and 4 * chunk.size < CHUNK": ""}),
}  # fmt: skip
CASES = Cases(MUTANTS)
MB = 1_000_000
DEATHS = {
    "as the tick is written": "BEFORE INSERT ON pillarbox_ticks",
    "when the tick was written": "AFTER INSERT ON pillarbox_ticks",
    "as something is parked": "BEFORE INSERT ON pillarbox_parked",
    "as something parked is settled": "BEFORE UPDATE ON pillarbox_parked",
}


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


def die(bench: Bench, when: str) -> None:
    """Let the backend that does something to a table end there and then."""
    bench.sql(
        "CREATE OR REPLACE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN new; END $$"
    )
    bench.sql(f"CREATE TRIGGER die {when} FOR EACH ROW EXECUTE FUNCTION die()")


def live(bench: Bench) -> None:
    bench.sql("DROP FUNCTION die CASCADE")


async def _settle_all_kinds(bench: Bench, store: PostgresStore) -> None:
    """Settle at once: one from the parking lot, one that is published, one that fails, and its follower."""
    entries = await store.entries(10)
    assert names(entries) == ["Parked", "A", "B", "B2"]
    verdicts: list[Settled] = [PUBLISHED, PUBLISHED, RetryAt(bench.clock.now(), "no"), BLOCKED]
    await store.settle([Settlement(entry, verdict) for entry, verdict in zip(entries, verdicts, strict=True)])


async def _all_kinds(bench: Bench) -> PostgresStore:
    store = await bench.holder()
    bench.add("Parked", of="p")
    await settle(store, await store.entries(10), RetryAt(bench.clock.now(), "no"))
    bench.add("A", of="a")
    bench.add("B", "B2", of="b")
    return store


@CASES.notices("the position first")
async def a_settlement_that_dies_anywhere_has_changed_nothing(bench: Bench) -> None:
    for when in DEATHS.values():
        bench.sql("DELETE FROM pillarbox_parked")
        store = await _all_kinds(bench)
        before = bench.sql("SELECT n FROM pillarbox_ticks WHERE s3 IS NULL"), _lot(bench)
        die(bench, when)
        if "ticks" in when:
            bench.sql("DROP TRIGGER die ON pillarbox_ticks")  # not the tick that stores a snapshot
            bench.sql(f"CREATE TRIGGER die {when} FOR EACH ROW WHEN (new.s3 IS NULL) EXECUTE FUNCTION die()")
        with pytest.raises(LaneLost):
            await _settle_all_kinds(bench, store)
        live(bench)
        assert (bench.sql("SELECT n FROM pillarbox_ticks WHERE s3 IS NULL"), _lot(bench)) == before, when
        await store.take()
        await _settle_all_kinds(bench, store)
        assert _lot(bench) == [("Parked", "published"), ("B", "retrying"), ("B2", "blocked")]
        assert await publish(store) == ["B", "B2"]
        await bench.crash(store)


def _lot(bench: Bench) -> list[tuple[Any, ...]]:
    return bench.sql("SELECT event_type, state FROM pillarbox_parked ORDER BY id")


async def _lost_answers(store: PostgresStore) -> None:
    """Let the connection break after the next settlement's commit."""
    run = store._reading.run

    async def run_and_break(sql: str, parameters: Any = (), **more: Any) -> Any:
        rows = await run(sql, parameters, **more)
        if "settle(" in sql:
            store._reading.run = run  # type: ignore[method-assign]
            await store._reading.close()
            raise LaneLost("the answer was lost")
        return rows

    store._reading.run = run_and_break  # type: ignore[method-assign]


@VERSIONS
async def test_a_settlement_whose_answer_was_lost_counts_once(bench: Bench) -> None:
    store = await _all_kinds(bench)
    await _lost_answers(store)
    with pytest.raises(LaneLost):
        await _settle_all_kinds(bench, store)
    await store.take()
    assert _lot(bench) == [("Parked", "published"), ("B", "retrying"), ("B2", "blocked")]
    assert await publish(store) == ["B", "B2"]


@CASES.notices("parked again")
async def what_is_parked_already_is_not_parked_twice_by_an_older_position(bench: Bench) -> None:
    store = await bench.holder("first")
    bench.add("A", "B")
    entries = await store.entries(10)
    position = bench.sql("SELECT * FROM pillarbox_ticks ORDER BY n DESC LIMIT 1")
    await settle(store, entries, Dead("no"))
    # A former holder's tick that slipped in: it claims less than was settled.
    bench.sql(
        "INSERT INTO pillarbox_ticks (token, owner, lanes, s1, x1, m1, s2, x2, m2, cluster)"
        " SELECT gen_random_uuid(), 'zombie', lanes, s1, x1, m1, s2, x2, m2, cluster FROM pillarbox_ticks WHERE n = %s",
        [position[0][0]],
    )
    store = await bench.takeover(store, "second")
    again = await store.entries(10)
    assert names(again) == ["A", "B"]
    await settle(store, again, BLOCKED)
    assert _lot(bench) == [("A", "dead"), ("B", "dead")]


@CASES.notices("memory kept")
async def after_a_settlement_that_failed_nothing_is_read_on(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("A", "B", "C")
    entries = await store.entries(1)
    die(bench, DEATHS["as something is parked"])
    with pytest.raises(StoreUnavailable):
        await store._log.settle([Settlement(entries[0], Dead("no"))])
    live(bench)
    with pytest.raises(LaneLost):
        await store._log.entries(10)


@VERSIONS
async def test_a_statement_timeout_publishes_nothing_and_loses_nothing(bench: Bench) -> None:
    store = await bench.holder(url=f"{bench.url}?options=-cstatement_timeout%3D300")
    bench.add("A", "B")
    blocker = bench.begin()
    blocker.execute("LOCK TABLE pillarbox_ticks IN SHARE ROW EXCLUSIVE MODE")
    with pytest.raises(LaneLost, match="timeout"):
        await store.entries(10)
    blocker.rollback()
    await store.take()
    entries = await store.entries(10)
    blocker.execute("LOCK TABLE pillarbox_ticks IN SHARE ROW EXCLUSIVE MODE")
    with pytest.raises(LaneLost, match="timeout"):
        await settle(store, entries, Dead("no"))
    blocker.rollback()
    await store.take()
    assert await publish(store) == ["A", "B"]
    assert _lot(bench) == []


def add_large(bench: Bench, count: int, within: Any = None) -> None:
    (within or bench._sql).execute(
        "INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload)"
        " SELECT 'order', (i %% 5)::text, 'E' || i, 'orders', json_build_array(repeat('x', %s))"
        " FROM generate_series(0, %s) i",
        [MB, count - 1],
    )


async def _by_bytes(store: PostgresStore) -> list[str]:
    """Read and publish everything; no answer holds more than a chunk and its last row."""
    read: list[str] = []
    while entries := await store.entries(1000):
        assert sum(len(entry.data) for entry in entries) <= CHUNK + 2 * MB
        await settle(store, entries)
        read += names(entries)
    return read


@CASES.notices("any size", "the end too soon")
async def large_payloads_come_in_chunks_and_in_order(bench: Bench) -> None:
    store = await bench.holder()
    add_large(bench, 30)
    assert await _by_bytes(store) == [f"E{index}" for index in range(30)]


@CASES.notices("any size", "the end too soon")
async def large_payloads_of_a_late_transaction_come_in_chunks_and_in_order(bench: Bench) -> None:
    store = await bench.holder()
    late = bench.begin()
    add_large(bench, 20, late)
    bench.add("Early")
    assert await publish(store) == ["Early"]
    late.commit()
    bench.add("Last")
    assert await _by_bytes(store) == [*(f"E{index}" for index in range(20)), "Last"]


@CASES.notices("any headers")
async def large_headers_come_in_chunks_and_in_order(bench: Bench) -> None:
    store = await bench.holder()
    bench.sql(
        "INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload, headers)"
        " SELECT 'order', '1', 'E' || i, 'orders', '{}', json_build_object('h', repeat('x', 90000))"
        " FROM generate_series(0, 299) i"
    )
    read: list[str] = []
    while entries := await store.entries(1000):
        assert sum(entry.size for entry in entries) <= CHUNK + 2 * MB
        await settle(store, entries)
        read += names(entries)
    assert read == [f"E{index}" for index in range(300)]


@VERSIONS
async def test_many_megabytes_pass_through_a_few(bench: Bench) -> None:
    store = await bench.holder()
    add_large(bench, 150)
    tracemalloc.start()
    try:
        read = await _by_bytes(store)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read == [f"E{index}" for index in range(150)]
    assert peak < 50 * MB


@VERSIONS
async def test_large_payloads_out_of_the_parking_lot_come_in_chunks_and_in_order(bench: Bench) -> None:
    store = await bench.holder()
    bench.sql(
        "INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload)"
        " SELECT 'order', '1', 'E' || i, 'orders', json_build_array(repeat('x', %s)) FROM generate_series(0, 29) i",
        [MB],
    )
    entries: list[Entry] = []
    while found := await store.entries(1000):
        entries += found
    await settle(store, entries[:1], Dead("no"))
    await settle(store, entries[1:], BLOCKED)
    await store.retry(Query(status=("dead",)))
    assert await _by_bytes(store) == [f"E{index}" for index in range(30)]


test_the_rule_holds, test_the_rule_is_missed, test_every_mutant_is_noticed_somewhere = CASES.tests()
