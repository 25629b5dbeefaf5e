"""Stores that hold lanes they should not, let go of those they should hold, or forget the fence."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from pillarbox.core.entry import Entry
from pillarbox.core.routing import LANES
from pillarbox.core.window import Settlement
from pillarbox.errors import LaneLost
from pillarbox.ports import Away, Holding, RelaySeen
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory import Position
from pillarbox.testing.memory_records import MemoryStore
from pillarbox.testing.memory_source import _Memory

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


# Releasing after a loss.


@breaks("test_after_a_loss_a_release_leaves_no_lane_in_its_name")
class ReleasesOnlyWhatItRemembers(MemoryStore):
    def _in_our_name(self) -> set[int]:
        return self._held()


# Taking.


@breaks("test_a_former_holder_that_takes_again_hears_that_it_had_lost_lanes")
class TakesBackWhatItHadLost(MemoryStore):
    def _notice(self) -> None:
        """Go on from memory."""


@breaks("test_a_relay_alone_takes_every_lane", "test_two_relays_share_the_lanes")
class LeavesAShareForNobody(MemoryStore):
    def _share(self) -> int:
        alive = sum(self._lives(owner) for owner in self.database.members)
        return LANES // (alive + 1)


@breaks(
    "test_a_lane_has_one_holder",
    "test_a_relay_that_hangs_keeps_its_lanes_while_its_lease_runs",
    "test_renewing_prolongs_the_lease",
    "test_relays_that_share_give_out_every_entry_once",
)
class TakesLanesFromTheLiving(MemoryStore):
    def _lives(self, owner: str) -> bool:
        return owner == self.owner


@breaks("test_taking_again_keeps_what_is_held_and_what_was_given_out")
class StartsAnewWheneverItTakes(MemoryStore):
    async def take(self) -> Holding:
        self._memory = _Memory()
        return await super().take()


@breaks("test_a_waiting_relay_takes_over_at_once_when_the_holder_dies")
class WaitsForTheLeaseOfTheDead(MemoryStore):
    def crash(self) -> None:
        self._crashed = True


@breaks("test_a_relay_that_hangs_keeps_its_lanes_while_its_lease_runs", "test_renewing_prolongs_the_lease")
class TakesLanesBeforeTheLeaseIsOver(MemoryStore):
    def _lives(self, owner: str) -> bool:
        later = self.database.clock.now() + self._lease / 2
        return super()._lives(owner) and self.database.members[owner].lease_until > later


@breaks("test_a_relay_that_hangs_loses_its_lanes_when_its_lease_is_over")
class NeverTakesFromTheHanging(MemoryStore):
    def _lives(self, owner: str) -> bool:
        member = self.database.members.get(owner)
        return member is not None and member.alive


@breaks("test_two_relays_share_the_lanes", "test_relays_that_share_give_out_every_entry_once")
class TakesNothingWhileAnotherLives(MemoryStore):
    async def take(self) -> Holding:
        if any(self._lives(owner) for owner in self.database.members if owner != self.owner):
            return Holding(frozenset(self._held()), 0)
        return await super().take()


@breaks("test_a_relay_takes_no_more_than_its_share")
class TakesWhateverIsFree(MemoryStore):
    _greedy = False

    def _share(self) -> int:
        return LANES if self._greedy else super()._share()

    async def take(self) -> Holding:
        self._greedy = True
        try:
            held = (await super().take()).lanes
        finally:
            self._greedy = False
        return Holding(held, self._share())


@breaks("test_lanes_taken_in_exchange_for_others_are_read")
class ReadsNewLanesOnlyWhenSomethingIsCommitted(MemoryStore):
    """Believes that there is nothing to read, as it was when it last looked into other lanes."""

    def _load(self, lane: int) -> None:
        exhausted = self._memory.exhausted
        super()._load(lane)
        self._memory.exhausted = exhausted


# Renewing.


@breaks("test_renewing_prolongs_the_lease")
class RenewsWithoutProlonging(MemoryStore):
    async def renew(self, away: Away | None) -> Holding:
        until = self.database.members[self.owner].lease_until
        holding = await super().renew(away)
        self.database.members[self.owner].lease_until = until
        return holding


@breaks("test_renewing_tells_what_would_be_fair_now")
class TellsWhatWasFairWhenItTook(MemoryStore):
    _known = LANES

    async def take(self) -> Holding:
        holding = await super().take()
        self._known = holding.share
        return holding

    async def renew(self, away: Away | None) -> Holding:
        return Holding((await super().renew(away)).lanes, self._known)


@breaks("test_renewing_tells_what_would_be_fair_now")
class TellsHowManyItHolds(MemoryStore):
    async def renew(self, away: Away | None) -> Holding:
        held = (await super().renew(away)).lanes
        return Holding(held, len(held))


@breaks("test_renewing_tells_what_would_be_fair_now")
class RoundsTheShareDown(MemoryStore):
    def _share(self) -> int:
        return LANES // sum(self._lives(owner) for owner in self.database.members)


@breaks("test_renewing_tells_what_would_be_fair_now")
class LeavesAShareForTheDead(MemoryStore):
    def _share(self) -> int:
        return -(-LANES // len(self.database.members))


@breaks("test_people_see_that_a_relays_broker_is_away")
class SaysNothingOfItsBroker(MemoryStore):
    async def renew(self, away: Away | None) -> Holding:
        return await super().renew(None)


@breaks("test_people_see_that_a_relays_broker_is_away")
class SaysForEverThatItsBrokerIsAway(MemoryStore):
    async def renew(self, away: Away | None) -> Holding:
        return await super().renew(away or self.database.members[self.owner].away)


# Releasing.


@breaks("test_what_is_released_can_be_taken_at_once", "test_a_former_holder_starts_again_from_what_is_stored")
class KeepsItsLanesOnRelease(MemoryStore):
    async def release(self, lanes: Collection[int] | None = None) -> None:
        self._memory = _Memory()


@breaks("test_a_former_holder_that_releases_takes_nothing_from_the_next")
class ReleasesLanesOfOthers(MemoryStore):
    async def release(self, lanes: Collection[int] | None = None) -> None:
        for lane in self._memory.epochs if lanes is None else lanes:
            self.database.lanes[lane].owner, self.database.lanes[lane].epoch = None, self.database.next_epoch()
        await super().release(lanes)


@breaks("test_two_relays_share_the_lanes", "test_relays_that_share_give_out_every_entry_once")
class ReleasesAllOrNothing(MemoryStore):
    async def release(self, lanes: Collection[int] | None = None) -> None:
        if lanes is None:
            await super().release()


@breaks("test_relays_that_share_give_out_every_entry_once")
class ReadsOnInLanesThatItReleased(MemoryStore):
    async def release(self, lanes: Collection[int] | None = None) -> None:
        read = dict(self._memory.read)
        await super().release(lanes)
        self._memory.read.update(read if lanes is not None else {})


class _ForgetsMoreThanItReleases(MemoryStore):
    """Drops something of the lanes that it keeps."""

    def forget(self) -> None:
        raise NotImplementedError

    async def release(self, lanes: Collection[int] | None = None) -> None:
        await super().release(lanes)
        self.forget()


@breaks("test_releasing_some_lanes_keeps_what_is_in_flight_in_others")
class ForgetsWhatIsInFlight(_ForgetsMoreThanItReleases):
    def forget(self) -> None:
        self._memory.given.clear()


@breaks("test_releasing_some_lanes_keeps_what_is_in_flight_in_others")
class ForgetsWhichParkedOnesAreInFlight(_ForgetsMoreThanItReleases):
    def forget(self) -> None:
        self._memory.parked_out.clear()


@breaks("test_releasing_some_lanes_keeps_what_is_in_flight_in_others")
class ReadsItsOtherLanesAnew(_ForgetsMoreThanItReleases):
    def forget(self) -> None:
        for lane in self._memory.epochs:
            self._load(lane)


@breaks(
    "test_after_a_release_taking_starts_from_what_is_stored",
    "test_a_former_holder_starts_again_from_what_is_stored",
)
class GoesOnFromItsOwnMemory(MemoryStore):
    """Trusts what it read before it lost or gave back its lanes."""

    def __init__(self, *more: object, **others: object) -> None:
        super().__init__(*more, **others)  # type: ignore[arg-type]
        self._known: dict[tuple[int, str | None], Position] = {}

    async def take(self) -> Holding:
        holding = await super().take()
        self._memory.read.update(self._known)
        self._known = self._memory.read
        return holding

    async def release(self, lanes: Collection[int] | None = None) -> None:
        self._known = dict(self._memory.read)
        await super().release(lanes)


# The fence.


class _Unfenced(MemoryStore):
    """Can do without the fence."""

    _fenced = True

    @contextmanager
    def _without_the_fence(self) -> Iterator[None]:
        self._fenced = False
        try:
            yield
        finally:
            self._fenced = True

    def _fence(self) -> None:
        if self._fenced:
            super()._fence()


@breaks(
    "test_a_former_holder_cannot_settle_and_changes_nothing",
    "test_a_former_holder_cannot_settle_what_is_parked",
)
class SettlesUnfenced(_Unfenced):
    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        with self._without_the_fence():
            await super().settle(settlements)


@breaks(
    "test_a_former_holder_cannot_settle_and_changes_nothing",
    "test_a_former_holder_cannot_settle_what_is_parked",
)
class LooksAtTheFenceAfterItHasSettled(_Unfenced):
    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        with self._without_the_fence():
            await super().settle(settlements)
        self._fence()


@breaks("test_a_former_holder_cannot_settle_what_is_parked")
class FencesTheLogOnly(_Unfenced):
    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        if all(entry.parked for entry, _ in settlements):
            with self._without_the_fence():
                await super().settle(settlements)
        else:
            await super().settle(settlements)


@breaks("test_a_former_holder_cannot_read", "test_a_former_holder_starts_again_from_what_is_stored")
class ReadsUnfenced(_Unfenced):
    async def entries(self, room: int) -> Sequence[Entry]:
        with self._without_the_fence():
            return await super().entries(room)


@breaks("test_a_former_holder_cannot_renew")
class RenewsUnfenced(_Unfenced):
    async def renew(self, away: Away | None) -> Holding:
        with self._without_the_fence():
            return await super().renew(away)


@breaks("test_a_former_holder_cannot_read", "test_a_former_holder_starts_again_from_what_is_stored")
class LosesItsLanesInSilence(MemoryStore):
    async def entries(self, room: int) -> Sequence[Entry]:
        try:
            return await super().entries(room)
        except LaneLost:
            return []


# What people see of it.


@breaks("test_people_see_which_relay_holds_the_lanes")
class ShowsNoRelays(MemoryStore):
    def _relays(self) -> Iterator[RelaySeen]:
        return iter(())


@breaks("test_people_see_which_relay_holds_the_lanes")
class ShowsAnotherLeaseThanItsOwn(MemoryStore):
    def _relays(self) -> Iterator[RelaySeen]:
        return (replace(seen, lease_until=seen.seen_at + timedelta(minutes=1)) for seen in super()._relays())
