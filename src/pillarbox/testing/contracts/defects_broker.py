"""Defects: memory brokers that are broken on purpose, each with the rules of the two contracts that must notice it.

A rule that no defect breaks would be a rule that cannot fail; the tests see to it that there is none.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pillarbox.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from pillarbox.brokers.partitions import Partition
from pillarbox.core.message import Delivery, Message
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected, PublishTimeout
from pillarbox.ports import Outcome

TIMEOUT = timedelta(seconds=0.5)


class Broken(Exception):
    """What a defect raises where a sound broker would not."""


@dataclass(frozen=True, slots=True)
class Defect:
    """A broken broker, and the names of the rules that it breaks."""

    name: str
    broker: Callable[[], MemoryBroker]
    publisher_rules: tuple[str, ...] = ()
    subscriber_rules: tuple[str, ...] = ()


DEFECTS: list[Defect] = []


def breaks(*rules: str, publisher: Sequence[str] = (), subscriber: Sequence[str] = ()) -> Callable[[type], type]:
    """Register a defect: the class's name says what it does; `rules` belong to the side that the class is of."""

    def register(broken: type) -> type:
        name = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in broken.__name__).strip()
        of_publisher, of_subscriber = tuple(publisher), tuple(subscriber)
        if issubclass(broken, MemoryPublisher):
            of_publisher += rules
        elif issubclass(broken, MemorySubscriber):
            of_subscriber += rules
        DEFECTS.append(Defect(name, lambda: _broker(broken), of_publisher, of_subscriber))
        return broken

    return register


def _broker(broken: type) -> MemoryBroker:
    if issubclass(broken, MemoryBroker):
        return broken(publish_timeout=TIMEOUT)
    broker = MemoryBroker(publish_timeout=TIMEOUT)
    if issubclass(broken, MemoryPublisher):
        broker.publisher = lambda: broken(broker)  # type: ignore[method-assign]
    elif issubclass(broken, MemorySubscriber):
        broker.subscriber = lambda consumer, topics: broken(broker, consumer, topics)  # type: ignore[method-assign]
    return broker


# What the broker itself does wrong: both ends see it.


@breaks(
    publisher=["test_bodies_arrive_byte_for_byte"],
    subscriber=["test_a_message_arrives_unchanged"],
)
class StripsBodies(MemoryBroker):
    def store(self, message: Message) -> None:
        super().store(message._replace(body=message.body.strip(b" \x00")))


@breaks(
    publisher=["test_headers_arrive_unchanged"],
    subscriber=["test_a_message_arrives_unchanged"],
)
class DropsEmptyHeaders(MemoryBroker):
    def store(self, message: Message) -> None:
        super().store(message._replace(headers={name: text for name, text in message.headers.items() if text}))


@breaks(
    publisher=["test_keys_arrive_unchanged"],
    subscriber=["test_a_message_without_a_key_arrives_without_one"],
)
class WritesNoKeyAsAnEmptyOne(MemoryBroker):
    def store(self, message: Message) -> None:
        super().store(message._replace(key=message.key or ""))


@breaks(
    publisher=["test_a_message_goes_to_its_topic"],
    subscriber=["test_several_topics_are_delivered"],
)
class PutsEverythingIntoOneTopic(MemoryBroker):
    def store(self, message: Message) -> None:
        super().store(message._replace(topic="orders"))


@breaks(
    publisher=[
        "test_an_outcome_without_error_comes_after_the_message_is_stored",
        "test_a_healthy_broker_accepts_everything",
        "test_what_was_acknowledged_survives_a_kill",
    ],
    subscriber=["test_everything_published_is_delivered"],
)
class DropsTheLastOfASend(MemoryBroker):
    def receive(self, messages: Sequence[Message]) -> list[Outcome]:
        outcomes = super().receive(messages[:-1])
        return [*outcomes, *(Outcome(message.ticket, None) for message in messages[-1:])]


@breaks(publisher=["test_a_send_keeps_the_order_of_a_key"], subscriber=["test_a_key_comes_in_the_order_of_the_broker"])
class ReversesASend(MemoryBroker):
    def receive(self, messages: Sequence[Message]) -> list[Outcome]:
        return super().receive(messages[::-1])


@breaks(publisher=["test_a_refused_message_is_not_stored_and_told_as_rejected"])
class StoresWhatItRefuses(MemoryBroker):
    def receive(self, messages: Sequence[Message]) -> list[Outcome]:
        outcomes = super().receive(messages)
        refused = {outcome.ticket for outcome in outcomes if outcome.error}
        for message in messages:
            if message.ticket in refused:
                self.store(message)
        return outcomes


@breaks(
    publisher=[
        "test_of_a_key_nothing_is_stored_behind_a_refused_message",
        "test_when_it_goes_away_midway_a_prefix_of_each_key_is_stored",
    ]
)
class AcceptsBehindAFailure(MemoryBroker):
    def receive(self, messages: Sequence[Message]) -> list[Outcome]:
        outcomes = []
        for message in messages:
            outcomes += super().receive([message])
            self.down = False  # only a blink
        return outcomes


@breaks(publisher=["test_a_refused_message_does_not_harm_other_keys"])
class RefusesAWholeSend(MemoryBroker):
    def receive(self, messages: Sequence[Message]) -> list[Outcome]:
        if any(picks(message) for picks, _ in self._refusals for message in messages):
            return [Outcome(message.ticket, PublishRejected("one of them was bad")) for message in messages]
        return super().receive(messages)


@breaks(publisher=["test_what_stands_behind_a_refused_message_is_not_refused_for_good"])
class RefusesTheFollowersToo(MemoryBroker):
    def receive(self, messages: Sequence[Message]) -> list[Outcome]:
        return [
            Outcome(ticket, PublishRejected(str(error))) if type(error) is PublishError else Outcome(ticket, error)
            for ticket, error in super().receive(messages)
        ]


@breaks(publisher=["test_a_refused_message_does_not_harm_the_next_send"])
class NeverForgivesAKey(MemoryBroker):
    def receive(self, messages: Sequence[Message]) -> list[Outcome]:
        outcomes = super().receive(messages)
        for message, outcome in zip(messages, outcomes, strict=False):
            if outcome.error:
                self.refuse(lambda other, key=message.key: other.key == key, outcome.error)  # type: ignore[misc]
        return outcomes


@breaks(publisher=["test_when_it_goes_away_midway_nothing_is_accepted_that_is_not_stored"])
class AcceptsTheRestOfASendUnseen(MemoryBroker):
    def receive(self, messages: Sequence[Message]) -> list[Outcome]:
        outcomes = super().receive(messages)
        if any(outcome.error is None for outcome in outcomes):
            return [Outcome(ticket, None) for ticket, _ in outcomes]
        return outcomes


# What a publisher does wrong.


@breaks("test_every_message_gets_exactly_one_outcome", "test_a_lost_answer_is_not_given_later")
class AnswersTwice(MemoryPublisher):
    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = await super().outcomes()
        return [*outcomes, *outcomes]


@breaks("test_every_message_gets_exactly_one_outcome")
class NeverAnswersTheLast(MemoryPublisher):
    async def outcomes(self) -> Sequence[Outcome]:
        return (await super().outcomes())[:-1]


@breaks("test_an_empty_send_gets_none")
class AnswersAnEmptySend(MemoryPublisher):
    def send(self, messages: Sequence[Message]) -> None:
        super().send(messages or [Message("nothing", None, {}, b"")])


@breaks(
    "test_an_outcome_without_error_comes_after_the_message_is_stored",
    "test_what_was_acknowledged_survives_a_kill",
)
class AcknowledgesBeforeItStores(MemoryPublisher):
    def send(self, messages: Sequence[Message]) -> None:
        send = self._sends.begin(messages)
        self._sends.answer(send, [Outcome(message.ticket, None) for message in messages])
        asyncio.get_running_loop().call_later(0.1, self._broker.receive, messages)


@breaks(
    "test_sends_in_flight_together_keep_their_order",
    "test_closing_with_sends_in_flight_returns_and_keeps_the_order",
)
class LetsSendsOvertake(MemoryPublisher):
    def _arrive(self) -> None:
        self._travelling.insert(0, self._travelling.pop())
        super()._arrive()

    async def close(self) -> None:
        await asyncio.sleep(1)


@breaks("test_handing_over_does_not_wait", "test_sends_in_flight_together_keep_their_order")
class ForgetsASecondSendInFlight(MemoryPublisher):
    def send(self, messages: Sequence[Message]) -> None:
        if not self._travelling:
            super().send(messages)


@breaks("test_a_wait_that_is_cancelled_loses_no_outcome")
class LosesOutcomesWhenCancelled(MemoryPublisher):
    async def outcomes(self) -> Sequence[Outcome]:
        try:
            return await super().outcomes()
        except asyncio.CancelledError:
            self._sends._outcomes.clear()
            for send in list(self._sends._flying):
                send.unanswered.clear()
            raise


@breaks("test_it_says_whether_it_is_prefix_safe")
class DoesNotKnowThatItIsPrefixSafe(MemoryPublisher):
    prefix_safe = False


@breaks(
    "test_while_it_is_away_the_outcome_says_so",
    "test_a_silent_broker_is_away_once_the_timeout_has_passed",
    "test_a_send_whose_answer_is_lost_counts_as_away",
)
class CountsAnOutageAsAnAttempt(MemoryPublisher):
    async def outcomes(self) -> Sequence[Outcome]:
        return [
            Outcome(ticket, PublishTimeout(str(error)) if isinstance(error, BrokerUnavailable) else error)
            for ticket, error in await super().outcomes()
        ]


@breaks("test_a_single_lost_answer_is_a_timeout")
class TakesASingleLostAnswerForAnOutage(MemoryPublisher):
    async def outcomes(self) -> Sequence[Outcome]:
        return [
            Outcome(ticket, BrokerUnavailable(str(error)) if isinstance(error, PublishTimeout) else error)
            for ticket, error in await super().outcomes()
        ]


@breaks("test_after_an_outage_it_works_again", "test_after_a_silence_it_works_again")
class NeverComesBack(MemoryPublisher):
    gone = False

    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = await super().outcomes()
        self.gone |= any(isinstance(outcome.error, BrokerUnavailable) for outcome in outcomes)
        return [Outcome(ticket, BrokerUnavailable("gone")) for ticket, _ in outcomes] if self.gone else outcomes


@breaks(
    "test_a_silent_broker_is_away_once_the_timeout_has_passed",
    "test_a_send_whose_answer_is_lost_counts_as_away",
)
class WaitsForEver(MemoryPublisher):
    def __init__(self, broker: MemoryBroker) -> None:
        super().__init__(broker)
        self._sends._timeout = 1e6

    def _arrive(self) -> None:
        if self._broker.latency() > 0:
            return
        super()._arrive()


@breaks("test_a_lost_answer_is_not_given_later")
class GivesLostAnswersLater(MemoryPublisher):
    late: Sequence[Outcome] = ()

    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = [*await super().outcomes(), *self.late]
        self.late = [Outcome(ticket, None) for ticket, error in outcomes if error]
        return outcomes


@breaks("test_closing_with_sends_in_flight_returns_and_keeps_the_order")
class HangsWhenClosedInFlight(MemoryPublisher):
    async def close(self) -> None:
        if self._travelling:
            await asyncio.sleep(3600)


@breaks("test_closing_twice_is_harmless")
class ClosesOnceOnly(MemoryPublisher):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise Broken("closed already")
        self.closed = True


# What a subscriber does wrong.


@breaks("test_a_key_comes_in_the_order_of_the_broker", "test_a_key_keeps_its_order_when_it_changes_hands")
class DeliversBackwards(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return (await super().deliveries(room, patience))[::-1]


@breaks("test_everything_published_is_delivered")
class SkipsEveryThird(MemorySubscriber):
    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return [delivery for delivery in await super().deliveries(room, patience) if delivery.place.id % 3]


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
