"""The rules of what an operator does: retry, drop and replay."""

from datetime import timedelta

from pillarbox.core.event import Event
from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.core.window import BLOCKED
from pillarbox.ports import Query, Retention
from pillarbox.testing.contracts.store_bench import (
    DEAD,
    SKIPPED,
    StoreBench,
    event,
    holder,
    line,
    names,
    publish_all,
    read,
    record,
    replayed,
    settle,
    settle_each,
    soon,
)


class MendingRules:
    """Retry, drop and replay."""

    async def test_a_dead_event_that_is_retried_comes_out_with_all_its_tries(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        assert await store.retry(Query(status=("dead",))) == 1
        [entry] = await read(store)
        assert (entry.event_type, entry.attempts) == ("A", 0)

    async def test_followers_follow_a_dead_event_that_is_retried(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("C"))
        await settle(store, await read(store), DEAD, BLOCKED)
        await store.retry(Query(status=("dead",)))
        entries = await read(store)
        assert names(entries) == ["A"]
        await settle(store, entries)
        assert await publish_all(store) == ["B", "C"]

    async def test_followers_stay_blocked_when_the_query_means_them_too(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await settle(store, await read(store), DEAD, BLOCKED)
        assert await store.retry(Query(aggregate=("order", "1"))) == 1
        seen = await record(store, "B")
        assert (seen.status, seen.next_try_at) == ("blocked", None)
        assert names(await read(store)) == ["A"]

    async def test_a_waiting_event_that_is_retried_need_not_wait(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench, 3600))
        assert await store.retry(Query(type="A")) == 1
        assert names(await read(store)) == ["A"]

    async def test_a_skipped_event_that_is_retried_blocks_nobody(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), SKIPPED)
        await store.retry(Query(status=("dead",)))
        [entry] = await read(store)
        assert not entry.ordered
        assert line() not in store.blocked

    async def test_only_what_the_query_says_is_retried(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"), event("B", "2"))
        await settle(store, await read(store), DEAD)
        assert await store.retry(Query(type="B")) == 1
        assert names(await read(store)) == ["B"]
        assert (await record(store, "A")).status == "dead"

    async def test_only_what_died_of_that_error_is_retried_or_dropped(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"), event("B", "2"), event("C", "3"))
        await settle(store, await read(store), Dead("the disk is full"), DEAD, Dead("no such user"))
        assert await store.retry(Query(status=("dead",), error="disk")) == 1
        assert names(await read(store)) == ["A"]
        assert await store.drop(Query(status=("dead",), error="user")) == 1
        assert [(await record(store, name)).status for name in "ABC"] == ["retrying", "dead", "dropped"]

    async def test_an_edited_event_goes_with_what_was_put_in_and_its_followers_follow(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        first, second = await read(store)
        await settle(store, [first, second], DEAD, BLOCKED)
        assert await store.edit(first.event_id, '{"name":"mended"}') == 1
        [entry] = await read(store)
        assert (entry.event_id, entry.data, entry.attempts) == (first.event_id, '{"name":"mended"}', 0)
        await settle(store, [entry])
        [entry] = await read(store)
        assert (entry.event_id, entry.data) == (second.event_id, second.data)

    async def test_what_an_edited_event_carried_before_is_kept(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B", "2"))
        await settle(store, await read(store), DEAD)
        await store.edit((await record(store, "A")).event_id, "[1]")
        for status in ("retrying", "published"):
            seen = await record(store, "A")
            assert (seen.status, seen.data, seen.original) == (status, "[1]", '{"name":"A"}')
            await publish_all(store)
        assert (await record(store, "B")).original is None
        [deed] = await store.deeds()
        assert (deed.what.split()[0], deed.count) == ("edit", 1)

    async def test_bytes_are_edited_as_bytes(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(Event("Raw", b"\x00\xff", content_type="application/avro", topic="orders"))
        await settle(store, await read(store), DEAD)
        assert await store.edit((await record(store, "Raw")).event_id, b"\xfe") == 1
        seen = await record(store, "Raw")
        assert (seen.data, seen.original, seen.content_type) == (b"\xfe", b"\x00\xff", "application/avro")
        [entry] = await read(store)
        assert entry.data == b"\xfe"

    async def test_only_a_dead_event_is_edited(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("P", "1"), event("R", "2"), event("D", "3"), event("B", "3"))
        await settle_each(store, await read(store), P=PUBLISHED, R=soon(bench), D=DEAD, B=BLOCKED)
        await bench.add(event("N", "4"))
        for name in "PRBN":
            seen = await record(store, name)
            assert await store.edit(seen.event_id, "[1]") == 0
            assert await record(store, name) == seen
        assert await store.edit("00000000-0000-7000-8000-000000000000", "[1]") == 0
        assert (await record(store, "D")).status == "dead"

    async def test_a_replay_of_an_edited_event_is_of_what_was_published(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        await store.edit((await record(store, "A")).event_id, "[1]")
        await publish_all(store)
        assert await replayed(store, Query()) == 1
        [entry] = await read(store)
        assert entry.data == "[1]"

    async def test_the_archive_has_an_edited_event_as_it_was_published(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        await store.edit((await record(store, "A")).event_id, "[1]")
        await publish_all(store)
        bench.clock.advance(3600)
        for _ in range(5):  # the log, then what is left of it
            await store.prune(Retention(published=timedelta(minutes=1), archive=timedelta(days=1)))
        seen = await record(store, "A")
        assert (seen.status, seen.data) == ("published", "[1]")
        assert await replayed(store, Query()) == 1
        [entry] = await read(store)
        assert entry.data == "[1]"

    async def test_a_dropped_event_lets_its_followers_go(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await settle(store, await read(store), DEAD, BLOCKED)
        assert await store.drop(Query(status=("dead",))) == 1
        assert await publish_all(store) == ["B"]

    async def test_a_dropped_event_stays_visible_as_dropped(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        await store.drop(Query(type="A"))
        seen = await record(store, "A")
        assert (seen.status, seen.published_at) == ("dropped", None)
        await read(store)
        assert line() not in store.blocked

    async def test_only_dead_events_are_dropped_unless_named(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench))
        assert await store.drop(Query(type="A")) == 0
        assert await store.drop(Query(ids=((await record(store, "A")).event_id,))) == 1
        bench.clock.advance(60)
        assert await read(store) == []

    async def test_a_replayed_event_comes_out_again_outside_the_order(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        [first] = await read(store)
        await settle(store, [first])
        assert await replayed(store, Query(type="A")) == 1
        [entry] = await read(store)
        assert (entry.event_id, entry.data, entry.ordered) == (first.event_id, first.data, False)
        assert line() not in store.blocked

    async def test_a_replayed_event_is_published_before_and_after(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        at = bench.clock.now()
        bench.clock.advance(60)
        await replayed(store, Query(type="A"))
        seen = await record(store, "A")
        assert (seen.status, seen.published_at) == ("published", at)
        await publish_all(store)
        assert (await record(store, "A")).status == "published"

    async def test_a_replay_that_failed_for_good_can_be_dropped(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        at = bench.clock.now()
        bench.clock.advance(60)
        await replayed(store, Query())
        await settle(store, await read(store), DEAD)
        assert (await record(store, "A")).status == "dead"
        assert await store.drop(Query(status=("dead",))) == 1
        seen = await record(store, "A")
        assert (seen.status, seen.published_at) == ("published", at)

    async def test_events_are_replayed_in_the_order_of_the_log(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(*(event(name) for name in "ABC"))
        await publish_all(store)
        assert await replayed(store, Query()) == 3
        assert await publish_all(store) == ["A", "B", "C"]

    async def test_an_event_replayed_again_carries_the_id_of_the_replay(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        assert await replayed(store, Query(type="A"), again=True) == 1
        [entry] = await read(store)
        assert entry.replay == "replay-1"
        await settle(store, [entry], soon(bench))
        bench.clock.advance(60)
        [entry] = await read(store)
        assert (entry.attempts, entry.replay) == (1, "replay-1")

    async def test_an_event_that_is_only_replayed_carries_no_id_of_a_replay(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        [first] = await read(store)
        await settle(store, [first])
        await replayed(store, Query(), again=True)
        await publish_all(store)
        await replayed(store, Query(), "replay-2")
        [entry] = await read(store)
        assert (first.replay, entry.replay) == (None, "")

    async def test_a_replay_may_go_to_another_topic(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        before = await record(store, "A")
        assert await replayed(store, Query(), to="elsewhere") == 1
        [entry] = await read(store)
        assert (entry.event_id, entry.topic, entry.ordered) == (before.event_id, "elsewhere", False)
        await settle(store, [entry])
        assert await record(store, "A") == before

    async def test_a_replay_comes_out_at_the_rate_asked_for(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(*(event(name) for name in "ABC"))
        await publish_all(store)
        assert await replayed(store, Query(), rate=2) == 3
        for name in "ABC":
            assert await publish_all(store) == [name]
            bench.clock.advance(0.5)

    async def test_only_published_events_are_replayed(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        await bench.add(event("B"))
        assert await replayed(store, Query()) == 0

    async def test_every_deed_is_in_the_audit(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("P", "1"), event("D", "2"), event("E", "3"))
        await settle(store, await read(store), PUBLISHED, DEAD)
        await store.pause("invoices", "ada", "the shop moves")
        began = bench.clock.now()
        bench.clock.advance(60)
        await replayed(store, Query(type="P"))
        await store.retry(Query(status=("dead",)))
        await store.drop(Query(type="X"))
        await store.resume("invoices")
        deeds = await store.deeds()
        assert [(deed.what.split()[0], deed.count) for deed in deeds] == [
            ("resume", 1),
            ("drop", 0),
            ("retry", 2),
            ("replay", 1),
            ("pause", 1),
        ]
        assert [deed.at for deed in deeds] == [*[bench.clock.now()] * 4, began]
        assert (deeds[-1].who, all(deed.who for deed in deeds)) == ("ada", True)
        assert await store.deeds(limit=2) == deeds[:2]
        assert await store.deeds(since=bench.clock.now()) == deeds[:4]

    async def test_looking_and_relaying_are_not_in_the_audit(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await store.pause("invoices", "ada", "the shop moves")
        before = await store.deeds()
        await bench.add(event("A"), event("B", "2"))
        await settle(store, await read(store), DEAD, PUBLISHED)
        await store.pause("invoices", "bob", "for fun")
        await store.find(Query())
        await store.group_dead(Query())
        assert await store.deeds() == before
