"""What the server's confirmations and returns mean for the messages in flight."""

import pytest

from pillarbox.brokers.rabbitmq.address import Address
from pillarbox.brokers.rabbitmq.flight import Flight
from pillarbox.brokers.rabbitmq.frames import Writer
from pillarbox.brokers.sends import Send
from pillarbox.core.message import Message
from pillarbox.errors import PublishRejected
from pillarbox.testing.contracts.publisher import batch, errors


class InFlight:
    """Five messages in flight, tickets 1 to 5 with the tags 1 to 5, and what was answered."""

    def __init__(self, messages: list[Message]) -> None:
        self.answered: dict[int, type | None] = {}
        self.flight = Flight(
            Address.parse("rabbitmq://localhost"),
            lambda send, outcomes: self.answered.update(errors(outcomes)),
            lambda flight, error: None,
        )
        self.flight._writer = Writer("", mandatory=True, persistent=True, frame_max=131_072)
        send = Send(messages, 0.0)
        for message in messages:
            self.flight.board((send, message))


@pytest.fixture
async def five() -> InFlight:
    return InFlight(batch("abcde"))


async def test_a_confirmation_is_for_that_message_alone(five: InFlight) -> None:
    five.flight.confirmed(3, False, True)
    assert five.answered == {3: None}


async def test_a_confirmation_of_several_is_for_none_behind_it(five: InFlight) -> None:
    five.flight.confirmed(3, True, True)
    assert five.answered == {1: None, 2: None, 3: None}
    five.flight.confirmed(4, True, False)
    assert five.answered == {1: None, 2: None, 3: None, 4: PublishRejected}


async def test_what_was_confirmed_alone_before_is_not_answered_again(five: InFlight) -> None:
    five.flight.confirmed(2, False, True)
    five.answered.clear()
    five.flight.confirmed(3, True, True)
    assert five.answered == {1: None, 3: None}


async def test_what_was_returned_is_not_accepted_by_its_confirmation(five: InFlight) -> None:
    five.flight.returned("orders-b-2", "orders", "312 NO_ROUTE")
    five.flight.confirmed(5, True, True)
    assert five.answered == {1: None, 2: PublishRejected, 3: None, 4: None, 5: None}


async def test_of_two_with_one_id_the_first_return_is_the_firsts() -> None:
    twice = InFlight([m._replace(headers={"id": "7"}) for m in batch("aa")])
    twice.flight.returned("7", "orders", "312 NO_ROUTE")
    assert twice.answered == {1: PublishRejected}
    twice.flight.returned("7", "orders", "312 NO_ROUTE")
    assert twice.answered == {1: PublishRejected, 2: PublishRejected}


async def test_a_return_of_another_topic_is_somebody_elses(five: InFlight) -> None:
    five.flight.returned("orders-b-2", "mails", "312 NO_ROUTE")
    assert not five.answered
