"""Subscribers that deliver wrongly, forget or invent acknowledgements, or do not share with the rest of their group."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from pillarbox.brokers.memory import MemoryBroker, MemorySubscriber
from pillarbox.brokers.partitions import Partition
from pillarbox.core.message import REPLAY_HEADER, Delivery
from pillarbox.testing.contracts.broker_defect import Broken, Defect, into
from pillarbox.testing.contracts.memory_broker import StandbySubscriber

DEFECTS: list[Defect] = []
breaks = into(DEFECTS)


@breaks("test_a_key_comes_in_the_order_of_the_broker", "test_a_key_keeps_its_order_when_it_changes_hands")
class DeliversBackwards(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return (await super().deliveries(room, patience))[::-1]


@breaks("test_everything_published_is_delivered")
class SkipsEveryThird(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return [delivery for delivery in await super().deliveries(room, patience) if delivery.place.id % 3]


@breaks("test_what_is_replayed_on_purpose_comes_again_and_says_by_which_replay")
class ForgetsWhichReplayItWas(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return [_without_its_replay(delivery) for delivery in await super().deliveries(room, patience)]


def _without_its_replay(delivery: Delivery) -> Delivery:
    headers = {name: value for name, value in delivery.message.headers.items() if name != REPLAY_HEADER}
    return replace(delivery, message=delivery.message._replace(headers=headers))


@breaks("test_no_more_come_than_there_is_room_for")
class IgnoresTheRoom(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return await super().deliveries(1000, patience)


@breaks("test_it_waits_no_longer_than_its_patience")
class HasTooMuchPatience(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return await super().deliveries(room, patience * 100)


@breaks("test_it_waits_as_long_as_its_patience")
class HasNoPatience(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return await super().deliveries(room, 0.0)


@breaks("test_news_end_the_waiting")
class SleepsThroughNews(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        await asyncio.sleep(patience)
        return await super().deliveries(room, 0.0)


@breaks("test_only_its_topics_are_delivered")
class ListensToEverything(MemorySubscriber):
    def __init__(self, broker: MemoryBroker, consumer: str, topics: Sequence[str]) -> None:
        super().__init__(broker, consumer, ["mails", *topics])


@breaks("test_several_topics_are_delivered")
class ListensToTheFirstTopic(MemorySubscriber):
    def __init__(self, broker: MemoryBroker, consumer: str, topics: Sequence[str]) -> None:
        super().__init__(broker, consumer, topics[:1])


@breaks("test_a_topic_may_be_unknown_at_first")
class DemandsATopicThatExists(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        if not self._broker.messages(self._topics[0]):
            raise Broken("no such topic")
        return await super().deliveries(room, patience)


@breaks("test_what_was_given_out_is_not_given_out_again", "test_members_get_nothing_twice")
class GivesOutAgainWhatIsNotAcknowledged(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        deliveries = await super().deliveries(room, patience)
        for partition, held in self._held.items():
            held.cursor = self._group.row(partition).position
        return deliveries

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        await super().acknowledge(deliveries[:-1])


@breaks("test_a_wait_that_is_cancelled_loses_no_delivery")
class LosesDeliveriesWhenCancelled(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        deliveries = await super().deliveries(room, patience)
        await asyncio.sleep(0)
        return deliveries


@breaks("test_what_was_acknowledged_does_not_come_again", "test_closing_twice_is_harmless")
class ForgetsAcknowledgements(MemorySubscriber):
    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Nod and do nothing."""


@breaks(
    "test_what_was_not_acknowledged_comes_again_after_a_death",
    "test_what_was_not_acknowledged_comes_again_after_closing",
    "test_what_comes_again_is_marked",
    "test_what_comes_again_after_closing_is_marked",
    "test_acknowledging_what_another_has_taken_over_moves_nothing",
)
class AcknowledgesWhatItGivesOut(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        deliveries = await super().deliveries(room, patience)
        await self.acknowledge(deliveries)
        return deliveries


@breaks("test_what_was_not_acknowledged_comes_again_after_closing")
class AcknowledgesEverythingWhenClosed(MemorySubscriber):
    async def close(self) -> None:
        for partition, held in self._held.items():
            self._group.row(partition).position = held.cursor
        await super().close()


@breaks("test_an_acknowledgement_out_of_order_skips_nothing")
class SkipsOverGaps(MemorySubscriber):
    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._group.row(delivery.place.partition).position = delivery.place.id


@breaks("test_acknowledging_what_another_has_taken_over_moves_nothing")
class AcknowledgesUnfenced(MemorySubscriber):
    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            row = self._group.row(delivery.place.partition)
            row.position = max(row.position, delivery.place.id)


@breaks("test_acknowledging_what_another_has_taken_over_moves_nothing")
class ComplainsAboutLateAcknowledgements(MemorySubscriber):
    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        if any(delivery.place.partition not in self._held for delivery in deliveries):
            raise Broken("not yours any more")
        await super().acknowledge(deliveries)


@breaks("test_what_comes_again_is_marked", "test_what_comes_again_after_closing_is_marked")
class MarksNothing(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return [Delivery(d.message, d.place) for d in await super().deliveries(room, patience)]


@breaks("test_what_comes_for_the_first_time_is_not_marked")
class MarksEverything(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return [Delivery(d.message, d.place, redelivered=True) for d in await super().deliveries(room, patience)]


@breaks("test_each_consumer_gets_everything")
class TakesAllConsumersForOne(MemorySubscriber):
    def __init__(self, broker: MemoryBroker, consumer: str, topics: Sequence[str]) -> None:
        super().__init__(broker, "everybody", topics)


@breaks(
    "test_members_share_the_keys",
    "test_members_get_nothing_twice",
    "test_a_key_moves_on_only_when_all_of_it_is_acknowledged",
)
class GivesEveryMemberEverything(MemorySubscriber):
    def __init__(self, broker: MemoryBroker, consumer: str, topics: Sequence[str]) -> None:
        super().__init__(broker, f"{consumer} {id(self)}", topics)


@breaks("test_members_share_the_keys")
class LeavesEverythingToTheFirst(MemorySubscriber):
    def _take(self, topic: str, share: int) -> None:
        super()._take(topic, 16)

    def _release(self, partition: Partition) -> None:
        if self._gone:
            super()._release(partition)


@breaks("test_a_key_moves_on_only_when_all_of_it_is_acknowledged")
class HandsOverWhatIsInFlight(MemorySubscriber):
    def _balance(self) -> None:
        super()._balance()
        for partition in [partition for partition, held in self._held.items() if held.leaving]:
            self._group.row(partition).position = self._held[partition].cursor
            self._release(partition)


@breaks("test_others_take_over_at_once_when_a_member_dies")
class LeavesTheDeadTheirPart(MemorySubscriber):
    def crash(self) -> None:
        self._gone = True

    async def close(self) -> None:
        super().crash()


@breaks("test_others_take_over_at_once_when_a_member_leaves")
class LeavesWithoutAWord(MemorySubscriber):
    async def close(self) -> None:
        self._gone = True


@breaks("test_a_member_that_was_taken_for_dead_comes_back")
class StaysOutOnceExpelled(MemorySubscriber):
    expelled = False

    def expel(self) -> None:
        self.expelled = True
        super().expel()

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        if self.expelled:
            await asyncio.sleep(patience)
            return []
        return await super().deliveries(room, patience)


@breaks("test_one_member_has_a_topic_and_the_others_nothing", "test_a_member_that_was_taken_for_dead_stands_by")
class SharesWhereOneShouldHaveAll(StandbySubscriber):
    def _balance(self) -> None:
        MemorySubscriber._balance(self)


@breaks(
    "test_another_takes_over_at_once_when_the_one_that_has_it_dies",
    "test_another_takes_over_at_once_when_the_one_that_has_it_leaves",
)
class DeliversBackwardsToWhoTakesOver(StandbySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        deliveries = await super().deliveries(room, patience)
        return deliveries[::-1] if any(delivery.redelivered for delivery in deliveries) else deliveries


@breaks("test_another_takes_over_at_once_when_the_one_that_has_it_dies")
class KeepsItsTopicInDeath(StandbySubscriber):
    def crash(self) -> None:
        self._gone = True


@breaks("test_another_takes_over_at_once_when_the_one_that_has_it_leaves")
class KeepsItsTopicWhenItLeaves(StandbySubscriber):
    async def close(self) -> None:
        self._gone = True


@breaks("test_a_member_that_was_taken_for_dead_takes_over_in_its_turn")
class NeverTakesOverOnceExpelled(StandbySubscriber):
    expelled = False

    def expel(self) -> None:
        self.expelled = True
        super().expel()

    def _balance(self) -> None:
        if not self.expelled:
            super()._balance()


@breaks("test_while_it_is_away_it_says_so")
class KeepsSilentAboutAnOutage(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return [] if self._broker.down else await super().deliveries(room, patience)


@breaks("test_after_an_outage_it_goes_on")
class SkipsWhatItMissedInAnOutage(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        if self._broker.down:
            for held in self._held.values():
                held.cursor += 1
        return await super().deliveries(room, patience)


@breaks("test_closing_twice_is_harmless")
class LeavesOnceOnly(MemorySubscriber):
    async def close(self) -> None:
        if self._gone:
            raise Broken("closed already")
        await super().close()
