"""The rules of what an operator sees and does."""

from datetime import timedelta

from pillarbox.core.retry import PUBLISHED
from pillarbox.core.window import BLOCKED, Delayed, Settled
from pillarbox.ports import Query, Retention, Store
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
    soon,
)

WEEK = timedelta(days=7)


async def found(store: Store, query: Query) -> list[str]:
    """Find events; list them by their types."""
    return [one.type for one in await store.find(query)]


async def prune(store: Store, retention: Retention) -> None:
    """Prune until there is nothing left to do."""
    for _ in range(100):
        if not await store.prune(retention):
            return
    raise AssertionError("prune never came to an end")


class SeeingRules:
    """Stats and find."""

    async def test_what_was_added_is_pending(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("A"), event("B", topic="invoices"))
        stats = await store.stats()
        assert (stats.pending, stats.pending_exact) == (2, True)
        assert stats.pending_by_topic == {"orders": 1, "invoices": 1}
        assert stats.oldest_pending_at == (await record(store, "A")).created_at
        assert (await record(store, "A")).status == "pending"

    async def test_what_was_given_out_is_pending_until_it_is_settled(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await read(store)
        assert (await store.stats()).pending == 1

    async def test_what_was_settled_is_published_with_its_time(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        published = bench.clock.now()
        bench.clock.advance(60)
        await bench.add(event("B"))
        await publish_all(store)
        assert (await record(store, "A")).published_at == published
        assert (await record(store, "B")).published_at == bench.clock.now()
        stats = await store.stats()
        assert (stats.pending, stats.oldest_pending_at, stats.last_published_at) == (0, None, bench.clock.now())

    async def test_what_is_parked_is_counted_by_its_state(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("R", "1"), event("D", "2"), event("B", "2"), event("L", "3"))
        entries = await read(store)
        verdicts: dict[str, Settled] = {"R": soon(bench), "D": DEAD, "B": BLOCKED, "L": Delayed(due(bench, 60))}
        await settle(store, entries, *(verdicts[entry.event_type] for entry in entries))
        stats = await store.stats()
        assert (stats.retrying, stats.dead, stats.blocked, stats.delayed, stats.pending) == (1, 1, 1, 1, 0)

    async def test_people_see_the_heads_of_blocked_lines(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("D"), event("B"))
        await settle(store, await read(store), DEAD, BLOCKED)
        [head] = (await store.stats()).heads
        assert (head.type, head.status, head.last_error) == ("D", "dead", "refused for good")

    async def test_a_blocked_event_names_the_head_of_its_line(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("D"), event("B"))
        await settle(store, await read(store), DEAD, BLOCKED)
        seen = await record(store, "B")
        assert (seen.status, seen.blocked_by) == ("blocked", (await record(store, "D")).event_id)

    async def test_a_retrying_event_shows_when_it_is_tried_again(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench, 5))
        seen = await record(store, "A")
        assert (seen.status, seen.attempts, seen.next_try_at) == ("retrying", 1, due(bench, 5))

    async def test_a_record_has_everything_that_was_added(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("A", "7", headers={"tenant": "x"}, idempotency_key="k", number=3))
        seen = await record(store, "A")
        assert (seen.type, seen.topic, seen.aggregate) == ("A", "orders", ("order", "7"))
        assert (seen.headers, seen.idempotency_key, seen.number) == ({"tenant": "x"}, "k", 3)
        assert (seen.data, seen.content_type) == ('{"name":"A"}', "application/json")

    async def test_events_are_found_by_what_they_are(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("A", "1"), event("B", "2"), event("C", "2", topic="invoices"))
        id = (await record(store, "B")).event_id
        assert await found(store, Query(ids=(id,))) == ["B"]
        assert await found(store, Query(type="A")) == ["A"]
        assert await found(store, Query(topic="invoices")) == ["C"]
        assert await found(store, Query(aggregate=("order", "2"))) == ["C", "B"]

    async def test_events_are_found_by_their_status(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("P", "1"), event("D", "2"), event("B", "2"))
        entries = await read(store)
        verdicts: dict[str, Settled] = {"P": PUBLISHED, "D": DEAD, "B": BLOCKED}
        await settle(store, entries, *(verdicts[entry.event_type] for entry in entries))
        await bench.add(event("N"))
        assert await found(store, Query(status=("pending",))) == ["N"]
        assert await found(store, Query(status=("published",))) == ["P"]
        assert await found(store, Query(status=("dead",))) == ["D"]
        assert await found(store, Query(status=("dead", "blocked"), newest_first=False)) == ["D", "B"]

    async def test_events_are_found_by_their_time(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("A"))
        at = (await record(store, "A")).created_at
        assert await found(store, Query(since=at)) == ["A"]
        assert await found(store, Query(since=at + timedelta(seconds=1))) == []
        assert await found(store, Query(until=at)) == []
        assert await found(store, Query(until=at + timedelta(seconds=1))) == ["A"]

    async def test_events_are_listed_in_the_order_asked_for(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("A"), event("B"), event("C"))
        assert await found(store, Query(limit=2)) == ["C", "B"]
        assert await found(store, Query(limit=2, newest_first=False)) == ["A", "B"]
        after = (await record(store, "A")).position
        assert await found(store, Query(after=after, newest_first=False)) == ["B", "C"]


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
        assert await store.replay(Query(type="A")) == 1
        [entry] = await read(store)
        assert (entry.event_id, entry.data, entry.ordered) == (first.event_id, first.data, False)
        assert line() not in store.blocked

    async def test_a_replayed_event_is_published_before_and_after(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        at = bench.clock.now()
        bench.clock.advance(60)
        await store.replay(Query(type="A"))
        seen = await record(store, "A")
        assert (seen.status, seen.published_at) == ("published", at)
        await publish_all(store)
        assert (await record(store, "A")).status == "published"

    async def test_events_are_replayed_in_the_order_of_the_log(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(*(event(name) for name in "ABC"))
        await publish_all(store)
        assert await store.replay(Query()) == 3
        assert await publish_all(store) == ["A", "B", "C"]

    async def test_only_published_events_are_replayed(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        await bench.add(event("B"))
        assert await store.replay(Query()) == 0


class PruneRules:
    """Retention: only what is settled, and by when it was settled."""

    async def test_what_was_published_long_ago_is_deleted(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        bench.clock.advance(WEEK + timedelta(seconds=1))
        await prune(store, Retention(published=WEEK))
        assert await found(store, Query()) == []

    async def test_what_was_published_lately_is_kept(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        bench.clock.advance(WEEK - timedelta(seconds=1))
        await prune(store, Retention(published=WEEK))
        assert await found(store, Query()) == ["A"]

    async def test_the_age_is_that_of_the_publishing_not_of_the_event(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        bench.clock.advance(4 * WEEK)
        await publish_all(store)
        await prune(store, Retention(published=WEEK))
        assert await found(store, Query()) == ["A"]

    async def test_with_no_retention_it_is_deleted_at_once(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await prune(store, Retention(published=timedelta(0)))
        assert await found(store, Query()) == []

    async def test_without_a_limit_everything_is_kept(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        bench.clock.advance(100 * WEEK)
        await prune(store, Retention(published=None))
        assert await found(store, Query()) == ["A"]

    async def test_what_is_pending_is_never_deleted(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await bench.add(event("B"))
        bench.clock.advance(4 * WEEK)
        await prune(store, Retention(published=timedelta(0)))
        assert await found(store, Query()) == ["B"]
        assert await publish_all(store) == ["B"]

    async def test_what_a_pause_holds_is_never_deleted(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await store.pause("orders", "ada", "the shop moves")
        await bench.add(event("A"), event("X", topic="invoices"))
        await publish_all(store)
        bench.clock.advance(4 * WEEK)
        await prune(store, Retention(published=timedelta(0)))
        await store.resume("orders")
        assert await publish_all(store) == ["A"]

    async def test_what_is_parked_is_never_deleted(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("D"), event("B"))
        await settle(store, await read(store), DEAD, BLOCKED)
        bench.clock.advance(4 * WEEK)
        await prune(store, Retention(published=timedelta(0)))
        assert sorted(await found(store, Query())) == ["B", "D"]
        await store.retry(Query(type="D"))
        assert await publish_all(store) == ["D", "B"]

    async def test_pruning_moves_no_position(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"))
        await publish_all(store)
        bench.clock.advance(4 * WEEK)
        await prune(store, Retention(published=timedelta(0)))
        await bench.crash(store)
        store = await holder(bench, "b")
        assert await read(store) == []
        await bench.add(event("C"))
        assert await publish_all(store) == ["C"]

    async def test_what_is_archived_can_be_found(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        at = bench.clock.now()
        bench.clock.advance(60)
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        seen = await record(store, "A")
        assert (seen.status, seen.published_at, seen.data) == ("published", at, '{"name":"A"}')

    async def test_what_is_archived_can_be_replayed(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        assert await store.replay(Query()) == 1
        assert await publish_all(store) == ["A"]

    async def test_the_archive_ends_too(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        bench.clock.advance(WEEK + timedelta(seconds=1))
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        assert await found(store, Query()) == []
