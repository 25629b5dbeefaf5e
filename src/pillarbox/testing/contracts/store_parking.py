"""The rules of the parking lot: what failed, what waits behind it, what is delayed."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.retry import PUBLISHED
from pillarbox.core.window import BLOCKED, Delayed
from pillarbox.testing.contracts.store_bench import (
    DEAD,
    SKIPPED,
    StoreBench,
    due,
    event,
    holder,
    line,
    names,
    publish_all,
    read,
    record,
    settle,
    settle_each,
    soon,
)


def laden(**more: Any) -> list[Event[Any]]:
    """Make an event of JSON and one of bytes, with everything that an event can carry."""
    carried = {"headers": {"tenant": "ü"}, "occurred_at": datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), **more}
    return [
        event("Placed", "1", idempotency_key="k", **carried),
        Event("Raw", b"\x00\xff", aggregate=("order", "2"), topic="orders", content_type="application/avro", **carried),
    ]


def as_read(entries: Sequence[Entry]) -> list[Entry]:
    """Leave out which rows of the parking lot they are in: the store's own affair."""
    return [entry._replace(row=0) for entry in entries]


class ParkingRules:
    """A line stops at its failed head, and goes on in order when the head is gone."""

    async def test_a_failed_entry_comes_out_again_when_it_is_due(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench, 5))
        bench.clock.advance(5)
        [entry] = await read(store)
        assert (entry.event_type, entry.attempts, entry.parked, entry.ordered) == ("A", 1, True, True)

    async def test_a_failed_entry_does_not_come_out_before_it_is_due(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench, 5))
        bench.clock.advance(4.9)
        assert await read(store) == []

    async def test_a_parked_entry_is_not_given_out_again_until_it_is_settled(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench))
        bench.clock.advance(6)
        assert names(await read(store)) == ["A"]
        bench.clock.advance(60)
        assert await read(store) == []

    async def test_a_parked_entry_that_was_not_settled_comes_out_again_after_a_crash(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench))
        bench.clock.advance(6)
        await read(store)
        await bench.crash(store)
        assert names(await read(await holder(bench, "b"))) == ["A"]

    async def test_a_parked_entry_that_was_published_is_done(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench))
        bench.clock.advance(6)
        await settle(store, await read(store))
        bench.clock.advance(60)
        assert await read(store) == []
        assert (await record(store, "A")).status == "published"

    async def test_every_failure_is_counted_with_its_error(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        for _ in range(3):
            await settle(store, await read(store), soon(bench))
            bench.clock.advance(6)
        [entry] = await read(store)
        assert entry.attempts == 3
        assert (await record(store, "A")).last_error == "the broker said no"

    async def test_attempts_survive_a_takeover(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        for _ in range(2):
            await settle(store, await read(store), soon(bench))
            bench.clock.advance(6)
        await bench.crash(store)
        store = await holder(bench, "b")
        [entry] = await read(store)
        assert entry.attempts == 2
        await settle(store, [entry], soon(bench))
        assert (await record(store, "A")).attempts == 3

    async def test_a_parked_entry_is_as_it_was_in_the_log(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(*laden(number=7))
        entries = await read(store)
        assert len(entries) == 2
        await settle(store, entries, soon(bench))
        bench.clock.advance(6)
        assert sorted(as_read(await read(store))) == sorted(
            entry._replace(attempts=1, parked=True) for entry in entries
        )

    async def test_only_the_head_comes_out_while_it_is_retried(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("C"))
        await settle(store, await read(store), soon(bench), BLOCKED)
        bench.clock.advance(6)
        assert names(await read(store)) == ["A"]

    async def test_followers_come_out_in_order_once_the_head_is_published(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("C"))
        await settle(store, await read(store), soon(bench), BLOCKED)
        bench.clock.advance(6)
        await settle(store, await read(store))
        entries = await read(store)
        assert names(entries) == ["B", "C"]
        assert {entry.attempts for entry in entries} == {0}

    async def test_followers_stay_while_the_head_fails_again(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await settle(store, await read(store), soon(bench), BLOCKED)
        bench.clock.advance(6)
        await settle(store, await read(store), soon(bench))
        assert await read(store) == []

    async def test_a_follower_that_fails_holds_back_the_rest(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("C"), event("D"))
        await settle(store, await read(store), soon(bench), BLOCKED)
        bench.clock.advance(6)
        await settle(store, await read(store))
        await settle(store, await read(store), PUBLISHED, soon(bench), BLOCKED)
        assert await read(store) == []
        bench.clock.advance(6)
        assert await publish_all(store) == ["C", "D"]

    async def test_followers_that_were_put_back_come_out_in_order(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("C"))
        await settle(store, await read(store), soon(bench), BLOCKED)
        bench.clock.advance(6)
        await settle(store, await read(store))
        await settle(store, await read(store), soon(bench), BLOCKED)
        await bench.add(event("D"))
        await settle(store, await read(store), BLOCKED)
        bench.clock.advance(6)
        assert await publish_all(store) == ["B", "C", "D"]

    async def test_a_dead_head_holds_its_line_for_ever(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await settle(store, await read(store), DEAD, BLOCKED)
        bench.clock.advance(86_400)
        assert await read(store) == []
        assert line() in store.blocked

    async def test_a_dead_entry_that_is_skipped_holds_nobody_back(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), SKIPPED)
        assert line() not in store.blocked
        assert (await record(store, "A")).status == "dead"

    async def test_a_retried_head_that_is_skipped_frees_its_followers(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await settle(store, await read(store), soon(bench), BLOCKED)
        bench.clock.advance(6)
        await settle(store, await read(store), SKIPPED)
        assert names(await read(store)) == ["B"]

    async def test_a_line_is_blocked_while_something_of_it_is_parked(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await settle(store, await read(store), soon(bench), BLOCKED)
        assert line() in store.blocked
        bench.clock.advance(6)
        await settle(store, await read(store))
        assert line() in store.blocked, "a follower is still parked"
        await settle(store, await read(store))
        assert line() not in store.blocked

    async def test_a_failure_blocks_only_its_own_aggregate_and_topic(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"))
        await settle(store, await read(store), soon(bench))
        assert line("1") in store.blocked
        assert line("2") not in store.blocked
        assert line("1", "invoices") not in store.blocked

    async def test_an_entry_without_an_aggregate_blocks_nobody_when_it_fails(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", None), event("B", None))
        entries = await read(store)
        await settle(store, entries, soon(bench, 5), soon(bench, 1))
        assert ("orders", "", "") not in store.blocked
        bench.clock.advance(1)
        assert len(await read(store)) == 1

    async def test_the_next_relay_knows_the_blocked_lines_before_it_reads(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        await bench.crash(store)
        assert line() in (await holder(bench, "b")).blocked

    async def test_parked_entries_come_before_those_of_the_log(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"))
        await settle(store, await read(store), soon(bench))
        await bench.add(event("B", "2"))
        bench.clock.advance(6)
        assert names(await store.entries(1)) == ["A"]

    async def test_a_delayed_entry_comes_out_when_its_time_has_come(self, bench: StoreBench) -> None:
        store = await holder(bench)
        at = due(bench, 60)
        await bench.add(event("Later", available_at=at))
        entries = await read(store)
        assert entries[0].available_at == at
        await settle(store, entries, Delayed(at))
        bench.clock.advance(60)
        [entry] = await read(store)
        assert (entry.event_type, entry.parked, entry.ordered, entry.attempts) == ("Later", True, False, 0)

    async def test_a_delayed_entry_does_not_come_out_before(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("Later", available_at=due(bench, 60)))
        await settle(store, await read(store), Delayed(due(bench, 60)))
        bench.clock.advance(59)
        assert await read(store) == []
        found = await record(store, "Later")
        assert (found.status, found.next_try_at) == ("delayed", due(bench, 1))

    async def test_a_delayed_entry_is_as_it_was_in_the_log(self, bench: StoreBench) -> None:
        store = await holder(bench)
        at = due(bench, 60)
        await bench.add(*laden(available_at=at))
        entries = await read(store)
        assert len(entries) == 2
        await settle(store, entries, Delayed(at))
        bench.clock.advance(60)
        assert sorted(as_read(await read(store))) == sorted(
            entry._replace(parked=True, ordered=False) for entry in entries
        )

    async def test_a_delayed_entry_holds_nobody_back(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("Later", available_at=due(bench, 60)))
        await settle(store, await read(store), Delayed(due(bench, 60)))
        assert line() not in store.blocked

    async def test_an_entry_outside_the_order_that_goes_back_comes_out_again(self, bench: StoreBench) -> None:
        """Its topic was held while it was out: uncounted, and due at once."""
        store = await holder(bench)
        await bench.add(event("Later", available_at=due(bench, 60)), Event("Failed", {}, topic="pings"))
        await settle_each(store, await read(store), Later=Delayed(due(bench, 60)), Failed=soon(bench))
        bench.clock.advance(60)
        entries = await read(store)
        await settle(store, entries, Delayed(datetime(1970, 1, 1, tzinfo=UTC)))
        again = await read(store)
        assert sorted(names(again)) == sorted(names(entries)) == ["Failed", "Later"]
        assert {entry.event_type: entry.attempts for entry in again} == {"Later": 0, "Failed": 1}

    async def test_a_delayed_entry_that_fails_stays_outside_the_order(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("Later", available_at=due(bench, 60)))
        await settle(store, await read(store), Delayed(due(bench, 60)))
        bench.clock.advance(60)
        await settle(store, await read(store), soon(bench))
        assert line() not in store.blocked
        bench.clock.advance(6)
        [entry] = await read(store)
        assert (entry.attempts, entry.ordered) == (1, False)
