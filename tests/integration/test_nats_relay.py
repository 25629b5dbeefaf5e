"""A real relay between SQLite and a real NATS: killed in mid-batch, away, with acknowledgements lost, with refusals."""

import asyncio
import resource
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import nats
import pytest

from pillarbox import Event, Settings
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.ports import Query, Record
from pillarbox.settings import RelaySettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Consumer, Relay, open_admin
from servers.fault_proxy import FaultProxy
from servers.nats import Nats, ask, delete_streams, make_stream
from servers.nats_ack_loser import NatsAckLoser
from tests.integration.nats_streams import raw_messages

AGGREGATES = 25
TRIED = {Moment.EVENT_RETRYING, Moment.EVENT_DEAD}


class Shop:
    """A database with events to publish, and what its relay has told."""

    def __init__(self, path: Path) -> None:
        self.database = f"sqlite:///{path}"
        self._path = path
        self.heard: list[Moment] = []
        relay = RelaySettings(batch=100, publish_timeout=timedelta(seconds=1), backoff_first=timedelta(seconds=0.1))
        self.settings = Settings(database=self.database, relay=relay)

    async def migrate(self) -> None:
        async with open_admin(self.settings) as admin:
            await admin.migrate()

    def add(self, count: int, *, start: int = 0, topic: str = "orders", padding: int = 0) -> None:
        """Add events, the number of each within its aggregate counting on."""
        outbox = Outbox(topic=topic)
        with closing(sqlite3.connect(self._path)) as connection, connection:
            outbox.add(
                connection,
                *(
                    Event("Placed", {"n": n // AGGREGATES, "x": "x" * padding}, aggregate=("order", n % AGGREGATES))
                    for n in range(start, start + count)
                ),
            )

    @asynccontextmanager
    async def relay(self, url: str) -> AsyncIterator[None]:
        def hear(moment: Moment, facts: Facts) -> None:
            self.heard.append(moment)

        async with Relay(self.settings, broker=url, hooks=Hooks(hear)):
            yield

    async def records(self, *status: str) -> list[Record]:
        async with open_admin(self.settings) as admin:
            return list(await admin.find(Query(status=status, limit=10_000)))  # type: ignore[arg-type]


@pytest.fixture
async def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "shop.db")
    await shop.migrate()
    return shop


@pytest.fixture
async def url(nats_server: Nats) -> AsyncIterator[str]:
    """The URL of a server with a stream that does not recognise copies, so that they can be counted."""
    await make_stream(nats_server.url, "TEST", "orders", duplicate_window=100_000_000)
    yield nats_server.url
    await delete_streams(nats_server.url)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - what a server has tells nobody
            await asyncio.sleep(0.02)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def count(url: str) -> int:
    return int((await ask(url, "STREAM.INFO.TEST", {}))["state"]["messages"])


async def check_arrived(url: str, expected: int) -> int:
    """See that nothing is lost and first copies are in order per aggregate; give how many copies there are."""
    found = await raw_messages(url, "TEST")
    ids: set[str] = set()
    bodies: dict[str, list[bytes]] = defaultdict(list)
    for _, headers, body in found:
        if headers["id"] not in ids:
            ids.add(headers["id"])
            bodies[headers["aggregate_id"]].append(body)
    assert len(ids) == expected
    for of_one in bodies.values():
        assert of_one == [f'{{"n":{n},"x":""}}'.encode() for n in range(len(of_one))]
    return len(found) - len(ids)


async def test_single_acknowledgements_that_are_lost_lose_no_event_and_no_order(
    url: str, shop: Shop, nats_server: Nats
) -> None:
    shop.add(1000)
    async with NatsAckLoser(nats_server.port) as loser:
        loser.lose(range(5, 1000, 10))
        async with shop.relay(f"nats://127.0.0.1:{loser.port}"):
            await until(lambda: _all_published(shop))
    copies = await check_arrived(url, 1000)
    assert loser.lost == 100
    assert 0 < copies <= 100 + 200, "those whose acknowledgement was lost, and at most a window beside them"
    assert Moment.EVENT_DEAD not in shop.heard


async def test_acknowledgements_that_are_lost_lose_no_event_and_no_order(
    url: str, shop: Shop, nats_server: Nats
) -> None:
    shop.add(1000)
    with FaultProxy(nats_server.port) as proxy:
        proxy.slow(100_000)

        async def some_are_there() -> bool:
            return await count(url) >= 200

        async with shop.relay(f"nats://127.0.0.1:{proxy.port}"):
            await until(some_are_there)
            proxy.lose_answers()
            await until(lambda: _is(Moment.BROKER_AWAY in shop.heard))
            proxy.heal()
            await until(lambda: _all_published(shop))
    copies = await check_arrived(url, 1000)
    assert 0 < copies <= 200, "a batch is 100, and the window two of them"
    assert not TRIED & set(shop.heard)


async def test_copies_within_the_duplicate_window_are_recognised(url: str, shop: Shop, nats_server: Nats) -> None:
    config = (await ask(url, "STREAM.INFO.TEST", {}))["config"]
    await ask(url, "STREAM.UPDATE.TEST", config | {"duplicate_window": 60_000_000_000})
    shop.add(300)
    with FaultProxy(nats_server.port) as proxy:
        async with shop.relay(f"nats://127.0.0.1:{proxy.port}"):
            await until(lambda: _all_published(shop))
            proxy.lose_answers()
            shop.add(25, start=300)

            async def stored() -> bool:
                return await count(url) == 325

            await until(stored)
            await until(lambda: _is(Moment.BROKER_AWAY in shop.heard))
            proxy.heal()
            await until(lambda: _all_published(shop))
    assert await check_arrived(url, 325) == 0


async def test_a_server_that_is_killed_three_times_in_mid_batch_loses_nothing(shop: Shop) -> None:
    with Nats() as server:
        await make_stream(server.url, "TEST", "orders", duplicate_window=100_000_000)
        with FaultProxy(server.port) as proxy:
            proxy.slow(150_000)  # slow enough to be killed in the middle
            shop.add(3000)
            before = resident_bytes()
            async with shop.relay(f"nats://127.0.0.1:{proxy.port}"):
                for goal in (300, 1000, 1700):

                    async def reached(goal: int = goal) -> bool:
                        return await count(server.url) >= goal

                    await until(reached)
                    server.kill()
                    await until(
                        lambda: _is(shop.heard.count(Moment.BROKER_AWAY) > shop.heard.count(Moment.BROKER_BACK))
                    )
                    server.start()
                proxy.heal()
                await until(lambda: _all_published(shop))
            grown = resident_bytes() - before
        await check_arrived(server.url, 3000)
    assert not TRIED & set(shop.heard)
    assert grown < 32 * 1024 * 1024


async def test_a_server_that_is_away_for_ten_seconds_costs_no_attempt(shop: Shop) -> None:
    with Nats() as server:
        await make_stream(server.url, "TEST", "orders")
        async with shop.relay(server.url):
            shop.add(50)
            await until(lambda: _all_published(shop))
            server.stop()
            shop.add(50, start=50)
            await until(lambda: _is(Moment.BROKER_AWAY in shop.heard))
            await asyncio.sleep(10)
            assert len(await shop.records("pending")) == 50
            server.start()
            async with asyncio.timeout(10):
                await until(lambda: _all_published(shop))
        await check_arrived(server.url, 100)
    assert not TRIED & set(shop.heard)


async def test_an_event_that_is_refused_holds_back_its_own_followers_only(url: str, shop: Shop) -> None:
    config = (await ask(url, "STREAM.INFO.TEST", {}))["config"]
    await ask(url, "STREAM.UPDATE.TEST", config | {"max_msg_size": 2000})
    shop.add(AGGREGATES)
    shop.add(1, start=AGGREGATES, padding=5000)  # of aggregate 0
    shop.add(2 * AGGREGATES - 1, start=AGGREGATES + 1)
    async with shop.relay(url):

        async def the_others_are_there() -> bool:
            return len(await shop.records("published")) == 3 * AGGREGATES - 2

        await until(the_others_are_there)
    (dead,) = await shop.records("dead")
    assert dead.attempts <= 1
    assert "message size exceeds maximum allowed" in (dead.last_error or "")
    assert [record.aggregate for record in await shop.records("blocked")] == [("order", "0")]
    assert await check_arrived(url, 3 * AGGREGATES - 2) == 0


async def test_an_event_that_times_out_while_others_are_answered_is_counted_and_retried(url: str, shop: Shop) -> None:
    """Somebody who listens on the subject takes it, so there are responders, but no stream that acknowledges."""
    silent = await nats.connect(url)
    await silent.subscribe("silent")
    await silent.flush()
    shop.add(AGGREGATES)
    shop.add(1, topic="silent")
    async with shop.relay(f"{url}?stream=TEST"):
        await until(lambda: _is(Moment.EVENT_RETRYING in shop.heard))
        await silent.close()
        await ask(url, "STREAM.UPDATE.TEST", {**await _config(url), "subjects": ["orders", "silent"]})
        await until(lambda: _all_published(shop))
    assert Moment.EVENT_DEAD not in shop.heard
    assert await count(url) == AGGREGATES + 1


async def test_a_topic_without_a_stream_is_dead_in_one_attempt_and_the_others_flow(url: str, shop: Shop) -> None:
    shop.add(1, topic="nowhere")
    shop.add(AGGREGATES)
    async with shop.relay(url):

        async def the_others_are_there() -> bool:
            return len(await shop.records("published")) == AGGREGATES and bool(await shop.records("dead"))

        await until(the_others_are_there)
    (dead,) = await shop.records("dead")
    assert "no stream takes the subject 'nowhere'" in (dead.last_error or "")


async def test_a_consumer_applies_each_event_once(url: str, shop: Shop, tmp_path: Path) -> None:
    shop.add(100)
    async with shop.relay(url):
        await until(lambda: _all_published(shop))
    handled: list[int] = []
    inbox = Inbox("billing", lambda: sqlite3.connect(tmp_path / "shop.db"))

    @inbox.handler("Placed")
    def handle(connection: sqlite3.Connection, event: Event[dict[str, int]]) -> None:
        handled.append(event.payload["n"])

    assert await Consumer(inbox, topics=["orders"], broker=url).run_once() == 100
    assert sorted(handled) == sorted(n // AGGREGATES for n in range(100))
    assert await Consumer(inbox, topics=["orders"], broker=url).run_once() == 0


async def _all_published(shop: Shop) -> bool:
    return not await shop.records("pending", "retrying", "blocked")


async def _is(condition: bool) -> bool:
    return condition


async def _config(url: str) -> dict[str, object]:
    return dict((await ask(url, "STREAM.INFO.TEST", {}))["config"])
