"""Publishers that answer wrongly, lose the order, mistake an outage for something else, or cannot be closed."""

import asyncio
from collections.abc import Sequence

from pillarbox.brokers.memory import MemoryBroker, MemoryPublisher
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishError, PublishTimeout
from pillarbox.ports import Outcome
from pillarbox.testing.contracts.broker_defect import Broken, Defect, into

DEFECTS: list[Defect] = []
breaks = into(DEFECTS)


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
    "test_when_it_goes_away_midway_what_is_not_accepted_is_told_as_away",
)
class CountsAnOutageAsAnAttempt(MemoryPublisher):
    async def outcomes(self) -> Sequence[Outcome]:
        return [
            Outcome(ticket, PublishTimeout(str(error)) if isinstance(error, BrokerUnavailable) else error)
            for ticket, error in await super().outcomes()
        ]


@breaks("test_when_it_goes_away_midway_what_is_not_accepted_is_told_as_away")
class CountsTheRestOfABrokenSend(MemoryPublisher):
    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = await super().outcomes()
        if all(outcome.error for outcome in outcomes):
            return outcomes
        return [Outcome(ticket, PublishError(str(error)) if error else None) for ticket, error in outcomes]


@breaks("test_an_answer_for_several_is_for_none_behind_them")
class TakesAnAnswerForAllThatIsInFlight(MemoryPublisher):
    def _arrive(self) -> None:
        _, send = self._travelling.pop(0)
        answered = self._broker.receive(send.messages)
        if any(outcome.error is None for outcome in answered):
            answered = [Outcome(message.ticket, None) for message in send.messages]
        self._sends.answer(send, answered)


@breaks("test_a_single_lost_answer_is_a_timeout", "test_an_answer_for_several_is_for_none_behind_them")
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
