"""A real relay between SQLite and a real endpoint: killed in mid-batch, away, with answers lost, with refusals."""

import asyncio
import json
import resource
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox import Event, Settings
from pillarbox.dbapi import Outbox
from pillarbox.ports import Query, Record
from pillarbox.settings import RelaySettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay, open_admin
from servers.fault_proxy import FaultProxy
from servers.webhook_receiver import Received, WebhookReceiver
from tests.conftest import installed
from tests.integration.webhook_world import SECRET

AGGREGATES = 25
TRIED = {Moment.EVENT_RETRYING, Moment.EVENT_DEAD}


class Shop:
    """A database with events to publish, and what its relay has told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.heard: list[Moment] = []
        relay = RelaySettings(batch=100, backoff_first=timedelta(seconds=0.1))
        webhooks = {"secrets": [SECRET], "allow": ["127.0.0.1"], "connections": 10}
        self.settings = Settings(database=f"sqlite:///{path}", relay=relay, options={"webhooks": webhooks})

    def wait_for_answers(self, seconds: float) -> None:
        """Set the publish timeout, where a test waits for it."""
        relay = replace(self.settings.relay, publish_timeout=timedelta(seconds=seconds))
        self.settings = replace(self.settings, relay=relay)

    def add(self, count: int, *, start: int = 0) -> None:
        """Add events, the number of each within its aggregate counting on."""
        events = [
            Event("Placed", {"n": n // AGGREGATES, "of": f"{n % AGGREGATES}."}, aggregate=("order", n % AGGREGATES))
            for n in range(start, start + count)
        ]
        with closing(sqlite3.connect(self._path)) as connection, connection:
            Outbox(topic="orders").add(connection, *events)

    @asynccontextmanager
    async def relay(self, port: int) -> AsyncIterator[None]:
        def hear(moment: Moment, facts: Facts) -> None:
            self.heard.append(moment)

        async with Relay(self.settings, broker=f"http://127.0.0.1:{port}/hook", hooks=Hooks(hear)):
            yield

    async def records(self, *status: str) -> list[Record]:
        async with open_admin(self.settings) as admin:
            return list(await admin.find(Query(status=status, limit=10_000)))  # type: ignore[arg-type]

    async def all_published(self) -> None:
        async with asyncio.timeout(60):
            while await self.records("pending", "retrying", "blocked", "dead"):  # noqa: ASYNC110 - as below
                await asyncio.sleep(0.05)


@pytest.fixture
async def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "shop.db")
    async with open_admin(shop.settings) as admin:
        await admin.migrate()
    return shop


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what a server has tells nobody
            await asyncio.sleep(0.02)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def arrived(received: list[Received], aggregate: int) -> list[int]:
    """Give the numbers of an aggregate's events, first copies only, in the order in which they came."""
    bodies = [json.loads(one.body) for one in received if one.headers["pillarbox-aggregate-id"] == str(aggregate)]
    return list(dict.fromkeys(body["n"] for body in bodies))


def check_arrived(received: list[Received], expected: int) -> int:
    """See that nothing is lost and first copies are in order per aggregate; give how many copies there are."""
    ids = {one.headers["webhook-id"] for one in received}
    assert len(ids) == expected
    assert {one.of_its_key for one in received} == {1}
    for aggregate in range(AGGREGATES):
        assert arrived(received, aggregate) == list(range(expected // AGGREGATES))
    return len(received) - len(ids)


async def test_answers_that_are_lost_lose_no_event_and_no_order(shop: Shop, webhook_receiver: WebhookReceiver) -> None:
    shop.wait_for_answers(1)
    shop.add(1000)
    webhook_receiver.behave({"delay": 0.005})
    with FaultProxy(webhook_receiver.port) as proxy:
        async with shop.relay(proxy.port):
            await until(lambda: webhook_receiver.count() >= 200)
            proxy.lose_answers()
            await until(lambda: Moment.BROKER_AWAY in shop.heard)
            proxy.heal()
            await shop.all_published()
    copies = check_arrived_with_late_ones(webhook_receiver.received(), 1000)
    assert 0 < copies <= 200, "a batch is 100, and the window two of them"
    assert Moment.EVENT_DEAD not in shop.heard


def check_arrived_with_late_ones(received: list[Received], expected: int) -> int:
    """The same, where a call that was given up may still be at work in the endpoint when the next one comes."""
    return check_arrived([one._replace(of_its_key=1) for one in received], expected)


async def test_an_endpoint_that_is_killed_three_times_in_mid_batch_loses_nothing(shop: Shop) -> None:
    with installed(WebhookReceiver) as receiver:
        receiver.behave({"delay": 0.01})
        shop.add(2000)
        before = resident_bytes()
        async with shop.relay(receiver.port):
            for goal in (200, 600, 1000):
                await until(lambda goal=goal: receiver.count() >= goal)  # type: ignore[misc]
                receiver.kill()
                await until(lambda: shop.heard.count(Moment.BROKER_AWAY) > shop.heard.count(Moment.BROKER_BACK))
                receiver.start()
            receiver.behave()
            await shop.all_published()
        grown = resident_bytes() - before
        assert check_arrived(receiver.received(), 2000) <= 3 * 10, "no more than were in flight"
    assert not TRIED & set(shop.heard)
    assert grown < 32 * 1024 * 1024


async def test_an_endpoint_that_is_away_for_ten_seconds_costs_no_attempt(shop: Shop) -> None:
    with installed(WebhookReceiver) as receiver:
        async with shop.relay(receiver.port):
            shop.add(50)
            await shop.all_published()
            receiver.kill()
            shop.add(50, start=50)
            await until(lambda: Moment.BROKER_AWAY in shop.heard)
            await asyncio.sleep(10)
            assert len(await shop.records("pending")) == 50
            receiver.start()
            async with asyncio.timeout(10):
                await shop.all_published()
        check_arrived(receiver.received(), 100)
    assert not TRIED & set(shop.heard)


@pytest.mark.parametrize("status", [410, 422, 302])
async def test_an_event_that_is_refused_is_dead_at_once_and_holds_back_its_own_followers_only(
    status: int, shop: Shop, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"contains": '"n":3,"of":"7."', "status": status, "body": "no such order"})
    shop.add(250)
    async with shop.relay(webhook_receiver.port):
        await until(lambda: webhook_receiver.count() == 240 + 3)
        await until(lambda: Moment.EVENT_DEAD in shop.heard)
        (dead,) = await shop.records("dead")
    assert dead.attempts == 1
    assert "no such order" in str(dead.last_error)
    received = webhook_receiver.received()
    assert arrived(received, 7) == [0, 1, 2]
    assert all(arrived(received, other) == list(range(10)) for other in range(AGGREGATES) if other != 7)


@pytest.mark.parametrize("rule", [{"status": 503}, {"hang": True}], ids=["refused", "timed out"])
async def test_an_event_that_fails_twice_is_tried_again_and_holds_back_its_followers(
    rule: dict[str, object], shop: Shop, webhook_receiver: WebhookReceiver
) -> None:
    shop.wait_for_answers(1)
    webhook_receiver.behave({"contains": '"n":3,"of":"7."', "times": 2, **rule})
    shop.add(250)
    async with shop.relay(webhook_receiver.port):
        await until(lambda: webhook_receiver.count() >= 240)
        await shop.all_published()
    check_arrived_with_late_ones(webhook_receiver.received(), 250)
    assert Counter(shop.heard)[Moment.EVENT_RETRYING] >= 1
    assert Moment.EVENT_DEAD not in shop.heard


async def test_a_limit_on_the_rate_kills_no_event(shop: Shop, webhook_receiver: WebhookReceiver) -> None:
    shop.add(100)
    limit = {"status": 429, "headers": {"retry-after": "1"}}
    webhook_receiver.behave({"contains": '"n":1,', "times": 8, **limit}, {"contains": '"n":2,', "times": 8, **limit})
    async with shop.relay(webhook_receiver.port):
        await shop.all_published()
    assert check_arrived(webhook_receiver.received(), 100) == 0
    assert not TRIED & set(shop.heard)
