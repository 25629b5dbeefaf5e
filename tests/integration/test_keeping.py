"""How long real brokers say that they keep a topic, and what `pillarbox doctor` makes of it."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from pillarbox import Settings
from pillarbox.admin.doctor import examine
from pillarbox.errors import BrokerUnavailable
from pillarbox.ports import Kept
from pillarbox.wiring import open_doctor, open_keeping
from servers.kafka import Kafka
from servers.nats import Nats, delete_streams, make_stream
from servers.process import free_port
from tests.integration.kafka_topics import Topics

NANOSECONDS = 1_000_000_000
DAY = 24 * 3600


async def ask(broker: str, *topics: str) -> list[Kept]:
    keeping = open_keeping(Settings(broker=broker))
    assert keeping is not None
    return list(await keeping(topics))


async def severities(broker: str, *topics: str) -> list[str]:
    """Give how bad it is with a memory of 30 days."""
    found = examine(await open_doctor(Settings(broker=broker)).gather(topics))
    return [finding.severity for finding in found if finding.check in ("topics", "retention.inbox")]


@pytest.fixture
async def nats(nats_server: Nats) -> AsyncIterator[str]:
    yield nats_server.url
    await delete_streams(nats_server.url)


async def test_nats_keeps_a_subject_as_long_as_its_stream_says(nats: str) -> None:
    await make_stream(nats, "ORDERS", "orders", "order.*", max_age=60 * DAY * NANOSECONDS)
    await make_stream(nats, "MAILS", "mails")
    await make_stream(nats, "JOBS", "jobs", retention="workqueue")
    assert await ask(nats, "orders", "order.placed", "mails", "jobs", "nowhere") == [
        Kept("orders", timedelta(days=60), "max_age of the stream ORDERS"),
        Kept("order.placed", timedelta(days=60), "max_age of the stream ORDERS"),
        Kept("mails", None, "max_age of the stream MAILS"),
        Kept("jobs", timedelta(0), "the stream JOBS, which drops what was acknowledged"),
    ]
    assert await severities(nats, "orders") == ["problem", "fine"]
    assert await severities(nats, "mails") == ["note", "fine"]
    assert await severities(nats, "jobs") == ["fine", "fine"]
    assert await severities(nats, "nowhere") == ["problem", "fine"]


async def test_a_nats_that_is_away_is_told() -> None:
    with pytest.raises(BrokerUnavailable, match="NATS cannot be reached"):
        await ask(f"nats://127.0.0.1:{free_port()}", "orders")


@pytest.fixture
def topics(kafka: Kafka) -> Topics:
    return Topics(kafka)


async def test_kafka_keeps_a_topic_as_long_as_its_settings_say(topics: Topics) -> None:
    topics.make("long", config={"retention.ms": str(60 * DAY * 1000)})
    topics.make("plain")
    topics.make("endless", config={"retention.ms": "-1"})
    topics.make("compact", config={"cleanup.policy": "compact"})
    broker = topics.server.url
    names = [topics.full(name) for name in ("long", "plain", "endless", "compact")]
    kept = {one.topic: one.age for one in await ask(broker, *names, topics.full("nowhere"))}
    assert kept == dict(zip(names, [timedelta(days=60), timedelta(days=7), None, None], strict=True))
    assert [await severities(broker, name) for name in names] == [
        ["problem", "fine"],
        ["fine", "fine"],
        ["note", "fine"],
        ["note", "fine"],
    ]
    assert await severities(broker, topics.full("nowhere")) == ["problem", "fine"]


@pytest.mark.soak
async def test_a_kafka_that_is_away_is_told() -> None:
    with pytest.raises(BrokerUnavailable, match="Kafka does not say how long it keeps the topic orders"):
        await ask(f"kafka://127.0.0.1:{free_port()}", "orders")
