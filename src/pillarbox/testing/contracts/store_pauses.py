"""The rules of paused topics: others flow, the paused one keeps its place, nothing is lost whenever a relay dies."""

from pillarbox.core.retry import PUBLISHED
from pillarbox.core.window import DETOURED
from pillarbox.ports import Pause, Store
from pillarbox.testing.contracts.store_bench import (
    StoreBench,
    event,
    holder,
    names,
    publish_all,
    read,
    record,
    settle,
    settle_each,
    soon,
)
from pillarbox.testing.contracts.store_reading import NEIGHBOUR


async def pause(store: Store, topic: str = "orders") -> None:
    await store.pause(topic, "ada", "the shop moves")


class PauseRules:
    """Detours, seen from outside."""

    async def test_a_paused_topic_does_not_come_out_and_others_do(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("B", topic="invoices"))
        assert names(await read(store)) == ["B"]

    async def test_a_pause_from_before_the_first_relay_holds(self, bench: StoreBench) -> None:
        admin = await bench.store("admin")
        await pause(admin)
        await bench.add(event("A"), event("B", topic="invoices"))
        assert await publish_all(await holder(bench)) == ["B"]

    async def test_pausing_again_changes_nothing_and_gives_the_first_pause(self, bench: StoreBench) -> None:
        store = await bench.store("admin")
        first = Pause("orders", bench.clock.now(), "ada", "the shop moves")
        assert await store.pause("orders", "ada", "the shop moves") is None
        bench.clock.advance(60)
        assert await store.pause("orders", "bob", "for fun") == first
        assert (await store.stats()).pauses == [first]

    async def test_a_topic_goes_on_from_where_it_was_paused(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        assert await publish_all(store) == ["A"]
        await pause(store)
        await bench.add(event("B"), event("C"))
        assert await publish_all(store) == []
        assert await store.resume("orders")
        assert await publish_all(store) == ["B", "C"]

    async def test_a_resumed_topic_comes_in_order_with_what_is_new(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("X", topic="invoices"))
        await publish_all(store)
        await bench.add(event("B"))
        await store.resume("orders")
        await bench.add(event("C"))
        assert await publish_all(store) == ["A", "B", "C"]
        await bench.add(event("D"))
        assert await publish_all(store) == ["D"]

    async def test_a_pause_survives_a_crash(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("X", topic="invoices"))
        assert await publish_all(store) == ["X"]
        await bench.crash(store)
        store = await holder(bench, "b")
        assert await publish_all(store) == []
        await store.resume("orders")
        assert await publish_all(store) == ["A"]

    async def test_what_was_resumed_but_not_settled_comes_out_again_after_a_crash(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("X", topic="invoices"), event("B"), event("C"))
        await publish_all(store)
        await store.resume("orders")
        entries = await read(store)
        assert names(entries) == ["A", "B", "C"]
        await settle(store, entries[:1])
        await bench.crash(store)
        assert await publish_all(await holder(bench, "b")) == ["B", "C"]

    async def test_what_a_pause_found_given_out_is_settled_as_usual(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("X", topic="invoices"), event("B"))
        entries = await store.entries(2)
        assert names(entries) == ["A", "X"]
        await pause(store)
        assert await read(store) == []
        await settle(store, entries)
        assert await publish_all(store) == []
        await bench.crash(store)
        store = await holder(bench, "b")
        await store.resume("orders")
        assert await publish_all(store) == ["B"]

    async def test_a_topic_can_be_paused_again_while_it_catches_up(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("B"), event("X", topic="invoices"))
        await publish_all(store)
        await store.resume("orders")
        await settle(store, await store.entries(1))
        await pause(store)
        await bench.add(event("C"), event("Y", topic="invoices"))
        assert await publish_all(store) == ["Y"]
        await store.resume("orders")
        assert await publish_all(store) == ["B", "C"]

    async def test_after_it_has_caught_up_a_crash_repeats_nothing_of_it(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("X", topic="invoices"))
        await publish_all(store)
        await store.resume("orders")
        assert await publish_all(store) == ["A"]
        await bench.crash(store)
        assert await publish_all(await holder(bench, "b")) == []

    async def test_it_catches_up_while_others_are_in_flight(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("X", topic="invoices"))
        flying = await read(store)
        assert names(flying) == ["X"]
        await store.resume("orders")
        early = await read(store)  # a store may wait for what is in flight, or not
        await settle(store, flying)
        await settle(store, early)
        assert names(early) + await publish_all(store) == ["A"]
        await bench.crash(store)
        assert await publish_all(await holder(bench, "b")) == []

    async def test_no_room_loses_nothing_of_a_topic_that_catches_up(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("X", topic="invoices"), event("B"))
        assert await publish_all(store) == ["X"]
        await store.resume("orders")
        assert list(await store.entries(0)) == []
        assert await publish_all(store) == ["A", "B"]

    async def test_two_topics_are_paused_and_resumed_on_their_own(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store, "orders")
        await bench.add(event("A"), event("X", topic="invoices"))
        await pause(store, "invoices")
        await bench.add(event("B"), event("Y", topic="invoices"), event("Z", topic="letters"))
        assert sorted(await publish_all(store)) == ["Z"]
        await store.resume("invoices")
        assert await publish_all(store) == ["X", "Y"]
        await store.resume("orders")
        assert await publish_all(store) == ["A", "B"]

    async def test_parked_entries_of_a_paused_topic_stay(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"), event("N", None))
        await settle(store, await read(store), soon(bench))
        await pause(store)
        bench.clock.advance(60)
        assert await read(store) == []
        await store.resume("orders")
        assert sorted(names(await read(store))) == ["A", "N"]

    async def test_a_paused_event_is_pending(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("X", topic="invoices"))
        await publish_all(store)
        assert (await record(store, "A")).status == "pending"
        assert (await record(store, "X")).status == "published"
        stats = await store.stats()
        assert (stats.pending, stats.pending_by_topic) == (1, {"orders": 1})

    async def test_an_event_published_after_a_pause_has_that_time(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await pause(store)
        await bench.add(event("A"), event("X", topic="invoices"))
        await publish_all(store)
        published_x = bench.clock.now()
        bench.clock.advance(3600)
        await store.resume("orders")
        await publish_all(store)
        assert (await record(store, "A")).published_at == bench.clock.now()
        assert (await record(store, "X")).published_at == published_x

    async def test_people_see_who_paused_a_topic_and_why(self, bench: StoreBench) -> None:
        store = await bench.store()
        await pause(store)
        [seen] = (await store.stats()).pauses
        assert (seen.topic, seen.who, seen.why, seen.since) == ("orders", "ada", "the shop moves", bench.clock.now())
        await store.resume("orders")
        assert list((await store.stats()).pauses) == []

    async def test_resuming_a_topic_that_flows_says_so(self, bench: StoreBench) -> None:
        store = await bench.store()
        assert not await store.resume("orders")

    async def test_who_takes_lanes_hears_which_topics_others_had_to_hold(self, bench: StoreBench) -> None:
        first = await holder(bench, "a")
        await bench.add(event("A"), event("X", "2", topic="invoices"), event("P", "3", topic="prices"))
        entries = await read(first)
        first.hold(frozenset({"orders", "prices"}))
        await settle_each(first, entries, A=DETOURED, X=PUBLISHED, P=DETOURED)
        await read(first)
        await pause(first, "prices")
        await first.release()
        second = await bench.store("b")
        assert (await second.take()).behind == {"orders"}
        assert (await second.take()).behind == frozenset(), "only what was just taken"
        await publish_all(second)
        await second.release()
        assert (await (await bench.store("c")).take()).behind == frozenset()

    async def test_a_held_topic_is_read_around_and_keeps_its_place(self, bench: StoreBench) -> None:
        store = await holder(bench)
        store.hold(frozenset({"orders"}))
        await bench.add(event("A"), event("X", topic="invoices"), event("B"))
        assert await publish_all(store) == ["X"]
        store.hold(frozenset())
        assert await publish_all(store) == ["A", "B"]

    async def test_what_goes_back_comes_out_again_in_order(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("X", topic="invoices"), event("B"))
        entries = await read(store)
        store.hold(frozenset({"orders"}))
        await settle_each(store, entries, A=DETOURED, X=PUBLISHED, B=DETOURED)
        await bench.add(event("C"), event("Y", topic="invoices"))
        assert await publish_all(store) == ["Y"]
        store.hold(frozenset())
        assert await publish_all(store) == ["A", "B", "C"]
        await bench.add(event("D"))
        assert await publish_all(store) == ["D"]

    async def test_what_went_back_comes_out_of_the_next_relay(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("X", topic="invoices"), event("B"))
        entries = await read(store)
        store.hold(frozenset({"orders"}))
        await settle_each(store, entries, A=DETOURED, X=PUBLISHED, B=DETOURED)
        await bench.crash(store)
        assert await publish_all(await holder(bench, "b")) == ["A", "B"]

    async def test_what_goes_back_may_be_settled_once_more(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("X", topic="invoices"), event("B"))
        entries = await read(store)
        store.hold(frozenset({"orders"}))
        for _ in range(2):
            await settle_each(store, entries, A=DETOURED, X=PUBLISHED, B=DETOURED)
        store.hold(frozenset())
        assert await publish_all(store) == ["A", "B"]

    async def test_what_went_before_does_not_come_out_again(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("X", topic="invoices"))
        entries = await read(store)
        await settle(store, entries[:1])
        store.hold(frozenset({"orders"}))
        await settle_each(store, entries[1:], B=DETOURED, X=PUBLISHED)
        store.hold(frozenset())
        assert await publish_all(store) == ["B"]

    async def test_what_goes_back_twice_comes_out_again_twice(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B", NEIGHBOUR), event("X", topic="invoices"))
        entries = await read(store)
        store.hold(frozenset({"orders"}))
        await settle_each(store, entries, A=DETOURED, B=DETOURED, X=PUBLISHED)
        store.hold(frozenset())
        tried = await read(store)
        assert names(tried) == ["A", "B"]
        store.hold(frozenset({"orders"}))
        await settle_each(store, tried, A=DETOURED, B=PUBLISHED)
        assert await publish_all(store) == []
        store.hold(frozenset())
        assert [name for name in await publish_all(store) if name == "A"] == ["A"]
        await bench.crash(store)
        assert await publish_all(await holder(bench, "b")) == []

    async def test_what_went_back_twice_comes_out_of_the_next_relay(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B", NEIGHBOUR))
        for verdict in (DETOURED, PUBLISHED):
            store.hold(frozenset())
            entries = await read(store)
            assert names(entries) == ["A", "B"]
            store.hold(frozenset({"orders"}))
            await settle_each(store, entries, A=DETOURED, B=verdict)
        await bench.crash(store)
        assert "A" in await publish_all(await holder(bench, "b"))

    async def test_parked_entries_of_a_held_topic_stay(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("Free", None))
        await settle(store, await read(store), soon(bench))
        store.hold(frozenset({"orders"}))
        bench.clock.advance(6)
        assert await read(store) == []
        store.hold(frozenset())
        assert sorted(await publish_all(store)) == ["A", "Free"]

    async def test_what_has_gone_back_is_pending(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("X", topic="invoices"))
        entries = await read(store)
        store.hold(frozenset({"orders"}))
        await settle_each(store, entries, A=DETOURED, X=PUBLISHED)
        assert (await record(store, "A")).status == "pending"
        assert (await record(store, "X")).status == "published"
