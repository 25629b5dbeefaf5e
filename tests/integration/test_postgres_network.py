"""A network that fails between relay and PostgreSQL: nothing lost, order kept, few copies, back by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from pillarbox.core.message import Message
from pillarbox.errors import LaneLost
from pillarbox.settings import RelaySettings, Settings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay
from servers.fault_proxy import Direction, FaultProxy
from tests.conftest import EVERY_POSTGRES
from tests.integration.postgres_world import SlowRelay, add, migrate, run, soon

pytestmark = pytest.mark.parametrize("database", EVERY_POSTGRES, indirect=True)

BATCH = 20
EVENTS = [f"event-{n}" for n in range(100)]
FAULTS: dict[str, Callable[[FaultProxy], None]] = {
    "late": lambda network: network.latency(0.05),
    "slow": lambda network: network.slow(50_000),
    "cut": FaultProxy.cut,
    "reset": FaultProxy.reset,
    "half-open": FaultProxy.half_open,
    "half-open, answers only": lambda network: network.half_open(Direction.ANSWERS),
    "answers lost": FaultProxy.lose_answers,
    "requests cut off": lambda network: network.drop_after(1500),
    "answers cut off": lambda network: network.drop_after(1500, Direction.ANSWERS),
}


@pytest.fixture
def network(database: str) -> Iterator[FaultProxy]:
    port = urlsplit(database).port
    assert port is not None
    with FaultProxy(port) as network:
        yield network


@pytest.fixture
async def through(database: str, network: FaultProxy) -> str:
    """The URL of the database, with the network between."""
    await migrate(database)
    return urlsplit(database)._replace(netloc=f"postgres@127.0.0.1:{network.port}").geturl()


class Watched:
    """A relay that runs, what it has published, and how often it lost its lanes."""

    def __init__(self, url: str) -> None:
        self.wire: list[str] = []
        self.losses = 0
        relay = RelaySettings(batch=BATCH, lease=timedelta(seconds=3), publish_timeout=timedelta(seconds=2))
        self.relay = Relay(Settings(relay=relay), database=url, publish=self._publish, hooks=Hooks(self._listen))

    async def _publish(self, messages: list[Message]) -> None:
        self.wire += [message.headers["type"] for message in messages]

    def _listen(self, moment: Moment, facts: Facts) -> None:
        self.losses += moment is Moment.LANES_LOST

    async def until_published(self, count: int) -> None:
        await soon(lambda: len(set(self.wire)) >= count, f"{count} events are published")


@asynccontextmanager
async def running(url: str) -> AsyncIterator[Watched]:
    watched = Watched(url)
    task = asyncio.create_task(watched.relay.run())
    try:
        yield watched
    finally:
        watched.relay.stop()
        await task


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_relay_comes_back_by_itself_and_loses_nothing(
    fault: str, database: str, through: str, network: FaultProxy
) -> None:
    async with running(through) as watched:
        add(database, *EVENTS[:20])
        await watched.until_published(20)
        FAULTS[fault](network)
        for n in range(20, 80, 10):
            add(database, *EVENTS[n : n + 10])
            await asyncio.sleep(0.1)  # so long may the fault work on what goes on
        network.heal()
        add(database, *EVENTS[80:])
        await watched.until_published(100)
        assert list(dict.fromkeys(watched.wire)) == EVENTS
        assert len(watched.wire) - len(EVENTS) <= watched.losses * 3 * BATCH


def newest_tick(database: str) -> int:
    return int(run(database, "SELECT max(n) FROM pillarbox_ticks")[0][0])


async def test_a_tick_whose_answer_was_lost_gives_nothing_out_and_skips_nothing(
    database: str, through: str, network: FaultProxy
) -> None:
    async with SlowRelay(through) as relay:
        await relay.store.take()
        await relay.carry()
        add(database, *EVENTS[:5])
        before = newest_tick(database)
        network.lose_answers()
        reading = asyncio.create_task(relay.read())
        await soon(lambda: newest_tick(database) > before, "the tick is committed")
        network.heal()
        with pytest.raises(LaneLost):
            await reading
        await relay.carry()
        assert relay.wire == EVENTS[:5]


async def test_what_was_settled_is_not_sent_again_although_the_answer_was_lost(
    database: str, through: str, network: FaultProxy
) -> None:
    async with SlowRelay(through) as relay:
        await relay.store.take()
        add(database, *EVENTS[:5])
        entries = await relay.read()
        relay.publish(entries)
        before = newest_tick(database)
        network.lose_answers()
        settling = asyncio.create_task(relay.settle(entries))
        await soon(lambda: newest_tick(database) > before, "the tick is committed")
        network.heal()
        with pytest.raises(LaneLost):
            await settling
        add(database, *EVENTS[5:10])
        await relay.carry()
        assert relay.wire == EVENTS[:10]
