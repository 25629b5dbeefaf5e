"""Brokers that store something else than what they were sent, or answer something else: both ends see it."""

from collections.abc import Sequence

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.message import Message
from pillarbox.errors import PublishError, PublishRejected
from pillarbox.ports import Outcome
from pillarbox.testing.contracts.broker_defect import Defect, into

DEFECTS: list[Defect] = []
breaks = into(DEFECTS)


@breaks(
    publisher=["test_bodies_arrive_byte_for_byte"],
    subscriber=["test_a_message_arrives_unchanged"],
)
class StripsBodies(MemoryBroker):
    def store(self, message: Message) -> None:
        super().store(message._replace(body=message.body.strip(b" \x00")))


@breaks(publisher=["test_bodies_arrive_byte_for_byte"])
class CutsLargeBodies(MemoryBroker):
    def store(self, message: Message) -> None:
        super().store(message._replace(body=message.body[: 64 << 10]))


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
