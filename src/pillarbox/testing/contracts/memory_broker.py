"""The memory broker on the bench: how the contracts' faults are asked of it. An example for benches of one's own."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from pillarbox.brokers.memory import MemoryBroker, MemoryPublisher, MemorySubscriber
from pillarbox.brokers.partitions import PARTITIONS
from pillarbox.core.message import Message
from pillarbox.errors import PublishRejected
from pillarbox.ports import Publisher, Subscriber
from pillarbox.testing.contracts.publisher import PublisherFeatures, answers
from pillarbox.testing.contracts.subscriber import SubscriberFeatures

PUBLISHER_FEATURES = PublisherFeatures(
    prefix_safe=True,
    durable=True,
    refuses=True,
    goes_away=True,
    goes_away_midway=True,
    falls_silent=True,
    loses_answers=True,
    loses_single_answers=True,
    dies=True,
)
SUBSCRIBER_FEATURES = SubscriberFeatures(
    shares_keys=True, tells_redelivery=True, notices_death=True, expels=True, goes_away=True
)
STANDBY_FEATURES = replace(SUBSCRIBER_FEATURES, shares_keys=False, stands_by=True)


class MemoryPublisherBench:
    """A bench for `MemoryBroker.publisher`."""

    features = PUBLISHER_FEATURES

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker(publish_timeout=timedelta(seconds=0.5))
        self._opened: list[MemoryPublisher] = []

    def publisher(self) -> Publisher:
        self._opened.append(self.broker.publisher())
        return self._opened[-1]

    async def stored(self) -> Sequence[Message]:
        return self.broker.messages()

    def refused(self, message: Message) -> Message:
        self.broker.refuse(lambda other: other.body == message.body, PublishRejected("the bench refuses it"))
        return message

    async def go_away(self) -> None:
        self.broker.down = True

    async def go_away_midway(self) -> None:
        self.broker.go_down_after(10)

    async def fall_silent(self) -> None:
        self.broker.latency = lambda: 0.7

    async def lose_answers(self, which: Sequence[int] | None) -> None:
        self.broker.lose_answers(1000 if which is None else which)

    async def kill(self) -> None:
        self.broker.down = True

    async def start_again(self) -> None:
        self.broker.heal()

    async def come_back(self) -> None:
        self.broker.heal()

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        publisher = self.broker.publisher()
        publisher.send(messages)
        await answers(publisher, len(messages))

    async def close(self) -> None:
        for publisher in self._opened:
            await publisher.close()


class MemorySubscriberBench:
    """A bench for `MemoryBroker.subscriber`."""

    features = SUBSCRIBER_FEATURES

    def __init__(self, broker: MemoryBroker | None = None) -> None:
        self.broker = broker or MemoryBroker()
        self._opened: list[MemorySubscriber] = []

    async def publish(self, messages: Sequence[Message]) -> None:
        publisher = self.broker.publisher()
        publisher.send(messages)
        await answers(publisher, len(messages))

    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber:
        self._opened.append(self.broker.subscriber(consumer, topics))
        return self._opened[-1]

    async def kill(self, subscriber: Subscriber) -> None:
        assert isinstance(subscriber, MemorySubscriber)
        subscriber.crash()

    async def expel(self, subscriber: Subscriber) -> None:
        assert isinstance(subscriber, MemorySubscriber)
        subscriber.expel()

    async def go_away(self) -> None:
        self.broker.down = True

    async def come_back(self) -> None:
        self.broker.heal()

    async def close(self) -> None:
        for subscriber in self._opened:
            await subscriber.close()


class StandbySubscriber(MemorySubscriber):
    """A member that has all of a topic or nothing of it: what others have it leaves to them."""

    def _balance(self) -> None:
        for topic in self._topics:
            self._take(topic, PARTITIONS)


class StandbySubscriberBench(MemorySubscriberBench):
    """A bench for a broker that does not share keys out."""

    features = STANDBY_FEATURES

    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber:
        self._opened.append(StandbySubscriber(self.broker, consumer, topics))
        return self._opened[-1]
