"""Every known way in which transactions make a reader lose or reorder events, on the PostgreSQL store.

mutant                        the rule that it takes out
----------------------------  ------------------------------------------------------------------------------------
no late transactions          what was in progress in the last snapshot is asked for by its own id
none above xmax               ... and so is what had begun when the tick was written, though it is in no list
bound at xmax                 the bound of what is new is the tick's own transaction, not the snapshot's xmax
late above the log's end      late transactions have ids below what the log had reached
behind the oldest             a transaction that stays open hides only itself
beyond the snapshot           a batch ends at its stored snapshot, whatever has committed since
transactions first            rows come by id, not by transaction
time first                    ... nor by the time that stands in them
numbers without a lock        a number is drawn before the row's id, and kept until the commit
"""

import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.snapshot import Position
from pillarbox.psycopg import Outbox
from tests.integration.postgres_bench import (
    VERSIONS,
    Bench,
    Cases,
    InPython,
    InSql,
    Mutant,
    Story,
    Transaction,
    names,
    opened,
    publish,
    settle,
)

MUTANTS: dict[str, Mutant] = {
    "no late transactions": InPython(Position, "late", property(lambda self: [])),
    "none above xmax": InPython(Position, "late", property(lambda self: sorted(self.before.snapshot.in_progress))),
    "bound at xmax": InSql(
        "poll",
        {
            "reached.m3, pg_current_xact_id()": (
                "reached.m3, (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1)::text::xid8"
            )
        },
    ),
    "late above the log's end": InSql("more", {"o.xid = l.xid AND o.id > _last": "o.xid = l.xid AND o.id > _after"}),
    "behind the oldest": InSql("more", {"pg_visible_in_snapshot(o.xid, _s2)": "o.xid < pg_snapshot_xmin(_s2)"}),
    "beyond the snapshot": InSql("more", {"pg_visible_in_snapshot(o.xid, _s2)": "true"}),
    "transactions first": InSql(
        "more",
        {
            "ORDER BY o.id LIMIT _rows": "ORDER BY o.xid, o.id LIMIT _rows",
            "ORDER BY id LIMIT _rows": "ORDER BY xid, id LIMIT _rows",
        },
    ),
    "time first": InSql(
        "more",
        {
            "ORDER BY o.id LIMIT _rows": "ORDER BY o.created_at, o.id LIMIT _rows",
            "ORDER BY id LIMIT _rows": "ORDER BY created_at, id LIMIT _rows",
        },
    ),
    "numbers without a lock": InSql(
        "draw_numbers",
        {
            "INSERT INTO public.pillarbox_numbers AS n (aggregate_type, aggregate_id, last)": "",
            "SELECT type, id, count(*) FROM": "SELECT type, id, 1::bigint FROM",
            "ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last = n.last + excluded.last": "",
            "RETURNING n.aggregate_type, n.aggregate_id, n.last": "",
        },
    ),
}
CASES = Cases(MUTANTS)


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with opened(database) as bench:
        yield bench


@CASES.notices("no late transactions", "late above the log's end")
async def a_late_commit_below_a_higher_id_comes_out(bench: Bench) -> None:
    store = await bench.holder()
    late = bench.begin()
    bench.add("Late", of="1", within=late)
    bench.add("Early", of="2")
    assert await publish(store) == ["Early"]
    late.commit()
    assert await publish(store) == ["Late"]
    assert await publish(store) == []


@CASES.notices("no late transactions", "late above the log's end")
async def a_transaction_that_began_before_others_and_wrote_after_them_comes_out(bench: Bench) -> None:
    store = await bench.holder()
    early = bench.begin()
    bench.xid(early)
    bench.add("A", of="1")
    assert await publish(store) == ["A"]
    bench.add("B", of="1", within=early)
    bench.add("C", of="2")
    assert await publish(store) == ["C"]
    early.commit()
    bench.add("D", of="1")
    assert await publish(store) == ["B", "D"]


@CASES.notices("none above xmax", "bound at xmax", "no late transactions")
async def a_transaction_above_xmax_with_an_id_below_what_was_seen_comes_out(bench: Bench) -> None:
    store = await bench.holder()
    first, second = bench.begin(), bench.begin()
    assert bench.xid(first) < bench.xid(second)
    bench.add("Second", of="2", within=second)
    bench.add("First", of="1", within=first)
    first.commit()  # so xmax is the id of `second`, which stands in no list
    assert await publish(store) == ["First"]
    second.commit()
    assert await publish(store) == ["Second"]


@CASES.notices("transactions first")
async def a_transaction_that_began_first_and_changed_an_aggregate_last_comes_last(bench: Bench) -> None:
    store = await bench.holder()
    early = bench.begin()
    bench.xid(early)
    bench.add("One")
    bench.add("Two", within=early)
    early.commit()
    assert await publish(store, 1) == ["One", "Two"]


@CASES.notices("time first")
async def what_stands_in_created_at_orders_nothing(bench: Bench) -> None:
    store = await bench.holder()
    for name, created in (("One", "2030-01-01"), ("Two", "2020-01-01"), ("Three", "2025-01-01")):
        bench.sql(
            "INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload, created_at)"
            " VALUES ('order', '1', %s, 'orders', '{}', %s)",
            [name, created],
        )
    assert await publish(store, 1) == ["One", "Two", "Three"]


@CASES.notices("no late transactions")
async def savepoints_that_are_kept_come_out_and_those_rolled_back_do_not(bench: Bench) -> None:
    store = await bench.holder()
    late = bench.begin()
    with late.transaction():
        with late.transaction():  # the first write is in a subtransaction: its id is above that of the whole
            bench.add("Kept", within=late)
            with late.transaction(force_rollback=True):
                bench.add("Undone", within=late)
            with late.transaction():
                bench.add("Deep", within=late)
        bench.add("Other", of="2")
        assert await publish(store) == ["Other"]
        with late.transaction(force_rollback=True):
            bench.add("Undone too", within=late)
        bench.add("Last", within=late)
    late.commit()
    assert await publish(store) == ["Kept", "Deep", "Last"]


@CASES.notices("no late transactions")
async def a_prepared_transaction_comes_out_once_it_is_committed(bench: Bench) -> None:
    store = await bench.holder()
    for name in ("kept", "undone"):
        prepared = bench.begin()
        prepared.tpc_begin(prepared.xid(1, name, bench.one("SELECT current_database()")))
        bench.add(name, of=name, within=prepared)
        prepared.tpc_prepare()
        prepared.close()
    bench.add("Between", of="3")
    assert await publish(store) == ["Between"]
    finishing = bench.begin()
    for xid in finishing.tpc_recover():
        if xid.bqual == bench.one("SELECT current_database()"):
            (finishing.tpc_commit if xid.gtrid == "kept" else finishing.tpc_rollback)(xid)
    assert await publish(store) == ["kept"]


@CASES.notices("behind the oldest", "no late transactions")
async def others_flow_while_a_transaction_stays_open_through_everything(bench: Bench) -> None:
    store = await bench.holder("r0")
    long = bench.begin()
    bench.add("Long 1", of="long", within=long)
    for turn in range(5):
        bench.add(f"A{turn}", f"B{turn}", of=str(turn))
        assert await publish(store) == [f"A{turn}", f"B{turn}"]
        store = await bench.takeover(store, f"r{turn + 1}")
    bench.add("Long 2", of="long", within=long)
    long.commit()
    assert await publish(store) == ["Long 1", "Long 2"]
    assert await publish(store) == []


@CASES.notices("no late transactions")
async def a_transaction_that_was_open_at_a_takeover_in_mid_batch_comes_out(bench: Bench) -> None:
    store = await bench.holder("first")
    long = bench.begin()
    bench.add("Late", of="late", within=long)
    bench.add("A", "B", "C", of="1")
    [entry] = await store.entries(1)
    await settle(store, [entry])
    store = await bench.takeover(store, "second")
    long.commit()
    assert await publish(store) == ["B", "C", "Late"]


@CASES.notices("late above the log's end", "no late transactions")
async def a_late_transaction_and_the_main_part_come_merged_by_id_in_small_chunks(bench: Bench) -> None:
    store = await bench.holder()
    one, two = bench.begin(), bench.begin()
    bench.add("1", of="a", within=one)
    bench.add("2", of="b", within=two)
    bench.add("3", of="c")
    assert await publish(store) == ["3"]
    bench.add("4", of="a", within=one)
    bench.add("5", of="d")
    bench.add("6", of="b", within=two)
    bench.add("7", of="e")
    one.commit()
    two.commit()
    entries: list[Entry] = []
    while found := await store.entries(2):
        entries += found
    assert names(entries) == ["1", "2", "4", "5", "6", "7"]


@CASES.notices("beyond the snapshot")
async def what_commits_while_a_batch_is_read_waits_for_the_next(bench: Bench) -> None:
    store = await bench.holder()
    bench.add("A", "B", "C")
    entries = list(await store.entries(2))
    bench.add("D", "E")
    while found := await store.entries(2):
        entries += found
    assert names(entries) == ["A", "B", "C", "D", "E"]  # each once


@CASES.notices("transactions first")
async def several_aggregates_in_one_transaction_keep_their_order_with_others_in_between(bench: Bench) -> None:
    store = await bench.holder()
    one, two = bench.begin(), bench.begin()
    bench.xid(one)
    for transaction, name, of in ((two, "a1", "a"), (one, "b1", "b"), (two, "c1", "c"), (one, "d1", "d")):
        bench.add(name, of=of, within=transaction)
    two.commit()
    bench.add("a2", of="a", within=one)
    one.commit()
    assert await publish(store, 2) == ["a1", "b1", "c1", "d1", "a2"]


@CASES.notices("no late transactions")
async def copied_rows_and_rows_inserted_together_come_out_in_order(bench: Bench) -> None:
    store = await bench.holder()
    late = bench.begin()
    with late.cursor().copy(
        "COPY pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload) FROM STDIN"
    ) as copy:
        for index in range(300):
            copy.write_row(("order", str(index % 7), f"C{index}", "orders", "{}"))
    bench.sql(
        "INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload)"
        " SELECT 'order', (i %% 7)::text, 'I' || i, 'orders', '{}' FROM generate_series(0, 299) i", []
    )  # fmt: skip
    assert await publish(store) == [f"I{index}" for index in range(300)]
    late.commit()
    assert await publish(store, 70) == [f"C{index}" for index in range(300)]


@CASES.notices("numbers without a lock")
async def an_event_added_before_its_row_lock_is_in_order_if_it_is_numbered(bench: Bench) -> None:
    store = await bench.holder()
    bench.sql("CREATE TABLE stock AS SELECT 1 AS id, 'new' AS state")
    first, second = bench.begin(), bench.begin()
    _add_numbered(first, "First")
    waiting = threading.Thread(target=_change, args=(second, "Second"))
    waiting.start()
    first.execute("UPDATE stock SET state = 'first'")
    first.commit()
    waiting.join()
    assert bench.one("SELECT state FROM stock") == "Second"
    entries = await store.entries(10)
    assert [(entry.event_type, entry.number) for entry in entries] == [("First", 1), ("Second", 2)]


def _add_numbered(transaction: Transaction, name: str) -> None:
    Outbox().add(transaction, Event(name, {}, aggregate=("order", "1"), topic="orders", numbered=True))


def _change(transaction: Transaction, name: str) -> None:
    _add_numbered(transaction, name)  # waits here, before the row's id is drawn, until the other one has committed
    transaction.execute("UPDATE stock SET state = %s", [name])
    transaction.commit()


@CASES.notices("transactions first")
async def an_event_added_before_its_row_lock_and_not_numbered_comes_in_the_order_of_the_adds(bench: Bench) -> None:
    store = await bench.holder()
    bench.sql("CREATE TABLE stock AS SELECT 1 AS id, 'new' AS state")
    first, second = bench.begin(), bench.begin()
    bench.xid(first)
    bench.add("Changed second", within=second)
    bench.add("Changed first", within=first)
    for transaction in (first, second):
        transaction.execute("UPDATE stock SET state = 'changed'")
        transaction.commit()
    assert await publish(store, 1) == ["Changed second", "Changed first"]


@VERSIONS
@pytest.mark.parametrize("story", CASES.sound)
async def test_nothing_is_lost_or_out_of_order(story: Story, bench: Bench) -> None:
    await story(bench)


@pytest.mark.parametrize(("story", "mutant"), CASES.broken)
async def test_the_rule_is_missed(story: Story, mutant: Any, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.break_rule(mutant, monkeypatch)
    with pytest.raises(AssertionError):
        await story(bench)


def test_every_mutant_is_noticed_somewhere() -> None:
    assert not CASES.unnoticed
