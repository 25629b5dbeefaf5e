"""The rules of the canary: an event like any other, of which a store knows the newest."""

from datetime import timedelta

from pillarbox.core.canary import CANARY, canary
from pillarbox.ports import CanarySeen, Query, Retention
from pillarbox.testing.contracts.store_bench import DEAD, StoreBench, event, holder, publish_all, read, settle


class CanaryRules:
    """add_canary, and what stats tell of it."""

    async def test_without_a_canary_none_is_seen(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        assert (await store.stats()).canary is None

    async def test_a_canary_comes_out_as_any_event_does(self, bench: StoreBench) -> None:
        store = await holder(bench)
        sent = canary("birds")
        await store.add_canary(sent)
        [entry] = await read(store)
        assert (entry.event_id, entry.event_type, entry.topic) == (str(sent.id), CANARY, "birds")

    async def test_people_see_what_has_become_of_the_canary(self, bench: StoreBench) -> None:
        store, other = await holder(bench), await bench.store("b")
        sent, at = canary("birds"), bench.clock.now()
        await store.add_canary(sent)
        bench.clock.advance(5)
        assert (await other.stats()).canary == CanarySeen(str(sent.id), at, "pending")
        await publish_all(store)
        assert (await other.stats()).canary == CanarySeen(str(sent.id), at, "published")

    async def test_people_see_why_the_canary_died(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await store.add_canary(canary("birds"))
        await settle(store, await read(store), DEAD)
        seen = (await store.stats()).canary
        assert seen is not None
        assert (seen.status, seen.error) == ("dead", "refused for good")

    async def test_of_several_canaries_the_newest_is_seen(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await store.add_canary(canary("birds"))
        await publish_all(store)
        newest = canary("birds")
        await store.add_canary(newest)
        seen = (await store.stats()).canary
        assert seen is not None
        assert (seen.event_id, seen.status) == (str(newest.id), "pending")

    async def test_a_canary_that_was_pruned_was_published(self, bench: StoreBench) -> None:
        store = await holder(bench)
        sent, at = canary("birds"), bench.clock.now()
        await store.add_canary(sent)
        await publish_all(store)
        while await store.prune(Retention(published=timedelta(0))):
            pass
        assert list(await store.find(Query(ids=(str(sent.id),)))) == []
        assert (await store.stats()).canary == CanarySeen(str(sent.id), at, "published")
