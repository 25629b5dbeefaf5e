"""What Kafka's client says of a message at once, without any broker."""

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from pillarbox.brokers.kafka.carrier import Carrier
from pillarbox.brokers.kafka.client import make_producer
from pillarbox.brokers.kafka.flight import Flight
from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.brokers.kafka.publisher import KafkaPublisher
from pillarbox.brokers.sends import Send
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishRejected


async def test_a_topic_with_too_long_a_name_is_refused_for_good() -> None:
    """As one that is away it would be tried for ever, and everything behind it would wait."""
    options = KafkaOptions.read("//127.0.0.1:1", {})
    publisher = KafkaPublisher(options, publish_timeout=timedelta(seconds=5))
    publisher.send([Message("漢" * 255, "7", {"id": "1", "type": "Placed"}, b"{}", 1)])
    outcomes: Any = await publisher.outcomes()
    await publisher.close()
    [(ticket, error)] = outcomes
    assert ticket == 1
    assert isinstance(error, PublishRejected)
    assert "249 characters" in str(error)


async def test_nothing_is_stored_before_kafka_has_reported_it() -> None:
    """The client takes it at once, and nobody is there: what it keeps in memory is nowhere else."""
    options = KafkaOptions.read("//127.0.0.1:1", {})
    publisher = KafkaPublisher(options, publish_timeout=timedelta(seconds=1))
    publisher.send([Message("orders", "7", {"id": "1", "type": "Placed"}, b"{}", 1)])
    outcomes: Any = await publisher.outcomes()
    await publisher.close()
    [(ticket, error)] = outcomes
    assert ticket == 1
    assert isinstance(error, BrokerUnavailable)


MAKES = "pillarbox.brokers.kafka.carrier.make_producer"


class Hanging:
    """A client that is full, and comes back from its first wait only when it is let go: then with an error, or not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.waits, self.let_go, self.produced = threading.Event(), threading.Event(), list[str]()
        self._error = error

    def produce(self, topic: str, *more: Any, **named: Any) -> None:
        self.produced.append(topic)
        raise BufferError

    def flush(self, seconds: float) -> None:
        self.waits.set()
        assert self.let_go.wait(30)
        if self._error is not None:
            raise self._error

    def purge(self, **named: Any) -> None:
        """Nothing is in it."""


def message(topic: str) -> Message:
    return Message(topic, "7", {"id": "1", "type": "Placed"}, b"{}", 1)


def test_one_that_is_abandoned_hands_over_nothing_when_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one sends all of it by then: what it sent too would overtake that."""
    client = Hanging()
    monkeypatch.setattr(MAKES, lambda *given, **more: client)
    carrier = Carrier(KafkaOptions.read("//127.0.0.1:1", {}), 1, lambda answers: None)
    for topic in ("first", "second"):
        carrier.send(Flight(Send([message(topic)], 0), time.monotonic() + 1))
    thread = threading.Thread(target=carrier.run)
    thread.start()
    assert client.waits.wait(30)
    carrier.abandon()
    client.let_go.set()
    thread.join(30)
    assert not thread.is_alive()
    assert "second" not in client.produced


async def test_the_death_of_one_that_was_replaced_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, make = Hanging(RuntimeError("late")), make_producer
    clients: list[Any] = [stuck]
    monkeypatch.setattr(MAKES, lambda *given, **more: clients.pop() if clients else make(*given))
    publisher = KafkaPublisher(KafkaOptions.read("//127.0.0.1:1", {}), publish_timeout=timedelta(seconds=0.5))
    said = ""
    while "Kafka at" not in said:  # as only one that comes back says
        publisher.send([message("orders")])
        [(_, error)] = await publisher.outcomes()
        said = str(error)
    stuck.let_go.set()
    async with asyncio.timeout(30):
        while sum(thread.name == "publisher to kafka" for thread in threading.enumerate()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    publisher.send([message("orders")])
    [(_, error)] = await publisher.outcomes()
    await publisher.close()
    assert isinstance(error, BrokerUnavailable)
