"""A relay to RabbitMQ through what networks, servers and people do: nothing is lost, and order is kept."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from servers.confirm_loser import ConfirmLoser
from servers.fault_proxy import FaultProxy
from servers.rabbitmq import LARGEST_MESSAGE, RabbitMQ
from tests.conftest import installed
from tests.integration.rabbitmq_shop import RabbitShop, first_copies, in_order, number_of, until

WINDOW = 200
"""Twice the batch."""
EVENTS = 10_000


@pytest.fixture
async def shop(tmp_path: Path, rabbitmq: RabbitMQ, vhost: str) -> RabbitShop:
    shop = RabbitShop(tmp_path, rabbitmq, vhost)
    await shop.open()
    return shop


async def test_a_thousand_events_of_which_a_hundred_confirmations_are_lost(shop: RabbitShop) -> None:
    shop.add(1000, aggregates=50)
    async with ConfirmLoser(shop.server.port) as loser:
        loser.lose(range(5, 1000, 10))
        relay = shop.relay(shop.server.url(shop.vhost, port=loser.port), batch=WINDOW // 2, timeout=1)
        async with relay:
            await shop.until_empty()
        assert loser.lost == 100
    arrived = shop.arrived()
    assert {number_of(message) for message in arrived} == set(range(1000))
    assert in_order(arrived)
    assert 100 <= len(arrived) - 1000 <= 100 + WINDOW
    assert not shop.counts()


async def test_behind_an_event_that_is_refused_its_aggregate_waits_and_others_go(shop: RabbitShop) -> None:
    shop.add(40, aggregates=4)
    shop.add(1, aggregates=4, first=40, payload="x" * LARGEST_MESSAGE)
    shop.add(39, aggregates=4, first=41)
    async with shop.relay():
        await until(lambda: shop.counts().get("blocked", 0) == 9)
    arrived = shop.arrived()
    assert sorted(map(number_of, first_copies(arrived))) == [n for n in range(80) if n % 4 or n < 40]
    assert in_order(arrived)
    assert shop.counts() == {"dead": 1, "blocked": 9}
    (words,) = shop.errors()
    assert "message size" in words


async def test_an_event_whose_confirmation_does_not_come_holds_its_aggregate(shop: RabbitShop) -> None:
    shop.add(80, aggregates=4)
    async with ConfirmLoser(shop.server.port) as loser:
        loser.lose([20])
        async with shop.relay(shop.server.url(shop.vhost, port=loser.port), timeout=1):
            await shop.until_empty()
    arrived = shop.arrived()
    assert len(first_copies(arrived)) == 80
    assert in_order(arrived)
    assert len(arrived) == 81


async def test_unroutable_events_are_dead_in_one_attempt(shop: RabbitShop) -> None:
    shop.server.ask("DELETE", f"queues/{shop.vhost}/order-events")
    shop.add(3, aggregates=3)
    async with shop.relay():
        await until(lambda: shop.counts() == {"dead": 3})
    assert set(shop.errors()) == {"RabbitMQ returned it (312 NO_ROUTE): there is no queue 'order-events'"}


async def test_while_it_is_away_nothing_is_counted_and_then_it_goes_on(shop: RabbitShop) -> None:
    with FaultProxy(shop.server.port) as proxy:
        async with shop.relay(shop.server.url(shop.vhost, port=proxy.port), timeout=1):
            for number, fault in enumerate((proxy.cut, proxy.half_open, proxy.lose_answers, proxy.reset)):
                fault()
                shop.add(100, first=100 * number)
                await asyncio.sleep(2.5)
                assert not shop.counts()
                assert await shop.pending() == 100
                proxy.heal()
                await shop.until_empty(10)
    arrived = shop.arrived()
    assert {number_of(message) for message in arrived} == set(range(400))
    assert in_order(arrived)
    assert not shop.counts()


@pytest.fixture
def mortal() -> Iterator[RabbitMQ]:
    """A server of the test's own."""
    with installed(RabbitMQ) as server:
        yield server


@pytest.mark.soak
@pytest.mark.timeout(240)
async def test_killed_three_times_in_mid_batch_it_loses_nothing(tmp_path: Path, mortal: RabbitMQ) -> None:
    shop = RabbitShop(tmp_path, mortal, "%2F")
    await shop.open()
    await asyncio.sleep(6)  # a quorum queue that is younger does not survive
    shop.add(EVENTS, aggregates=500)
    counter, process = Counter(), psutil.Process()
    async with shop.relay(batch=WINDOW // 2, hooks=Hooks(counter.hear)):
        await counter.reach(500)
        memory = process.memory_info().rss
        for _ in range(3):
            await counter.reach(counter.answered + 1500)
            await asyncio.to_thread(mortal.kill)
            assert await shop.pending() > 0
            await asyncio.to_thread(mortal.start)
        await shop.until_empty()
        assert process.memory_info().rss - memory < 32 << 20
    arrived = await shop.drained()
    assert {number_of(message) for message in arrived} == set(range(EVENTS))
    assert in_order(arrived)
    assert len(arrived) - EVENTS <= 3 * WINDOW
    assert not shop.counts()


class Counter:
    """Counts the answers of the broker."""

    def __init__(self) -> None:
        self.answered = 0

    def hear(self, moment: Moment, facts: Facts) -> None:
        if moment is Moment.ANSWERED:
            self.answered += int(str(facts["count"]))

    async def reach(self, count: int) -> None:
        async with asyncio.timeout(60):
            while self.answered < count:  # noqa: ASYNC110 - the hook tells, but not that it is enough
                await asyncio.sleep(0.001)
