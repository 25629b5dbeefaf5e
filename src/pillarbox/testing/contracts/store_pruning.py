"""The rules of retention."""

from datetime import timedelta

from pillarbox.core.window import BLOCKED
from pillarbox.ports import Query, Retention, Store
from pillarbox.testing.contracts.store_bench import (
    DEAD,
    StoreBench,
    due,
    event,
    found,
    holder,
    publish_all,
    read,
    record,
    replayed,
    settle,
    settle_each,
    soon,
)

WEEK = timedelta(days=7)


async def prune(store: Store, retention: Retention) -> None:
    """Prune until there is nothing left to do."""
    for _ in range(100):
        if not await store.prune(retention):
            return
    raise AssertionError("prune never came to an end")


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

    async def test_one_that_was_parked_before_it_was_published_is_deleted(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("Free", None))
        await settle_each(store, await read(store), A=soon(bench), B=BLOCKED, Free=soon(bench))
        bench.clock.advance(6)
        await publish_all(store)
        bench.clock.advance(WEEK + timedelta(seconds=1))
        await prune(store, Retention(published=WEEK))
        assert await found(store, Query()) == []

    async def test_its_age_is_that_of_the_publishing_not_of_the_parking(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("Free", None))
        await settle_each(store, await read(store), A=soon(bench), B=BLOCKED, Free=soon(bench))
        bench.clock.advance(WEEK)
        await publish_all(store)
        bench.clock.advance(WEEK - timedelta(seconds=1))
        await prune(store, Retention(published=WEEK))
        assert await found(store, Query(newest_first=False)) == ["A", "B", "Free"]

    async def test_what_was_dropped_long_ago_is_deleted(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        await store.drop(Query())
        bench.clock.advance(WEEK + timedelta(seconds=1))
        await prune(store, Retention(published=WEEK))
        assert await found(store, Query()) == []

    async def test_what_was_dropped_lately_is_kept(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        bench.clock.advance(WEEK)
        await store.drop(Query())
        bench.clock.advance(WEEK - timedelta(seconds=1))
        await prune(store, Retention(published=WEEK))
        assert (await record(store, "A")).status == "dropped"

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

    async def test_what_is_archived_is_shown_as_before(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", headers={"tenant": "x"}, number=3, occurred_at=due(bench, -1)))
        await settle(store, await read(store), soon(bench))
        bench.clock.advance(6)
        await publish_all(store)
        seen = await record(store, "A")
        bench.clock.advance(60)
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        assert await record(store, "A") == seen

    async def test_what_is_archived_can_be_replayed(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        assert await replayed(store, Query()) == 1
        assert await publish_all(store) == ["A"]

    async def test_a_replay_out_of_the_archive_that_failed_can_be_retried(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        await replayed(store, Query())
        await settle(store, await read(store), DEAD)
        assert await store.retry(Query(status=("dead",))) == 1
        assert await publish_all(store) == ["A"]

    async def test_what_a_replay_has_copied_is_kept_while_the_copy_waits(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await replayed(store, Query())
        await prune(store, Retention(published=timedelta(0)))
        await settle(store, await read(store), DEAD)
        assert await found(store, Query(status=("dead",))) == ["A"]

    async def test_it_is_kept_in_the_archive_too(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        await replayed(store, Query())
        bench.clock.advance(WEEK + timedelta(seconds=1))
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        await settle(store, await read(store), DEAD)
        assert await found(store, Query(status=("dead",))) == ["A"]

    async def test_the_archive_keeps_what_has_a_dead_copy_until_that_is_dropped(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        await replayed(store, Query())
        await settle(store, await read(store), DEAD)
        bench.clock.advance(WEEK + timedelta(seconds=1))
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        assert await store.drop(Query(status=("dead",))) == 1
        assert (await store.stats()).dead == 0
        bench.clock.advance(WEEK + timedelta(seconds=1))
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        assert await found(store, Query()) == []

    async def test_the_archive_ends_too(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        bench.clock.advance(WEEK + timedelta(seconds=1))
        await prune(store, Retention(published=timedelta(0), archive=WEEK))
        assert await found(store, Query()) == []
