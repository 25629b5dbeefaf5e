"""The rules of the lanes: one holder each, a lease, a fence against former holders."""

import pytest

from pillarbox.core.routing import LANES, lane_of
from pillarbox.core.window import BLOCKED
from pillarbox.errors import LaneLost
from pillarbox.ports import Away, Store
from pillarbox.testing.contracts.rules import needs
from pillarbox.testing.contracts.store_bench import (
    DEAD,
    LEASE,
    ROUNDS,
    StoreBench,
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
from pillarbox.testing.contracts.store_reading import NEIGHBOUR

LANE = lane_of("order", "1", "")
"""The lane of aggregate 1 and of its neighbour."""
OTHERS = [lane for lane in range(LANES) if lane != LANE]


async def overtaken(bench: StoreBench) -> tuple[Store, Store]:
    """Give a holder that hung until its lease had run out, and the one that has taken its lanes."""
    former = await holder(bench, "a")
    await bench.add(event("A"))
    await bench.hang(former)
    bench.clock.advance(LEASE + 1)
    return former, await holder(bench, "b")


class LanesRules:
    """Who may read what."""

    async def test_a_relay_alone_takes_every_lane(self, bench: StoreBench) -> None:
        store = await bench.store()
        assert (await store.take()).lanes == frozenset(range(LANES))

    async def test_a_lane_has_one_holder(self, bench: StoreBench) -> None:
        first, second = await bench.store("a"), await bench.store("b")
        held = (await first.take()).lanes
        assert not held & (await second.take()).lanes

    async def test_taking_again_keeps_what_is_held_and_what_was_given_out(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await read(store)
        assert len((await store.take()).lanes) == LANES
        assert await read(store) == []

    async def test_a_waiting_relay_takes_over_at_once_when_the_holder_dies(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        await second.take()
        await bench.add(event("A"))
        await bench.crash(first)
        assert len((await second.take()).lanes) == LANES
        assert names(await read(second)) == ["A"]

    async def test_a_waiting_relay_takes_over_the_blocked_lines_with_the_lanes(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        await second.take()
        await bench.add(event("A"), event("B"))
        await settle(first, await read(first), DEAD, BLOCKED)
        await bench.add(event("C"))
        await bench.crash(first)
        await second.take()
        assert line() in second.blocked
        assert names(await read(second)) == ["C"]
        assert line() in second.blocked

    async def test_a_relay_that_hangs_keeps_its_lanes_while_its_lease_runs(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        await bench.hang(first)
        bench.clock.advance(LEASE - 1)
        assert (await second.take()).lanes == frozenset()

    async def test_a_relay_that_hangs_loses_its_lanes_when_its_lease_is_over(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        await bench.hang(first)
        bench.clock.advance(LEASE + 1)
        assert len((await second.take()).lanes) == LANES

    async def test_renewing_prolongs_the_lease(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        bench.clock.advance(LEASE - 1)
        assert len((await first.renew(None)).lanes) == LANES
        await bench.hang(first)
        bench.clock.advance(LEASE - 1)
        assert (await second.take()).lanes == frozenset()

    async def test_a_former_holder_cannot_settle_and_changes_nothing(self, bench: StoreBench) -> None:
        first = await holder(bench, "a")
        await bench.add(event("A"), event("B", "2"))
        entries = await read(first)
        await bench.hang(first)
        bench.clock.advance(LEASE + 1)
        second = await holder(bench, "b")
        with pytest.raises(LaneLost):
            await settle(first, entries, soon(bench))
        assert sorted(names(await read(second))) == ["A", "B"]
        assert (await record(second, "A")).status == "pending"

    async def test_a_former_holder_cannot_settle_what_is_parked(self, bench: StoreBench) -> None:
        first = await holder(bench, "a")
        await bench.add(event("A"))
        await settle(first, await read(first), soon(bench))
        bench.clock.advance(6)
        entries = await read(first)
        await bench.hang(first)
        bench.clock.advance(LEASE + 1)
        second = await holder(bench, "b")
        with pytest.raises(LaneLost):
            await settle(first, entries)
        assert (await record(second, "A")).status == "retrying"

    async def test_a_former_holder_cannot_read(self, bench: StoreBench) -> None:
        former, _ = await overtaken(bench)
        with pytest.raises(LaneLost):
            await former.entries(10)

    async def test_a_former_holder_cannot_renew(self, bench: StoreBench) -> None:
        former, _ = await overtaken(bench)
        with pytest.raises(LaneLost):
            await former.renew(None)

    async def test_a_former_holder_that_takes_again_hears_that_it_had_lost_lanes(self, bench: StoreBench) -> None:
        """They may be free again by then: whoever goes on from memory would go back to where it was."""
        former, present = await overtaken(bench)
        assert await publish_all(present) == ["A"]
        await present.release()
        with pytest.raises(LaneLost):
            await former.take()
        await bench.add(event("B"))
        assert len((await former.take()).lanes) == LANES
        assert names(await read(former)) == ["B"]

    async def test_a_former_holder_still_knows_the_blocked_lines(self, bench: StoreBench) -> None:
        """It may have followers in its hands, and must not send them before it has forgotten them."""
        former = await holder(bench, "a")
        await bench.add(event("A"))
        await settle(former, await read(former), DEAD)
        await bench.hang(former)
        bench.clock.advance(LEASE + 1)
        await holder(bench, "b")
        with pytest.raises(LaneLost):
            await former.renew(None)
        assert line() in former.blocked

    async def test_a_former_holder_that_releases_takes_nothing_from_the_next(self, bench: StoreBench) -> None:
        former, present = await overtaken(bench)
        await former.release()
        assert names(await read(present)) == ["A"]

    async def test_a_former_holder_starts_again_from_what_is_stored(self, bench: StoreBench) -> None:
        former, present = await overtaken(bench)
        with pytest.raises(LaneLost):
            await former.entries(10)
        assert await publish_all(present) == ["A"]
        await bench.add(event("B"))
        await present.release()
        assert len((await former.take()).lanes) == LANES
        assert names(await read(former)) == ["B"]

    async def test_what_is_released_can_be_taken_at_once(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        await first.release()
        assert len((await second.take()).lanes) == LANES

    async def test_after_a_release_taking_starts_from_what_is_stored(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await read(store)
        await store.release()
        await store.take()
        assert names(await read(store)) == ["A"]

    async def test_people_see_which_relay_holds_the_lanes(self, bench: StoreBench) -> None:
        store = await holder(bench, "a")
        [seen] = (await store.stats()).relays
        assert (seen.owner, seen.lanes, seen.seen_at, seen.away) == ("a", LANES, bench.clock.now(), None)
        assert (seen.lease_until - bench.clock.now()).total_seconds() == LEASE

    async def test_people_see_that_a_relays_broker_is_away(self, bench: StoreBench) -> None:
        store = await holder(bench)
        away = Away(bench.clock.now(), "connection refused")
        await store.renew(away)
        assert (await store.stats()).relays[0].away == away
        await store.renew(None)
        assert (await store.stats()).relays[0].away is None

    async def test_through_a_chain_of_crashes_everything_comes_out(self, bench: StoreBench) -> None:
        seen: list[str] = []
        for n in range(4):
            store = await holder(bench, f"relay-{n}")
            await bench.add(event(f"E{n}"), event(f"F{n}"))
            entries = await read(store)
            await settle(store, entries[:1])
            seen += names(entries[:1])
            await bench.crash(store)
        seen += await publish_all(await holder(bench, "last"))
        assert seen == ["E0", "F0", "E1", "F1", "E2", "F2", "E3", "F3"]

    @needs("shares")
    async def test_two_relays_share_the_lanes(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        share = (await second.take()).share
        assert share == LANES // 2
        mine = (await first.renew(None)).lanes
        await first.release(sorted(mine)[share:])
        assert len((await second.take()).lanes) == share

    @needs("shares")
    async def test_a_relay_takes_no_more_than_its_share(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        await second.take()
        await first.release(range(48))
        assert len((await second.take()).lanes) == LANES // 2
        assert len((await first.take()).lanes) == LANES // 2

    @needs("shares")
    async def test_after_a_loss_a_release_leaves_no_lane_in_its_name(self, bench: StoreBench) -> None:
        first, second, third = await holder(bench, "a"), await bench.store("b"), await bench.store("c")
        bench.clock.advance(LEASE - 5)
        await third.take()
        bench.clock.advance(6)
        taken = (await second.take()).lanes
        assert len(taken) == LANES // 2
        with pytest.raises(LaneLost):
            await first.entries(10)
        await first.release()
        held = taken | (await first.take()).lanes | (await third.take()).lanes
        assert held == frozenset(range(LANES)), "a lane is in the name of one that does not know of it"

    @needs("shares")
    async def test_renewing_tells_what_would_be_fair_now(self, bench: StoreBench) -> None:
        first, second, third = await holder(bench, "a"), await bench.store("b"), await bench.store("c")
        assert (await first.renew(None)).share == LANES
        await second.take()
        assert (await first.renew(None)).share == 32
        await third.take()
        assert (await first.renew(None)).share == 22, "together they must be able to hold all 64"
        await bench.crash(second)
        await bench.crash(third)
        assert (await first.renew(None)).share == LANES

    @needs("shares")
    async def test_releasing_some_lanes_keeps_what_is_in_flight_in_others(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        await second.take()
        await bench.add(event("Parked", "1"))
        await settle(first, await read(first), soon(bench))
        bench.clock.advance(6)
        await bench.add(event("New", NEIGHBOUR))
        flying = await read(first)
        assert names(flying) == ["Parked", "New"]
        await first.release(OTHERS)
        assert await read(first) == []
        await settle(first, flying)
        await bench.crash(first)
        assert len((await second.take()).lanes) == LANES
        assert await publish_all(second) == []
        assert (await record(second, "Parked")).status == "published"

    @needs("shares")
    async def test_a_lane_that_is_handed_over_brings_its_blocked_lines(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        await bench.add(event("A"))
        await settle(first, await read(first), DEAD)
        await second.take()
        await first.release(OTHERS[:10])
        assert len((await second.take()).lanes) == 10
        assert line() not in second.blocked
        await first.release([LANE])
        assert LANE in (await second.take()).lanes
        assert line() in second.blocked

    @needs("shares")
    async def test_lanes_taken_in_exchange_for_others_are_read(self, bench: StoreBench) -> None:
        first, second, third = await holder(bench, "a"), await bench.store("b"), await bench.store("c")
        await second.take()
        await first.release([LANE, *OTHERS[:31]])
        assert LANE in (await second.take()).lanes
        await third.take()
        await bench.add(event("A"))
        assert await read(first) == []
        await bench.crash(second)
        held: frozenset[int] = frozenset(OTHERS[31:])
        for _ in range(ROUNDS):  # which of the free ones it takes is up to the store
            if LANE not in held:
                await first.release(held)
                held = (await first.take()).lanes
        assert LANE in held
        assert names(await read(first)) == ["A"]

    @needs("shares")
    async def test_relays_that_share_give_out_every_entry_once(self, bench: StoreBench) -> None:
        first, second = await holder(bench, "a"), await bench.store("b")
        await second.take()
        await first.release(range(LANES // 2))
        await second.take()
        await bench.add(*(event(f"E{n}", str(n)) for n in range(50)))
        ours, theirs = names(await read(first)), names(await read(second))
        assert ours
        assert theirs
        assert sorted(ours + theirs) == sorted(f"E{n}" for n in range(50))
