"""A function of the user's own, sync or async, keeps the publisher's contract."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.function import FunctionPublisher
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract, PublisherFeatures
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of


class FunctionBench:
    """The function's own broker: a list."""

    features = PublisherFeatures(goes_away=True, goes_away_midway=True, falls_silent=True, loses_answers=True)

    def __init__(self) -> None:
        self._stored: list[Message] = []
        self._opened: list[FunctionPublisher] = []
        self.room: int | None = None
        self.silent = self.losing = False

    def function(self) -> Callable[[list[Message]], object]:
        raise NotImplementedError

    def publisher(self) -> Publisher:
        self._opened.append(FunctionPublisher(self.function(), publish_timeout=timedelta(seconds=0.3)))
        return self._opened[-1]

    def keep(self, messages: list[Message]) -> None:
        for message in messages:
            if self.room == 0:
                raise BrokerUnavailable("the bench is away")
            self._stored.append(message)
            if self.room is not None:
                self.room -= 1

    async def stored(self) -> Sequence[Message]:
        return list(self._stored)

    async def go_away(self) -> None:
        self.room = 0

    async def go_away_midway(self) -> None:
        self.room = 10

    async def fall_silent(self) -> None:
        self.silent = True

    async def lose_answers(self, which: Sequence[int] | None) -> None:
        self.losing = True

    async def come_back(self) -> None:
        self.room, self.silent, self.losing = None, False, False

    async def close(self) -> None:
        await self.come_back()
        for publisher in self._opened:
            await publisher.close()


class AsyncFunctionBench(FunctionBench):
    def function(self) -> Callable[[list[Message]], object]:
        async def publish(messages: list[Message]) -> None:
            if self.silent:
                await asyncio.Event().wait()
            self.keep(messages)
            if self.losing:
                await asyncio.Event().wait()

        return publish


class SyncFunctionBench(FunctionBench):
    def __init__(self) -> None:
        super().__init__()
        self._back = threading.Event()

    def function(self) -> Callable[[list[Message]], object]:
        def publish(messages: list[Message]) -> None:
            if self.silent:
                assert self._back.wait(20)
                return
            self.keep(messages)
            if self.losing:
                assert self._back.wait(20)

        return publish

    async def come_back(self) -> None:
        await super().come_back()
        self._back.set()


@pytest.mark.parametrize("bench", [AsyncFunctionBench, SyncFunctionBench])
@pytest.mark.parametrize("rule", rules_of(PublisherContract, FunctionBench.features))
async def test_the_function_publisher_keeps_the_rule(rule: str, bench: type[FunctionBench]) -> None:
    await check(PublisherContract, rule, bench())


@pytest.mark.parametrize("bench", [AsyncFunctionBench, SyncFunctionBench])
@pytest.mark.parametrize("rule", rules_of(RelayContract, FunctionBench.features))
async def test_a_relay_over_a_function_keeps_the_rule(rule: str, bench: type[FunctionBench]) -> None:
    await check(RelayContract, rule, bench())
