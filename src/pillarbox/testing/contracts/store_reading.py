"""The rules of reading and settling the log."""

import asyncio
from datetime import UTC, datetime
from uuid import UUID

from pillarbox.core.event import Event
from pillarbox.testing.contracts.rules import needs
from pillarbox.testing.contracts.store_bench import (
    StoreBench,
    event,
    holder,
    names,
    publish_all,
    read,
    record,
    settle,
    soon,
)

NEIGHBOUR = "26"
"""An aggregate in the lane of aggregate 1: a cursor of each lane would miss what commits late there."""


class ReadingRules:
    """Only what is committed, in order, once, and again after a crash until it is settled."""

    async def test_an_entry_has_everything_that_was_added(self, bench: StoreBench) -> None:
        store = await holder(bench)
        id, at = UUID("018f0000-0000-7000-8000-000000000001"), datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        await bench.add(
            Event(
                "Placed",
                {"total": "42 €"},
                aggregate=("order", "7"),
                id=id,
                topic="orders",
                headers={"tenant": "ü"},
                idempotency_key="k",
                occurred_at=at,
                number=3,
            )
        )
        [entry] = await read(store)
        assert entry.event_id == str(id)
        assert (entry.aggregate_type, entry.aggregate_id, entry.event_type, entry.topic) == (
            "order",
            "7",
            "Placed",
            "orders",
        )
        assert entry.data == '{"total":"42 €"}'
        assert entry.headers == '{"tenant": "ü"}'
        assert (entry.content_type, entry.idempotency_key, entry.number) == ("application/json", "k", 3)
        assert (entry.occurred_at, entry.available_at) == (at, None)
        assert (entry.attempts, entry.parked, entry.ordered) == (0, False, True)

    async def test_bytes_come_out_as_bytes(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(Event("Raw", b"\x00\xff", content_type="application/avro", topic="orders"))
        [entry] = await read(store)
        assert entry.data == b"\x00\xff"
        assert entry.content_type == "application/avro"

    async def test_what_was_rolled_back_never_comes_out(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("Undone"), commit=False)
        await bench.add(event("Done"))
        assert names(await read(store)) == ["Done"]

    async def test_an_aggregate_comes_out_in_the_order_of_its_commits(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await bench.add(event("C"))
        assert names(await read(store)) == ["A", "B", "C"]

    async def test_at_most_as_many_come_out_as_there_is_room(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(*(event(f"E{n}") for n in range(5)))
        assert names(await store.entries(2)) == ["E0", "E1"]
        assert names(await store.entries(2)) == ["E2", "E3"]

    async def test_no_room_gives_nothing_and_loses_nothing(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("Parked", "1"), event("Free", None))
        await settle(store, await read(store), soon(bench))
        await bench.add(event("New", "2"))
        bench.clock.advance(6)
        assert list(await store.entries(0)) == []
        assert sorted(await publish_all(store)) == ["Free", "New", "Parked"]

    async def test_what_was_given_out_is_not_given_out_again(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        assert names(await read(store)) == ["A"]
        await bench.add(event("B"))
        assert names(await read(store)) == ["B"]

    async def test_what_was_not_settled_comes_out_again_after_a_crash(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await read(store)
        await bench.crash(store)
        assert names(await read(await holder(bench, "b"))) == ["A", "B"]

    async def test_what_was_settled_does_not_come_out_again_after_a_crash(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await settle(store, await read(store))
        await bench.crash(store)
        assert await read(await holder(bench, "b")) == []

    async def test_the_position_moves_only_over_what_is_settled(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("C"))
        entries = await read(store)
        await settle(store, entries[:1])
        await bench.crash(store)
        assert names(await read(await holder(bench, "b"))) == ["B", "C"]

    async def test_what_is_settled_later_moves_the_position_on(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("C"))
        entries = await read(store)
        await settle(store, entries[:1])
        await settle(store, entries[1:2])
        await bench.crash(store)
        assert names(await read(await holder(bench, "b"))) == ["C"]

    async def test_settling_twice_parks_once(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        entries = await read(store)
        await settle(store, entries, soon(bench))
        await settle(store, entries, soon(bench))
        assert (await store.stats()).retrying == 1
        assert (await record(store, "A")).attempts == 1

    async def test_settling_a_retried_entry_twice_counts_one_attempt(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench))
        bench.clock.advance(6)
        entries = await read(store)
        await settle(store, entries, soon(bench))
        await settle(store, entries, soon(bench))
        assert (await record(store, "A")).attempts == 2

    async def test_after_settling_twice_the_next_ones_follow(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("C"))
        entries = await read(store)
        await settle(store, entries[:1])
        await settle(store, entries[:1])
        await settle(store, entries[1:2])
        await bench.crash(store)
        assert names(await read(await holder(bench, "b"))) == ["C"]

    async def test_settling_nothing_changes_nothing(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await bench.add(event("B"), event("C", "2"))
        await read(store)
        seen = await store.stats()
        bench.clock.advance(1)
        await store.settle([])
        assert await store.stats() == seen
        await bench.crash(store)
        assert sorted(names(await read(await holder(bench, "b")))) == ["B", "C"]

    async def test_waiting_ends_when_its_time_is_up(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await read(store)
        await asyncio.wait_for(store.wait(0.01), 10)

    @needs("late_commits")
    async def test_a_transaction_that_commits_late_is_not_missed(self, bench: StoreBench) -> None:
        store = await holder(bench)
        commit = await bench.begin(event("Late", "1"))
        await bench.add(event("Early", NEIGHBOUR))
        assert await publish_all(store) == ["Early"]
        await commit()
        assert await publish_all(store) == ["Late"]

    @needs("late_commits")
    async def test_a_late_commit_is_not_missed_by_the_next_relay(self, bench: StoreBench) -> None:
        store = await holder(bench)
        commit = await bench.begin(event("Late", "1"))
        await bench.add(event("Early", NEIGHBOUR))
        assert await publish_all(store) == ["Early"]
        await bench.crash(store)
        await commit()
        assert await publish_all(await holder(bench, "b")) == ["Late"]

    @needs("late_commits")
    async def test_an_open_transaction_does_not_stall_others(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.begin(event("Open", "1"))
        for n in range(3):
            await bench.add(event(f"E{n}", "2"))
            assert await publish_all(store) == [f"E{n}"]
