"""A relay from SQLite to Redis: killed servers, lost answers, refusals, outages. Nothing lost, order kept."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pillarbox import Event, Relay, Settings
from pillarbox.dbapi import Outbox
from pillarbox.settings import RelaySettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from servers.fault_proxy import FaultProxy
from servers.redis import Redis
from tests.integration.sqlite_shop import Shop

ORDERS = 50
QUICK = RelaySettings(batch=100, publish_timeout=timedelta(seconds=1))


class Traffic:
    """An outbox full of events, a relay to a URL, and what has become of them."""

    def __init__(self, path: Path, url: str) -> None:
        self.path, self.heard = path, Counter[Moment]()
        self.relay = Relay(Settings(relay=QUICK), database=f"sqlite:///{path}", broker=url, hooks=Hooks(self._hear))

    def _hear(self, moment: Moment, facts: Facts) -> None:
        self.heard[moment] += 1

    def add(self, count: int, first: int = 0, topic: str = "orders") -> None:
        with sqlite3.connect(self.path) as connection:
            Outbox().add(connection, *(event(n, topic) for n in range(first, first + count)))
        connection.close()

    def rows(self, statement: str) -> list[Any]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    async def until(self, moment: Moment, count: int = 1, seconds: float = 30) -> None:
        """Wait until a moment was reached so often."""
        async with asyncio.timeout(seconds):
            while self.heard[moment] < count:  # noqa: ASYNC110 - hooks wake nobody
                await asyncio.sleep(0.005)


def event(n: int, topic: str = "orders") -> Event[Any]:
    return Event("Placed", n, aggregate=("order", n % ORDERS), topic=topic)


@pytest.fixture
async def tables(tmp_path: Path) -> Path:
    shop = Shop(tmp_path / "shop.db")
    store = await shop.store()
    await store.close()
    return tmp_path / "shop.db"


def stored(server: Redis, topic: str = "orders") -> list[int]:
    with server.client() as client:
        return [int(fields[b"body"]) for _, fields in client.xrange(topic)]


def resident() -> int:
    """Give the memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def check_order(numbers: list[int], count: int) -> int:
    """Check that all are there and that first copies are in order per aggregate; give how many copies there are."""
    first = list(dict.fromkeys(numbers))
    assert sorted(first) == list(range(count)), "lost"
    for order in range(ORDERS):
        of_order = [n for n in first if n % ORDERS == order]
        assert of_order == sorted(of_order), f"order {order} is out of order"
    return len(numbers) - len(first)


async def test_answers_that_are_lost_after_the_server_stored_cost_copies_and_nothing_else(
    redis: Redis, tables: Path
) -> None:
    with FaultProxy(redis.port) as proxy:
        traffic = Traffic(tables, redis.url(port=proxy.port))
        traffic.add(100)
        async with traffic.relay:
            await traffic.until(Moment.SETTLED)
            proxy.lose_answers()
            traffic.add(900, first=100)
            await traffic.until(Moment.BROKER_AWAY)
            assert len(stored(redis)) >= 200, "the server stored nothing whose answer could be lost"
            proxy.heal()
            await until(lambda: len(set(stored(redis))) == 1000)
    copies = check_order(stored(redis), 1000)
    assert 0 < copies <= 2 * 2 * QUICK.batch
    assert traffic.heard[Moment.EVENT_RETRYING] == traffic.heard[Moment.EVENT_DEAD] == 0


@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_a_server_killed_three_times_in_mid_batch_loses_nothing(
    own_redis: Callable[..., Redis], tables: Path, kind: str
) -> None:
    server = own_redis(kind)
    traffic = Traffic(tables, server.url())
    async with traffic.relay:
        total = 0
        before = resident()
        for death in range(1, 4):
            traffic.add(3000, first=total)
            total += 3000
            await until(lambda seen=total - 2500: len(stored(server)) > seen)  # type: ignore[misc]
            server.kill()
            await traffic.until(Moment.BROKER_AWAY, death)
            server.server.start()
        await until(lambda: len(set(stored(server))) == total)
        grown = resident() - before
    check_order(stored(server), total)
    assert traffic.heard[Moment.EVENT_RETRYING] == traffic.heard[Moment.EVENT_DEAD] == 0
    assert traffic.rows("SELECT count(*) FROM pillarbox_parked") == [(0,)]
    assert grown < 32 << 20


async def test_an_outage_of_ten_seconds_kills_nothing_and_ends_by_itself(
    own_redis: Callable[..., Redis], tables: Path
) -> None:
    server = own_redis("valkey")
    traffic = Traffic(tables, server.url())
    async with traffic.relay:
        traffic.add(100)
        await until(lambda: len(stored(server)) == 100)
        server.kill()
        traffic.add(100, first=100)
        await traffic.until(Moment.BROKER_AWAY)
        await asyncio.sleep(10)  # the outage itself is what is tested
        server.server.start()
        await until(lambda: len(set(stored(server))) == 200, seconds=5)
    check_order(stored(server), 200)
    assert traffic.heard[Moment.EVENT_RETRYING] == traffic.heard[Moment.EVENT_DEAD] == 0


async def test_a_refused_event_is_dead_in_one_attempt_and_holds_its_aggregate_only(redis: Redis, tables: Path) -> None:
    traffic = Traffic(tables, redis.url(port=redis.port) + "?largest_value=2000")
    traffic.add(100)
    with sqlite3.connect(tables) as connection:
        Outbox().add(connection, Event("Placed", "x" * 3000, aggregate=("order", 7), topic="orders"))
    connection.close()
    traffic.add(100, first=100)
    async with traffic.relay:
        await until(lambda: len(stored(redis)) == 198)
        await traffic.until(Moment.SETTLED)
        await until(lambda: traffic.rows("SELECT count(*) FROM pillarbox_parked") == [(3,)])
    assert sorted(set(range(200)) - set(stored(redis))) == [107, 157]
    ((attempts, error),) = traffic.rows("SELECT attempts, last_error FROM pillarbox_parked WHERE state = 'dead'")
    assert attempts == 1
    assert "is too large: a value of 3002 bytes" in error
    assert traffic.heard[Moment.EVENT_DEAD] == 1


async def test_a_topic_that_is_refused_does_not_stop_the_others(redis: Redis, tables: Path) -> None:
    with redis.client() as client:
        client.set("mails", "no stream")
    traffic = Traffic(tables, redis.url())
    traffic.add(50, topic="mails")
    traffic.add(100)
    async with traffic.relay:
        await until(lambda: len(stored(redis)) == 100)
        await until(lambda: traffic.heard[Moment.EVENT_DEAD] > 0)
    assert check_order(stored(redis), 100) == 0
    assert traffic.heard[Moment.EVENT_RETRYING] == 0


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what another process does tells nobody
            await asyncio.sleep(0.02)
