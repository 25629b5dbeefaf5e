"""Stores that publish what is paused, or lose the place of a paused topic."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pillarbox.core.entry import Entry
from pillarbox.ports import Holding, Pause, Stats, Status
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory import START, Position, Row
from pillarbox.testing.memory_records import MemoryStore
from pillarbox.testing.memory_source import _Given

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


@breaks("test_who_takes_lanes_hears_which_topics_others_had_to_hold")
class HandsOverWithoutAWord(MemoryStore):
    async def take(self) -> Holding:
        return (await super().take())._replace(behind=frozenset())


@breaks("test_who_takes_lanes_hears_which_topics_others_had_to_hold")
class CountsPausedTopicsAmongThoseThatFail(MemoryStore):
    async def take(self) -> Holding:
        holding = await super().take()
        return holding._replace(behind=holding.behind | self.database.pauses.keys())


# What is read while a topic is paused.


@breaks(
    "test_a_paused_topic_does_not_come_out_and_others_do",
    "test_a_pause_from_before_the_first_relay_holds",
    "test_a_pause_survives_a_crash",
    "test_a_paused_event_is_pending",
)
class IgnoresPauses(MemoryStore):
    def _newly_paused(self) -> bool:
        return False


@breaks("test_a_paused_topic_does_not_come_out_and_others_do", "test_two_topics_are_paused_and_resumed_on_their_own")
class StopsEverythingWhileATopicIsPaused(MemoryStore):
    def _next(self, room: int) -> list[Entry]:
        return [] if self.database.pauses else super()._next(room)


@breaks("test_a_pause_from_before_the_first_relay_holds", "test_a_pause_survives_a_crash")
class KnowsOnlyPausesOfItsOwn(MemoryStore):
    """Keeps pauses in the process that was asked for them."""

    async def pause(self, topic: str, who: str, why: str) -> Pause | None:
        there = await super().pause(topic, who, why)
        self._mine = dict(self.database.pauses)
        return there

    def _next(self, room: int) -> list[Entry]:
        self.database.pauses = getattr(self, "_mine", {})
        return super()._next(room)


@breaks("test_parked_entries_of_a_paused_topic_stay")
class RetriesWhatIsPaused(MemoryStore):
    def _due(self, room: int) -> list[Entry]:
        paused, self.database.pauses = self.database.pauses, {}
        try:
            return super()._due(room)
        finally:
            self.database.pauses = paused


@breaks("test_parked_entries_of_a_paused_topic_stay")
class ForgetsWhatWasParkedWhenATopicIsPaused(MemoryStore):
    async def pause(self, topic: str, who: str, why: str) -> Pause | None:
        there = await super().pause(topic, who, why)
        self.database.parked = [row for row in self.database.parked if row.entry.topic != topic]
        return there


@breaks("test_pausing_again_changes_nothing_and_gives_the_first_pause")
class ThePauseOfTheLastOneCounts(MemoryStore):
    async def pause(self, topic: str, who: str, why: str) -> Pause | None:
        there = self.database.pauses.pop(topic, None)
        await super().pause(topic, who, why)
        return there


@breaks("test_pausing_again_changes_nothing_and_gives_the_first_pause")
class KeepsSilentAboutAPauseThatIsThere(MemoryStore):
    async def pause(self, topic: str, who: str, why: str) -> Pause | None:
        await super().pause(topic, who, why)
        return None


@breaks(
    "test_a_held_topic_is_read_around_and_keeps_its_place",
    "test_parked_entries_of_a_held_topic_stay",
    "test_what_goes_back_comes_out_again_in_order",
)
class HoldsNothing(MemoryStore):
    def hold(self, topics: frozenset[str]) -> None:
        """Do nothing."""


@breaks(
    "test_what_goes_back_comes_out_again_in_order",
    "test_what_went_back_comes_out_of_the_next_relay",
    "test_what_has_gone_back_is_pending",
)
class TakesWhatGoesBackForPublished(MemoryStore):
    def _send_back(self, given: _Given) -> None:
        self.database.positions[given.lane, given.topic] = given.reaches


@breaks("test_what_went_back_twice_comes_out_of_the_next_relay")
class GoesOnBehindWhatWentBack(MemoryStore):
    def _send_back(self, given: _Given) -> None:
        super()._send_back(given)
        for later in self._memory.given:
            later.stale = False


@breaks("test_what_goes_back_twice_comes_out_again_twice")
class ForgetsWhatGoesBackAgain(MemoryStore):
    def _send_back(self, given: _Given) -> None:
        if given.topic is None:
            super()._send_back(given)


@breaks("test_what_goes_back_may_be_settled_once_more")
class ClosesADetourThatIsSettledTwice(MemoryStore):
    def _settle_given(self, entry: Entry, verdict: object) -> None:
        again = all(given.entry.position != entry.position for given in self._memory.given)
        super()._settle_given(entry, verdict)
        for key in [key for key in self._memory.read if again and key[1] == entry.topic]:
            del self._memory.read[key], self.database.positions[key]


@breaks("test_what_went_before_does_not_come_out_again")
class BeginsADetourWithTheLog(MemoryStore):
    def _send_back(self, given: _Given) -> None:
        super()._send_back(given)
        key = (given.lane, given.entry.topic)
        self.database.positions[key] = self._memory.read[key] = START


# Where a detour begins.


@breaks("test_a_topic_goes_on_from_where_it_was_paused", "test_what_a_pause_found_given_out_is_settled_as_usual")
class OpensADetourAtTheEndOfTheLog(MemoryStore):
    def _detour(self) -> bool:
        known = set(self._memory.read)
        ready = super()._detour()
        now = self.database.snapshot()
        for key in set(self._memory.read) - known:
            self._memory.read[key] = self.database.positions[key] = Position(now, now, 0)
        return ready


@breaks("test_what_a_pause_found_given_out_is_settled_as_usual")
class OpensADetourBeforeWhatIsInFlight(MemoryStore):
    def _detour(self) -> bool:
        flying = list(self._memory.given)
        self._memory.given.clear()
        ready = super()._detour()
        self._memory.given.extend(flying)
        return ready


@breaks("test_a_topic_can_be_paused_again_while_it_catches_up")
class OpensADetourAnewAtEveryPause(MemoryStore):
    _paused: frozenset[str] = frozenset()

    def _detour(self) -> bool:
        for key in [key for key in self._memory.read if key[1] in set(self.database.pauses) - self._paused]:
            del self._memory.read[key]
        self._paused = frozenset(self.database.pauses)
        return super()._detour()


# What becomes of its place.


@breaks("test_a_pause_survives_a_crash")
class ForgetsAPauseInACrash(MemoryStore):
    def crash(self) -> None:
        super().crash()
        self.database.pauses.clear()
        for key in [key for key in self.database.positions if key[1] is not None]:
            del self.database.positions[key]


@breaks("test_a_pause_survives_a_crash", "test_a_paused_event_is_pending")
class KeepsADetoursPlaceInMemory(MemoryStore):
    def _detour(self) -> bool:
        ready = super()._detour()
        for key in [key for key in self.database.positions if key[1] is not None]:
            del self.database.positions[key]
        return ready


@breaks(
    "test_what_was_resumed_but_not_settled_comes_out_again_after_a_crash",
    "test_after_it_has_caught_up_a_crash_repeats_nothing_of_it",
    "test_it_catches_up_while_others_are_in_flight",
)
class NeverStoresHowFarADetourIs(MemoryStore):
    def _settle_given(self, entry: Entry, verdict: object) -> None:
        stored = {key: place for key, place in self.database.positions.items() if key[1] is not None}
        super()._settle_given(entry, verdict)
        self.database.positions.update(stored)

    def _met(self) -> list[tuple[int, str]]:
        return []


@breaks(
    "test_a_topic_goes_on_from_where_it_was_paused",
    "test_a_resumed_topic_comes_in_order_with_what_is_new",
    "test_a_pause_survives_a_crash",
    "test_a_topic_can_be_paused_again_while_it_catches_up",
    "test_it_catches_up_while_others_are_in_flight",
    "test_two_topics_are_paused_and_resumed_on_their_own",
    "test_what_a_pause_holds_is_never_deleted",
)
class SkipsWhatWasPaused(MemoryStore):
    """Closes a detour as soon as its topic is open again."""

    def _met(self) -> list[tuple[int, str]]:
        pauses = self.database.pauses
        return [(lane, topic) for lane, topic in self._memory.read if topic is not None and topic not in pauses]


@breaks("test_what_was_resumed_but_not_settled_comes_out_again_after_a_crash")
class ClosesADetourBeforeItIsSettled(MemoryStore):
    def _detour(self) -> bool:
        met, flying = self._met(), list(self._memory.given)
        if met:
            self._memory.given.clear()
        ready = super()._detour()
        for given in flying if met else ():
            if (given.lane, given.topic) in met:
                given.topic, given.reaches = None, self._memory.read[given.lane, None]
            self._memory.given.append(given)
        return ready


@breaks("test_a_topic_goes_on_from_where_it_was_paused", "test_a_resumed_topic_comes_in_order_with_what_is_new")
class PublishesAgainWhenItHasCaughtUp(MemoryStore):
    """Closes a detour and leaves the main line where it was, before what the detour has published."""

    def _detour(self) -> bool:
        before = {lane: (self._memory.read[lane, None], self.database.positions[lane, None]) for lane, _ in self._met()}
        ready = super()._detour()
        for lane, (read, stored) in before.items():
            self._memory.read[lane, None], self.database.positions[lane, None] = read, stored
        return ready


@breaks("test_no_room_loses_nothing_of_a_topic_that_catches_up")
class TakesAnEmptyAnswerForTheEndOfADetour(MemoryStore):
    async def entries(self, room: int) -> Sequence[Entry]:
        entries, read = await super().entries(room), self._memory.read
        for lane, topic in read if not entries else ():
            if topic is not None and topic not in self.database.pauses:
                read[lane, topic] = read[lane, None]
        return entries


# What people see and say.


@breaks("test_two_topics_are_paused_and_resumed_on_their_own")
class ResumesEverything(MemoryStore):
    async def resume(self, topic: str) -> bool:
        known = await super().resume(topic)
        self.database.pauses.clear()
        return known


@breaks("test_resuming_a_topic_that_flows_says_so")
class ClaimsToResumeWhatFlows(MemoryStore):
    async def resume(self, topic: str) -> bool:
        await super().resume(topic)
        return True


@breaks(
    "test_a_paused_event_is_pending",
    "test_what_a_pause_holds_is_never_deleted",
)
class TakesWhatIsPausedForPublished(MemoryStore):
    """Judges every event by the main position."""

    def _status(self, row: Row) -> tuple[Status, datetime | None]:
        status, at = super()._status(row)
        if status == "pending" and self.database.positions[row.lane, None].covers(row):
            return "published", self.database.clock.now()
        return status, at


@breaks("test_an_event_published_after_a_pause_has_that_time")
class DatesADetourByTheMainLine(MemoryStore):
    """Says that an event was published when the log had been read as far as its place."""

    def _status(self, row: Row) -> tuple[Status, datetime | None]:
        status, at = super()._status(row)
        if status == "published":
            at = next(tick.at for tick in self.database.ticks if max(tick.covered, default=0) >= row.entry.position)
        return status, at


@breaks("test_people_see_who_paused_a_topic_and_why")
class ForgetsWhoPausedIt(MemoryStore):
    async def pause(self, topic: str, who: str, why: str) -> Pause | None:
        return await super().pause(topic, "somebody", why)


@breaks("test_people_see_who_paused_a_topic_and_why")
class ShowsPausesThatAreOver(MemoryStore):
    _seen: tuple[Pause, ...] = ()

    async def stats(self) -> Stats:
        stats = await super().stats()
        self._seen = tuple({*self._seen, *stats.pauses})
        return replace(stats, pauses=self._seen)
