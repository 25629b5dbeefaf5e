"""`pillarbox doctor` and brokers: each fault is planted in a real server, and found."""

import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from pillarbox import Settings
from pillarbox.admin.doctor import Finding, examine
from pillarbox.wiring import open_doctor
from servers.kafka import Kafka
from servers.nats import Nats, delete_streams, make_stream
from servers.process import free_port
from servers.rabbitmq import RabbitMQ
from servers.redis import Redis
from tests.integration.kafka_topics import Topics

SECOND = 1_000_000_000


async def troubles(broker: str, *topics: str) -> list[Finding]:
    found = examine(await open_doctor(Settings(broker=broker)).gather(topics))
    return [finding for finding in found if finding.severity != "fine" and finding.check != "retention.inbox"]


@pytest.fixture
def own(own_redis: Callable[..., Redis]) -> Redis:
    return own_redis("redis")


async def test_a_redis_that_is_well_yields_nothing(redis: Redis) -> None:
    assert await troubles(redis.url(), "orders") == []


async def test_a_redis_without_an_append_only_file_is_found(own: Redis) -> None:
    own.configure(appendonly="no")
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == ("problem", "persistence")
    assert finding.line.startswith("Redis keeps no append-only file: ")
    assert finding.commands == ("redis-cli CONFIG SET appendonly yes",)


@pytest.mark.parametrize(("written", "severity"), [("everysec", "note"), ("no", "problem")])
async def test_a_redis_that_writes_late_is_found_unless_the_relay_waits(
    own: Redis, written: str, severity: str
) -> None:
    own.configure(appendfsync=written)
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == (severity, "persistence")
    assert f"(appendfsync {written})" in finding.line
    assert await troubles(f"{own.url()}?durable=true", "orders") == []


async def test_a_redis_that_may_evict_streams_is_found(own: Redis) -> None:
    own.configure(maxmemory_policy="allkeys-lru")
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == ("note", "eviction")
    own.configure(maxmemory="100mb")
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == ("problem", "eviction")
    own.configure(maxmemory_policy="noeviction")
    assert await troubles(own.url(), "orders") == []


async def test_a_redis_that_does_not_tell_is_noted(redis: Redis) -> None:
    user = f"u{uuid.uuid4().hex}"
    with redis.client() as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "+@all", "-config")
        try:
            (finding,) = await troubles(redis.url(login=f"{user}:secret@"), "orders")
        finally:
            client.execute_command("ACL", "DELUSER", user)
    assert (finding.severity, finding.check) == ("note", "persistence")
    assert "CONFIG GET is refused" in finding.line


@pytest.mark.parametrize("scheme", ["redis", "amqp", "nats"])
async def test_a_broker_that_is_away_is_found(scheme: str) -> None:
    (finding,) = await troubles(f"{scheme}://me:hunter2@127.0.0.1:{free_port()}", "orders")
    assert (finding.severity, finding.check) == ("problem", "broker")
    assert finding.line.startswith("the broker cannot be asked: ")
    assert "hunter2" not in finding.line


@pytest.fixture
async def nats(nats_server: Nats) -> AsyncIterator[str]:
    yield nats_server.url
    await delete_streams(nats_server.url)


async def test_streams_that_are_well_yield_nothing(nats: str) -> None:
    await make_stream(nats, "ORDERS", "orders", "orders.*", max_msgs=1000, discard="new")
    await make_stream(nats, "MAILS", "mails")
    assert await troubles(nats, "orders", "orders.late", "mails") == []


async def test_a_stream_that_drops_its_oldest_messages_is_found_once(nats: str) -> None:
    await make_stream(nats, "ORDERS", "orders", "mails", max_bytes=1_000_000)
    (finding,) = await troubles(nats, "orders", "mails")
    assert (finding.severity, finding.check) == ("problem", "discard")
    assert finding.commands == ("nats stream edit ORDERS --discard new",)


async def test_a_duplicate_window_that_a_takeover_outlasts_is_noted(nats: str) -> None:
    await make_stream(nats, "ORDERS", "orders", duplicate_window=10 * SECOND)
    (finding,) = await troubles(nats, "orders")
    assert (finding.severity, finding.check) == ("note", "duplicate window")
    assert finding.line.startswith("the stream ORDERS recognises copies for 10 s only (duplicate_window), ")
    assert " 25 s later " in finding.line


async def test_a_stream_in_memory_or_without_acknowledgement_is_found(nats: str) -> None:
    await make_stream(nats, "FLEETING", "orders", storage="memory")
    await make_stream(nats, "SILENT", "mails", no_ack=True)
    memory, silent = await troubles(nats, "orders", "mails")
    assert memory.line.startswith("the stream FLEETING keeps its messages in memory: ")
    assert silent.line.startswith("the stream SILENT acknowledges nothing (no_ack): ")


async def test_a_topic_without_a_queue_is_found(rabbitmq: RabbitMQ, vhost: str) -> None:
    broker = rabbitmq.url(vhost)
    (finding,) = await troubles(broker, "orders")
    assert (finding.severity, finding.check) == ("problem", "queues")
    assert finding.line.startswith("RabbitMQ has no queue orders, and without an exchange a topic is the queue")
    rabbitmq.declare_queue(vhost, "orders")
    assert await troubles(broker, "orders") == []


async def test_an_exchange_that_is_not_there_is_found(rabbitmq: RabbitMQ, vhost: str) -> None:
    broker = f"{rabbitmq.url(vhost)}?exchange=shop"
    (finding,) = await troubles(broker, "orders")
    assert (finding.severity, finding.check) == ("problem", "queues")
    assert finding.line.startswith("RabbitMQ has no exchange shop: ")
    rabbitmq.declare_exchange(vhost, "shop")
    assert await troubles(broker, "orders") == []


async def test_what_is_wrong_with_topics_of_kafka_is_found(kafka: Kafka) -> None:
    topics = Topics(kafka)
    topics.make("plain")
    topics.make("stuck", config={"min.insync.replicas": "2"})
    topics.make("unclean", config={"unclean.leader.election.enable": "true"})
    topics.make("small", config={"max.message.bytes": "2000"})

    async def found(name: str) -> list[tuple[str, str]]:
        return [(one.severity, one.check) for one in await troubles(kafka.url, topics.full(name))]

    alone = ("note", "replicas")  # the cluster has one broker
    assert await found("plain") == [alone]
    assert await found("stuck") == [("problem", "replicas in sync"), alone]
    assert await found("unclean") == [("problem", "unclean elections"), alone]
    assert await found("small") == [alone, ("note", "size of messages")]
    assert await found("nowhere") == [("note", "topics")]
