"""The embedded broker's far end keeps the subscriber's contract."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.brokers.sqlite import SqlitePublisher, SqliteSubscriber
from pillarbox.core.message import Message
from pillarbox.ports import Subscriber
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.clock import ManualClock
from pillarbox.testing.contracts.publisher import answers
from pillarbox.testing.contracts.rules import check, rules_of
from pillarbox.testing.contracts.subscriber import SubscriberContract, SubscriberFeatures


class SqliteSubscriberBench:
    features = SubscriberFeatures(shares_keys=True, tells_redelivery=True, notices_death=True, expels=True)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self._publisher = SqlitePublisher(path, publish_timeout=timedelta(seconds=10), hooks=Hooks())
        self._opened: list[SqliteSubscriber] = []

    async def publish(self, messages: Sequence[Message]) -> None:
        self._publisher.send(messages)
        await answers(self._publisher, len(messages))

    def subscriber(self, consumer: str, topics: Sequence[str]) -> Subscriber:
        subscriber = SqliteSubscriber(self.path, consumer=consumer, topics=topics, hooks=Hooks(), clock=self.clock)
        self._opened.append(subscriber)
        return subscriber

    async def kill(self, subscriber: Subscriber) -> None:
        """Do what the kernel does to a process that dies: close its files and free its locks, nothing else."""
        assert isinstance(subscriber, SqliteSubscriber)
        if not subscriber._closed:
            await subscriber._in_worker(subscriber._member.vanish)
            subscriber._closed = True

    async def expel(self, subscriber: Subscriber) -> None:
        self.clock.advance(16)

    async def go_away(self) -> None:
        raise NotImplementedError  # whoever holds the file's write lock keeps nobody from reading

    async def come_back(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await self._publisher.close()
        for subscriber in self._opened:
            await subscriber.close()


@pytest.mark.parametrize("rule", rules_of(SubscriberContract, SqliteSubscriberBench.features))
async def test_the_embedded_subscriber_keeps_the_rule(rule: str, tmp_path: Path) -> None:
    await check(SubscriberContract, rule, SqliteSubscriberBench(tmp_path / "stream.db"))
