"""A relay to a NATS that recognises copies, refuses and keeps silent: what the suite of relays does not ask."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from pillarbox import Event
from pillarbox.dbapi import Inbox
from pillarbox.telemetry.hooks import Moment
from pillarbox.wiring import Consumer
from servers.fault_proxy import FaultProxy
from servers.nats import Nats, ask, delete_streams, make_stream
from tests.integration.nats_streams import raw_messages
from tests.integration.relay_shop import AGGREGATES, RelayShop, until_true


@pytest.fixture
async def shop(tmp_path: Path) -> RelayShop:
    shop = RelayShop(tmp_path / "shop.db", timeout=1)
    await shop.open()
    return shop


@pytest.fixture
async def url(nats_server: Nats) -> AsyncIterator[str]:
    """The URL of a server with a stream that does not recognise copies, so that they can be counted."""
    await make_stream(nats_server.url, "TEST", "orders", duplicate_window=100_000_000)
    yield nats_server.url
    await delete_streams(nats_server.url)


async def count(url: str) -> int:
    return int((await ask(url, "STREAM.INFO.TEST", {}))["state"]["messages"])


async def check_arrived(url: str, expected: int) -> int:
    """See that nothing is lost and first copies are in order per aggregate; give how many copies there are."""
    found = await raw_messages(url, "TEST")
    ids: set[str] = set()
    numbers: dict[str, list[int]] = defaultdict(list)
    for _, headers, body in found:
        if headers["id"] not in ids:
            ids.add(headers["id"])
            numbers[headers["aggregate_id"]].append(json.loads(body)["n"])
    assert len(ids) == expected
    for of_one in numbers.values():
        assert of_one == list(range(len(of_one)))
    return len(found) - len(ids)


async def test_copies_within_the_duplicate_window_are_recognised(url: str, shop: RelayShop, nats_server: Nats) -> None:
    config = (await ask(url, "STREAM.INFO.TEST", {}))["config"]
    await ask(url, "STREAM.UPDATE.TEST", config | {"duplicate_window": 60_000_000_000})
    shop.add(300)
    with FaultProxy(nats_server.port) as proxy:
        async with shop.relay(f"nats://127.0.0.1:{proxy.port}"):
            await shop.until_all_published()
            proxy.lose_answers()
            shop.add(25, start=300)

            async def stored() -> bool:
                return await count(url) == 325

            await until_true(stored)
            await shop.until_heard(Moment.BROKER_AWAY)
            proxy.heal()
            await shop.until_all_published()
    assert await check_arrived(url, 325) == 0


async def test_an_event_that_is_refused_holds_back_its_own_followers_only(url: str, shop: RelayShop) -> None:
    config = (await ask(url, "STREAM.INFO.TEST", {}))["config"]
    await ask(url, "STREAM.UPDATE.TEST", config | {"max_msg_size": 2000})
    shop.add(AGGREGATES)
    shop.add(1, start=AGGREGATES, padding=5000)  # of aggregate 0
    shop.add(2 * AGGREGATES - 1, start=AGGREGATES + 1)
    async with shop.relay(url):

        async def the_others_are_there() -> bool:
            return len(await shop.records("published")) == 3 * AGGREGATES - 2

        await until_true(the_others_are_there)
    (dead,) = await shop.records("dead")
    assert dead.attempts == 1
    assert "message size exceeds maximum allowed" in (dead.last_error or "")
    assert [record.aggregate for record in await shop.records("blocked")] == [("order", "0")]
    assert await check_arrived(url, 3 * AGGREGATES - 2) == 0


async def test_an_event_that_times_out_while_others_are_answered_is_counted_and_retried(
    url: str, shop: RelayShop
) -> None:
    """Somebody who listens on the subject takes it, so there are responders, but no stream that acknowledges."""
    silent = await nats.connect(url)
    await silent.subscribe("silent")
    await silent.flush()
    shop.add(AGGREGATES)
    shop.add(1, topic="silent")
    async with shop.relay(f"{url}?stream=TEST"):
        await shop.until_heard(Moment.EVENT_RETRYING)
        await silent.close()
        await ask(url, "STREAM.UPDATE.TEST", {**await _config(url), "subjects": ["orders", "silent"]})
        await shop.until_all_published()
    assert Moment.EVENT_DEAD not in shop.heard
    assert await count(url) == AGGREGATES + 1


async def test_a_topic_without_a_stream_is_dead_in_one_attempt_and_the_others_flow(url: str, shop: RelayShop) -> None:
    shop.add(1, topic="nowhere")
    shop.add(AGGREGATES)
    async with shop.relay(url):

        async def the_others_are_there() -> bool:
            return len(await shop.records("published")) == AGGREGATES and bool(await shop.records("dead"))

        await until_true(the_others_are_there)
    (dead,) = await shop.records("dead")
    assert dead.attempts == 1
    assert "no stream takes the subject 'nowhere'" in (dead.last_error or "")


async def test_an_event_for_a_full_stream_is_dead_in_one_attempt_and_the_others_flow(url: str, shop: RelayShop) -> None:
    await make_stream(url, "FULL", "mails", discard="new", max_msgs=2)
    async with shop.relay(url):
        shop.add(2, topic="mails")
        await shop.until_all_published()
        shop.add(1, start=2, topic="mails")
        shop.add(AGGREGATES)
        await shop.until_heard(Moment.EVENT_DEAD)
        await shop.until_all_published()
    (dead,) = await shop.records("dead")
    assert (dead.topic, dead.attempts) == ("mails", 1)
    assert "maximum messages exceeded" in (dead.last_error or "")
    assert await check_arrived(url, AGGREGATES) == 0
    assert len(await raw_messages(url, "FULL")) == 2


async def test_a_consumer_applies_each_event_once(url: str, shop: RelayShop, tmp_path: Path) -> None:
    shop.add(100)
    async with shop.relay(url):
        await shop.until_all_published()
    handled: list[int] = []
    inbox = Inbox("billing", lambda: sqlite3.connect(tmp_path / "shop.db"))

    @inbox.handler("Placed")
    def handle(connection: sqlite3.Connection, event: Event[dict[str, int]]) -> None:
        handled.append(event.payload["n"])

    assert await Consumer(inbox, topics=["orders"], broker=url).run_once() == 100
    assert sorted(handled) == sorted(n // AGGREGATES for n in range(100))
    assert await Consumer(inbox, topics=["orders"], broker=url).run_once() == 0


async def _config(url: str) -> dict[str, object]:
    return dict((await ask(url, "STREAM.INFO.TEST", {}))["config"])
