"""The rules of the relay over a broker: the memory broker keeps them, and each is broken by one that deserves it."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.memory import MemoryBroker, MemoryPublisher
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected, PublishTimeout
from pillarbox.ports import Outcome
from pillarbox.testing.contracts import relay
from pillarbox.testing.contracts.memory_broker import MemoryPublisherBench
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of

RULES = rules_of(RelayContract, MemoryPublisherBench.features)


@pytest.mark.parametrize("rule", RULES)
async def test_a_relay_over_the_memory_broker_keeps_the_rule(rule: str) -> None:
    await check(RelayContract, rule, MemoryPublisherBench())


class LosesOneInAHundred(MemoryPublisher):
    def send(self, messages: Sequence[Message]) -> None:
        lost = [message for message in messages if message.ticket % 100 == 50]
        super().send([message for message in messages if message not in lost])
        send = self._sends.begin(lost)
        self._sends.answer(send, [Outcome(message.ticket, None) for message in lost])


class StoresBackwards(MemoryPublisher):
    def send(self, messages: Sequence[Message]) -> None:
        super().send(messages[::-1])


class Tells(MemoryPublisher):
    """Takes one kind of error for another."""

    wrongly: tuple[type[PublishError], type[PublishError]]

    async def outcomes(self) -> Sequence[Outcome]:
        before, after = self.wrongly
        return [
            Outcome(ticket, after(str(error)) if isinstance(error, before) else error)
            for ticket, error in await super().outcomes()
        ]


class TellsAnOutageAsATimeout(Tells):
    wrongly = (BrokerUnavailable, PublishTimeout)


class TellsARefusalAsAnOutage(Tells):
    wrongly = (PublishRejected, BrokerUnavailable)


BROKEN = [
    (LosesOneInAHundred, "test_everything_arrives_once_and_in_order"),
    (StoresBackwards, "test_everything_arrives_once_and_in_order"),
    (TellsAnOutageAsATimeout, "test_acknowledgements_that_are_lost_make_copies_and_lose_nothing"),
    (TellsAnOutageAsATimeout, "test_an_outage_loses_nothing_counts_nothing_and_ends_by_itself"),
    (TellsARefusalAsAnOutage, "test_a_refused_event_is_dead_at_once_and_holds_back_its_aggregate_alone"),
]


@pytest.mark.parametrize(("broken", "rule"), BROKEN)
async def test_the_rule_notices_the_defect(
    broken: type[MemoryPublisher], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LONG", 5.0)
    broker = MemoryBroker(publish_timeout=timedelta(seconds=0.5))
    broker.publisher = lambda: broken(broker)  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        await check(RelayContract, rule, MemoryPublisherBench(broker))


def test_no_rule_is_toothless() -> None:
    assert {rule for _, rule in BROKEN} == set(RULES)
