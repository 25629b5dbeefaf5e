"""The rules of the relay over a broker: the memory broker keeps them, and each is broken by one that deserves it."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.brokers.memory import MemoryBroker, MemoryPublisher
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected, PublishTimeout
from pillarbox.ports import Outcome
from pillarbox.testing.clock import ManualClock, simulate
from pillarbox.testing.contracts import relay
from pillarbox.testing.contracts.memory_broker import MemoryPublisherBench
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of

RULES = rules_of(RelayContract, MemoryPublisherBench.features)
OUTAGES = "test_outages_lose_nothing_count_nothing_and_end_by_themselves"
A_DAY = timedelta(days=1).total_seconds()


class Bench(MemoryPublisherBench):
    """On a clock of its own, so that waiting costs no time; some way off, so that there is a middle of a batch."""

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        super().__init__(broker)
        self.clock = ManualClock()
        self.broker.latency = _a_moment

    async def come_back(self) -> None:
        await super().come_back()
        self.broker.latency = _a_moment

    start_again = come_back


def _a_moment() -> float:
    return 0.005


def keep(rule: str, bench: Bench) -> None:
    simulate(check(RelayContract, rule, bench), bench.clock)


@pytest.mark.parametrize("rule", RULES)
def test_a_relay_over_the_memory_broker_keeps_the_rule(rule: str) -> None:
    keep(rule, Bench())


@pytest.mark.soak
def test_an_outage_of_a_day_loses_nothing_counts_nothing_and_ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "OUTAGES", (A_DAY,))
    monkeypatch.setattr(relay, "SOME", 5)
    bench = Bench()
    keep(OUTAGES, bench)
    assert A_DAY < bench.clock.elapsed < A_DAY + 60


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


class TellsAnOutageAsARefusal(Tells):
    wrongly = (BrokerUnavailable, PublishRejected)


class TellsATimeoutAsARefusal(Tells):
    wrongly = (PublishTimeout, PublishRejected)


class TellsATimeoutAsAnAcceptance(MemoryPublisher):
    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = await super().outcomes()
        return [Outcome(ticket, None if isinstance(error, PublishTimeout) else error) for ticket, error in outcomes]


class TellsARefusalAsAnOutage(Tells):
    wrongly = (PublishRejected, BrokerUnavailable)


class SendsAgainByItself(MemoryPublisher):
    """As long as nobody answers, be it that the relay does not wait any more."""

    def _arrive(self) -> None:
        _, send = self._travelling[0]
        super()._arrive()
        if send.unanswered or send.deadline < asyncio.get_running_loop().time():
            self._broker.receive(send.messages)
            self._broker.receive(send.messages)


class HoardsWhatItSends(MemoryPublisher):
    hoard: list[Any] = []

    def send(self, messages: Sequence[Message]) -> None:
        self.hoard.append(bytearray(len(messages) << 14))
        super().send(messages)


BROKEN = [
    (LosesOneInAHundred, "test_everything_arrives_once_and_in_order"),
    (StoresBackwards, "test_everything_arrives_once_and_in_order"),
    (TellsAnOutageAsATimeout, "test_acknowledgements_that_are_lost_make_copies_and_lose_nothing"),
    (SendsAgainByItself, "test_acknowledgements_that_are_lost_make_copies_and_lose_nothing"),
    (TellsATimeoutAsARefusal, "test_of_a_thousand_a_hundred_acknowledgements_are_lost"),
    (TellsATimeoutAsAnAcceptance, "test_of_a_thousand_a_hundred_acknowledgements_are_lost"),
    (TellsAnOutageAsATimeout, OUTAGES),
    (TellsAnOutageAsARefusal, "test_a_silence_in_mid_batch_leaves_the_first_of_each_aggregate"),
    (StoresBackwards, "test_a_silence_in_mid_batch_leaves_the_first_of_each_aggregate"),
    (SendsAgainByItself, "test_a_silence_in_mid_batch_leaves_the_first_of_each_aggregate"),
    (TellsATimeoutAsARefusal, "test_an_event_that_times_out_holds_back_its_aggregate_alone_and_goes_first"),
    (TellsATimeoutAsAnAcceptance, "test_an_event_that_times_out_holds_back_its_aggregate_alone_and_goes_first"),
    (TellsARefusalAsAnOutage, "test_a_refused_event_is_dead_at_once_and_holds_back_its_aggregate_alone"),
    (TellsAnOutageAsATimeout, "test_a_broker_killed_three_times_in_mid_batch_loses_nothing"),
    (LosesOneInAHundred, "test_a_broker_killed_three_times_in_mid_batch_loses_nothing"),
    (HoardsWhatItSends, "test_a_broker_killed_three_times_in_mid_batch_loses_nothing"),
]


@pytest.mark.parametrize(("broken", "rule"), BROKEN)
def test_the_rule_notices_the_defect(broken: type[MemoryPublisher], rule: str) -> None:
    broker = MemoryBroker(publish_timeout=timedelta(seconds=0.5))
    broker.publisher = lambda: broken(broker)  # type: ignore[method-assign]
    try:
        with pytest.raises(AssertionError):
            keep(rule, Bench(broker))
    finally:
        HoardsWhatItSends.hoard.clear()


def test_no_rule_is_toothless() -> None:
    assert {rule for _, rule in BROKEN} == set(RULES)
