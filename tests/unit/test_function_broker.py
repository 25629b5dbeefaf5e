"""The function broker: what its function is given, and what its exceptions mean."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from pillarbox.brokers.function import FunctionPublisher
from pillarbox.core.message import Message
from pillarbox.core.retry import brief_of
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected
from pillarbox.testing.contracts.publisher import answers, batch, errors


def publisher_of(function: Callable[[list[Message]], Any], seconds: float = 5) -> FunctionPublisher:
    return FunctionPublisher(function, publish_timeout=timedelta(seconds=seconds))


async def test_the_function_is_given_a_list_of_messages_without_tickets() -> None:
    given: list[object] = []
    publisher = publisher_of(given.append)
    publisher.send(batch("ab"))
    await answers(publisher, 2)
    assert given == [[message._replace(ticket=0) for message in batch("ab")]]
    await publisher.close()


async def test_a_sync_function_does_not_run_on_the_loop() -> None:
    threads: list[threading.Thread] = []
    publisher = publisher_of(lambda _: threads.append(threading.current_thread()))
    publisher.send(batch("a"))
    await answers(publisher, 1)
    assert threads[0] is not threading.current_thread()
    await publisher.close()


class Doorman:
    """An object that is called, and a method that is bound."""

    def __init__(self) -> None:
        self.given: list[Message] = []

    async def __call__(self, messages: list[Message]) -> None:
        await asyncio.sleep(0)
        self.given += messages

    async def publish(self, messages: list[Message]) -> None:
        await self(messages)


@pytest.mark.parametrize(
    "shape",
    [
        lambda doorman: doorman,
        lambda doorman: doorman.publish,
        lambda doorman: partial(doorman.publish),
        lambda doorman: lambda messages: doorman.publish(messages),
    ],
    ids=["object", "method", "partial", "lambda"],
)
async def test_whatever_is_awaitable_is_awaited(shape: Callable[[Doorman], Callable[[list[Message]], Any]]) -> None:
    doorman = Doorman()
    publisher = publisher_of(shape(doorman))
    publisher.send(batch("ab"))
    assert errors(await answers(publisher, 2)) == {1: None, 2: None}
    assert len(doorman.given) == 2
    await publisher.close()


async def test_an_exception_fails_the_batch_and_is_told_by_its_name() -> None:
    async def publish(messages: list[Message]) -> None:
        raise ValueError("no such bucket")

    publisher = publisher_of(publish)
    publisher.send(batch("ab"))
    outcomes = await answers(publisher, 2)
    assert errors(outcomes) == {1: PublishError, 2: PublishError}
    error = outcomes[0].error
    assert error is not None
    assert "publish raised ValueError: no such bucket" in str(error)
    assert error.brief is not None
    assert "publish raised ValueError at test_function_broker.py, line " in error.brief
    assert "bucket" not in error.brief
    await publisher.close()


@pytest.mark.parametrize("error", [PublishRejected("never"), BrokerUnavailable("later")], ids=repr)
async def test_a_publish_error_means_what_it_says(error: PublishError) -> None:
    def publish(messages: list[Message]) -> None:
        raise error

    publisher = publisher_of(publish)
    publisher.send(batch("a"))
    assert (await answers(publisher, 1))[0].error is error
    await publisher.close()


@pytest.mark.parametrize("error", [TimeoutError("its own"), asyncio.CancelledError()], ids=repr)
async def test_a_timeout_or_a_cancellation_of_its_own_is_a_failure_not_an_outage(error: BaseException) -> None:
    async def publish(messages: list[Message]) -> None:
        raise error

    publisher = publisher_of(publish)
    publisher.send(batch("a"))
    publisher.send(batch("b", first=2))
    assert errors(await answers(publisher, 2)) == {1: PublishError, 2: PublishError}
    await publisher.close()


async def test_one_call_at_a_time() -> None:
    running = most = 0

    async def publish(messages: list[Message]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1

    publisher = publisher_of(publish)
    for ticket in range(5):
        publisher.send(batch("a", first=ticket))
    await answers(publisher, 5)
    assert most == 1
    await publisher.close()


async def test_a_sync_function_that_hangs_keeps_later_calls_from_overtaking() -> None:
    release, returned, calls = threading.Event(), threading.Event(), list[bytes]()

    def publish(messages: list[Message]) -> None:
        if not calls:
            calls.append(b"hangs")
            assert release.wait(20)
            returned.set()
        else:
            calls.append(messages[0].body)

    publisher = publisher_of(publish, 0.2)
    publisher.send(batch("a"))
    assert errors(await answers(publisher, 1)) == {1: BrokerUnavailable}
    publisher.send(batch("a", first=2))
    assert errors(await answers(publisher, 1)) == {2: BrokerUnavailable}
    assert calls == [b"hangs"], "a second call was made while the first was under way"
    release.set()
    assert await asyncio.to_thread(returned.wait, 20)
    publisher.send(batch("a", first=3))
    assert errors(await answers(publisher, 1)) == {3: None}
    assert calls == sorted(calls, key=[b"hangs", b"a2", b"a3"].index), "a call has overtaken another"
    await publisher.close()


async def test_a_send_that_waited_too_long_is_not_called() -> None:
    called: list[bytes] = []

    async def publish(messages: list[Message]) -> None:
        called.append(messages[0].body)
        await asyncio.Event().wait()

    publisher = publisher_of(publish, 0.1)
    publisher.send(batch("a"))
    publisher.send(batch("b", first=2))
    assert errors(await answers(publisher, 2)) == {1: BrokerUnavailable, 2: BrokerUnavailable}
    await asyncio.sleep(0)
    assert called == [b"a1"]
    await publisher.close()


async def test_closing_answers_what_is_under_way() -> None:
    async def publish(messages: list[Message]) -> None:
        await asyncio.Event().wait()

    publisher = publisher_of(publish)
    publisher.send(batch("a"))
    await asyncio.sleep(0)
    await publisher.close()
    assert errors(await answers(publisher, 1)) == {1: BrokerUnavailable}


class Wordless(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


ODD = [StopIteration(5), GeneratorExit(), SystemExit(3), KeyboardInterrupt(), Wordless(), ValueError("half \ud800")]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
async def test_whatever_a_sync_function_raises_is_a_counted_failure(error: BaseException) -> None:
    def publish(messages: list[Message]) -> None:
        raise error

    await counted(publish, type(error).__name__)


@pytest.mark.parametrize("error", [GeneratorExit(), SystemExit(3), Wordless()], ids=lambda error: type(error).__name__)
async def test_whatever_an_async_function_raises_is_a_counted_failure(error: BaseException) -> None:
    async def publish(messages: list[Message]) -> None:
        raise error

    await counted(publish, type(error).__name__)


async def counted(publish: Callable[[list[Message]], Any], name: str) -> None:
    publisher = publisher_of(publish, 2)
    publisher.send(batch("a"))
    publisher.send(batch("b", first=2))
    outcomes = await answers(publisher, 2)
    assert errors(outcomes) == {1: PublishError, 2: PublishError}
    assert f"raised {name}: " in str(outcomes[0].error)
    assert f"raised {name} at " in brief_of(outcomes[0].error or PublishError())
    await publisher.close()
