"""The rules of a replay that is left off and gone on with: nothing twice, nothing left out, in the order of the log."""

from datetime import timedelta

from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.core.window import BLOCKED, Settled
from pillarbox.ports import Query, Replay, Retention, Store
from pillarbox.testing.contracts.store_bench import (
    ROUNDS,
    StoreBench,
    event,
    holder,
    names,
    publish_all,
    read,
    record,
    replayed,
    settle,
    settle_each,
    soon,
)

NAMES = "ABCDEFGHIJ"


async def finish(store: Store, id: str = "replay-1") -> Replay:
    """Go on with a replay until it is finished."""
    for _ in range(ROUNDS):
        replay = await store.replay(id)
        assert replay is not None, f"{id} is gone"
        if replay.finished_at is not None:
            return replay
    raise AssertionError(f"{id} goes on without end")


async def shop(bench: StoreBench) -> Store:
    """Open a store whose ten events were published."""
    store = await holder(bench)
    for name in NAMES:
        await bench.add(event(name, str(ord(name) % 2)))
    await publish_all(store)
    return store


def all_but_the_odd_ones(**failed: Settled) -> dict[str, Settled]:
    """Make verdicts: of one of the two aggregates something failed, and what comes behind it waits."""
    return dict.fromkeys(NAMES, PUBLISHED) | dict.fromkeys("EGI", BLOCKED) | failed


class ReplayingRules:
    """Replays, batch by batch."""

    async def test_a_replay_that_only_began_has_sent_nothing(self, bench: StoreBench) -> None:
        store = await shop(bench)
        began = await store.begin_replay("replay-1", Query())
        assert (began.events, began.place, began.finished_at) == (0, began.first, None)
        assert await store.find_replay("replay-1") == began
        assert await publish_all(store) == []

    async def test_another_process_goes_on_where_the_first_one_was_killed(self, bench: StoreBench) -> None:
        store, operator = await shop(bench), await bench.store("operator")
        began = await operator.begin_replay("replay-1", Query(type="C"), again=True, to="elsewhere", rate=2)
        await operator.begin_replay("replay-2", Query(), again=True)
        await operator.replay("replay-2")
        await bench.crash(operator)
        other = await bench.store("other")
        assert await other.find_replay("replay-1") == began
        assert await other.find_replay("replay-3") is None
        assert await other.replay("replay-3") is None
        done = await finish(other, "replay-2")
        assert (done.events, done.place) == (len(NAMES), done.upto)
        assert await publish_all(store) == [*NAMES]

    async def test_a_finished_replay_sends_nothing_more(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await replayed(store, Query())
        await publish_all(store)
        done = await store.replay("replay-1")
        assert done is not None
        assert done.events == len(NAMES)
        assert await publish_all(store) == []

    async def test_all_batches_carry_the_one_id(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await store.begin_replay("replay-1", Query(), again=True)
        await store.replay("replay-1")
        await store.resume_replay("replay-1")
        await finish(store)
        assert {entry.replay for entry in await read(store)} == {"replay-1"}

    async def test_what_is_archived_in_between_is_not_left_out(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await store.begin_replay("replay-1", Query())
        await store.replay("replay-1")
        bench.clock.advance(60)
        await store.prune(Retention(published=timedelta(0), archive=timedelta(days=7)))
        await finish(store)
        assert await publish_all(store) == [*NAMES]

    async def test_what_is_added_after_it_began_does_not_belong_to_it(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await store.begin_replay("replay-1", Query())
        await bench.add(event("later"))
        await publish_all(store)
        assert (await finish(store)).events == len(NAMES)
        assert await publish_all(store) == [*NAMES]

    async def test_the_rate_holds_across_batches(self, bench: StoreBench) -> None:
        store = await shop(bench)
        assert await replayed(store, Query(), rate=1) == len(NAMES)
        for name in NAMES:
            assert await publish_all(store) == [name]
            bench.clock.advance(1)

    async def test_a_copy_that_failed_holds_back_the_later_ones_of_its_aggregate(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await replayed(store, Query(topic="orders"))
        await settle_each(store, await read(store), **all_but_the_odd_ones(C=soon(bench)))
        assert await publish_all(store) == []
        bench.clock.advance(6)
        again = await read(store)
        assert [(entry.event_type, entry.attempts) for entry in again] == [("C", 1)]
        await settle(store, again)
        assert await publish_all(store) == ["E", "G", "I"]

    async def test_it_holds_back_those_that_come_in_a_later_replay(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await replayed(store, Query(type="C"))
        await settle(store, await read(store), soon(bench))
        await replayed(store, Query(), "replay-2", again=True)
        assert await publish_all(store) == ["B", "D", "F", "H", "J"]
        bench.clock.advance(6)
        assert await publish_all(store) == ["C", "A", "E", "G", "I"]  # what is being retried is not replayed

    async def test_a_dead_copy_holds_them_back_until_somebody_cares(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await replayed(store, Query())
        await settle_each(store, await read(store), **all_but_the_odd_ones(C=Dead("no")))
        bench.clock.advance(60)
        assert await publish_all(store) == []
        assert await store.drop(Query(status=("dead",))) == 1
        assert await publish_all(store) == ["E", "G", "I"]

    async def test_a_copy_that_failed_holds_back_nothing_new(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await replayed(store, Query(type="C"))
        await settle(store, await read(store), soon(bench))
        await bench.add(event("new"))
        assert await publish_all(store) == ["new"]

    async def test_while_copies_of_an_aggregate_are_out_no_later_ones_come(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await replayed(store, Query())
        first = await store.entries(4)
        assert names(first)[:2] == ["A", "B"]
        assert await store.entries(4) == []
        await settle(store, first)
        rest = NAMES[len(first) :]
        assert names(await store.entries(100)) == [*rest]

    async def test_two_copies_of_one_event_never_come_out_together(self, bench: StoreBench) -> None:
        store = await shop(bench)
        for id in ("replay-1", "replay-2"):
            await replayed(store, Query(type="C"), id, again=True)
        for id in ("replay-1", "replay-2"):
            out = await store.entries(100)
            assert [(entry.event_type, entry.replay) for entry in out] == [("C", id)]
            await settle(store, out)

    async def test_who_retries_a_dead_copy_leaves_a_second_one_where_it_is(self, bench: StoreBench) -> None:
        store = await shop(bench)
        for id in ("replay-1", "replay-2"):
            await replayed(store, Query(type="C"), id, again=True)
        await settle(store, await store.entries(100), Dead("no"))
        assert await store.retry(Query(status=("dead",))) == 1
        await settle(store, await read(store), Dead("no"))
        assert await read(store) == []
        assert [one.type for one in await store.find(Query(status=("dead",)))] == ["C"]
        assert await store.drop(Query(status=("dead",))) == 1
        assert [(entry.event_type, entry.replay) for entry in await read(store)] == [("C", "replay-2")]

    async def test_a_replay_goes_no_further_than_its_limit(self, bench: StoreBench) -> None:
        store = await shop(bench)
        assert await replayed(store, Query(newest_first=True, limit=5)) == 5
        assert await publish_all(store) == [*NAMES[:5]]

    async def test_a_replay_of_nothing_is_finished(self, bench: StoreBench) -> None:
        store = await shop(bench)
        assert await replayed(store, Query(type="nothing")) == 0
        assert await replayed(store, Query(side="inbox"), "replay-2") == 0
        assert await replayed(store, Query(status=("dead",)), "replay-3") == 0
        assert await publish_all(store) == []

    async def test_the_audit_counts_a_replay_in_one_line_for_each_who_went_on(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await store.begin_replay("replay-1", Query())
        first = await store.replay("replay-1")
        assert first is not None
        await store.resume_replay("replay-1")
        await finish(store)
        deeds = [(deed.what.split()[0], deed.count) for deed in reversed(await store.deeds())]
        assert sum(count for _, count in deeds) == len(NAMES)
        assert deeds[0] == ("replay", first.events)

    async def test_the_audit_counts_a_prune_in_one_line(self, bench: StoreBench) -> None:
        store = await shop(bench)
        bench.clock.advance(3600)
        deed, pruned = await store.write_down("prune"), 0
        while count := await store.prune(Retention(published=timedelta(0)), deed):
            pruned += count
        await store.prune(Retention(published=timedelta(0)))
        [line] = await store.deeds()
        assert (line.what, line.count) == ("prune", pruned)
        assert pruned >= len(NAMES)

    async def test_events_are_found_up_to_a_position(self, bench: StoreBench) -> None:
        store = await shop(bench)
        place = (await record(store, "C")).position
        found = await store.find(Query(upto=place, newest_first=False))
        assert [one.type for one in found] == ["A", "B", "C"]

    async def test_a_copy_that_is_settled_once_more_settles_no_later_one(self, bench: StoreBench) -> None:
        store = await shop(bench)
        await replayed(store, Query(type="C"))
        earlier = await read(store)
        await settle(store, earlier)
        await replayed(store, Query(type="C"), "replay-2")
        assert names(await read(store)) == ["C"]
        await settle(store, earlier)  # the answer to the first time was lost
        await bench.crash(store)
        assert await publish_all(await holder(bench, "b")) == ["C"], "the later copy was never sent"
