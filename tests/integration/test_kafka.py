"""What is special about Kafka: each refusal in its own words, what passes unchanged, partitions, CloudEvents."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, from_structured
from cloudevents.core.formats.json import JSONFormat
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it has them, and does not say so
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from pillarbox.brokers.kafka import KafkaOptions, KafkaPublisher, KafkaSubscriber
from pillarbox.core.message import Message, encode
from pillarbox.errors import BrokerUnavailable, ConfigError, PublishError, PublishRejected
from pillarbox.testing.contracts.publisher import answers, batch, bodies, same
from pillarbox.testing.contracts.subscriber import receive
from servers.kafka import Kafka
from tests.integration.an_entry import an_entry, check_cloudevent, check_delivery
from tests.integration.kafka_topics import Publisher, Topics

MakePublisher = Callable[..., Publisher]


@pytest.fixture
def topics(kafka: Kafka) -> Iterator[Topics]:
    """No topic yet."""
    yield Topics(kafka)
    kafka.proxies[0].heal()


@pytest.fixture
async def publisher(topics: Topics) -> AsyncIterator[MakePublisher]:
    """Opens publishers with options."""
    opened: list[KafkaPublisher] = []

    def make(at: str = topics.server.url, *, timeout: float = 5, **options: Any) -> Publisher:
        table = {name.replace("_", "."): value for name, value in options.items()}
        given = KafkaOptions.read(at.removeprefix("kafka:"), table)
        opened.append(KafkaPublisher(given, publish_timeout=timedelta(seconds=timeout)))
        return topics.publisher(opened[-1])

    yield make
    for one in opened:
        await one.close()


async def publish(publisher: Publisher, *messages: Message) -> list[PublishError | None]:
    """Send messages and give what became of each, in order."""
    publisher.send(messages)
    found = dict(await answers(publisher, len(messages)))
    return [found[message.ticket] for message in messages]


async def refusal(publisher: Publisher, message: Message) -> str:
    """Send a message that must be refused for good, and give the words."""
    (error,) = await publish(publisher, message)
    assert type(error) is PublishRejected
    return str(error)


async def test_an_unknown_topic_is_refused_in_the_brokers_words_and_others_go(
    topics: Topics, publisher: MakePublisher
) -> None:
    topics.make("orders")
    ours = publisher(timeout=3)
    unknown, known = await publish(ours, *batch("a", topic="nowhere"), *batch("a", first=2))
    assert type(unknown) is PublishRejected
    assert "Broker: Unknown topic or partition" in str(unknown)
    assert known is None


async def test_a_topic_that_was_refused_is_published_to_once_it_is_made(
    topics: Topics, publisher: MakePublisher
) -> None:
    ours = publisher(timeout=3)
    await refusal(ours, *batch("a"))
    topics.make("orders")
    first, *_ = await publish(ours, *batch("a", first=2))
    assert first is None or type(first) is BrokerUnavailable, "refused for good, though the topic is there"
    assert await publish(ours, *batch("a", first=3)) == [None]


async def test_a_topic_is_not_refused_while_nobody_could_say_whether_it_is_there(publisher: MakePublisher) -> None:
    (error,) = await publish(publisher("kafka://127.0.0.1:1"), *batch("a", topic="nowhere"))
    assert type(error) is BrokerUnavailable


@pytest.mark.parametrize("topic", ["two words", "x" * 250, "a/b"])
async def test_a_topic_that_cannot_be_is_refused(publisher: MakePublisher, topic: str) -> None:
    assert "Invalid topic" in await refusal(publisher(), *batch("a", topic=topic))


async def test_a_message_is_measured_before_it_is_sent_with_key_and_headers(
    topics: Topics, publisher: MakePublisher
) -> None:
    topics.make("orders")
    ours = publisher(message_max_bytes=2000)
    below = Message("orders", "a", {"id": "1"}, b"x" * 1500, 1)
    above = Message("orders", "b", {"id": "2", "long": "ü" * 300}, b"x" * 1500, 2)
    first, second = await publish(ours, below, above)
    assert first is None
    assert type(second) is PublishRejected
    assert "Message size too large" in str(second)
    assert len(topics.stored()) == 1


async def test_of_a_batch_that_the_broker_refuses_the_one_that_is_too_large_alone_is_refused(
    topics: Topics, publisher: MakePublisher
) -> None:
    topics.make("orders", partitions=3, config={"max.message.bytes": "3000"})
    topics.make("mails")
    messages = batch("aabbc") + batch("b", first=6, padding=5000) + batch("abcb", first=7)
    messages += batch("z", first=11, topic="mails")
    outcomes = await publish(publisher(), *messages)
    refused = [message.ticket for message, error in zip(messages, outcomes, strict=True) if error is not None]
    assert refused == [6, 8, 10], "the one that is too large, and what stands behind it in its key"
    assert type(outcomes[5]) is PublishRejected
    assert "Broker: Message size too large" in str(outcomes[5])
    assert {type(outcomes[7]), type(outcomes[9])} == {PublishError}
    assert bodies(topics.stored("orders"), "b") == [b"b3", b"b4"]
    assert sorted(bodies(topics.stored())) == sorted(m.body for m in messages if m.ticket not in refused)


async def test_around_one_that_the_client_does_not_take_all_others_arrive_once_and_in_order(
    topics: Topics, publisher: MakePublisher
) -> None:
    topics.make("orders")
    messages = batch("abc" * 4)
    messages[4] = messages[4]._replace(body=b"x" * 2_000_000)
    found = await publish(publisher(), *messages)
    assert type(found[4]) is PublishRejected
    behind = {7, 10}
    assert {place for place, error in enumerate(found) if error is not None} == {4} | behind
    stored = topics.stored("orders")
    sent = [message for place, message in enumerate(messages) if place not in {4} | behind]
    assert [message.body for message in stored] == [message.body for message in sent]


async def test_where_the_clients_queue_is_shorter_than_a_flight_all_arrive_once_and_in_order(
    topics: Topics, publisher: MakePublisher
) -> None:
    topics.make("orders")
    messages = batch("abc" * 20)
    ours = publisher(queue_buffering_max_messages=7)
    assert set(await publish(ours, *messages)) == {None}
    assert [message.body for message in topics.stored("orders")] == [message.body for message in messages]


async def test_records_go_one_by_one_where_a_topic_takes_less_at_once_than_we_send(
    topics: Topics, publisher: MakePublisher
) -> None:
    topics.make("orders", config={"max.message.bytes": "20000"})
    ours = publisher(timeout=10)
    messages = batch("ab" * 100, padding=1000)
    assert set(await publish(ours, *messages)) == {None}
    assert set(await publish(ours, *(m._replace(ticket=m.ticket + 1000) for m in messages))) == {None}
    assert bodies(topics.stored(), "a") == 2 * bodies(messages, "a")


async def test_a_record_that_the_topic_does_not_allow_is_refused(topics: Topics, publisher: MakePublisher) -> None:
    topics.make("orders", config={"cleanup.policy": "compact"})
    with_key, without = await publish(publisher(), *batch("a"), Message("orders", None, {"id": "2"}, b"x", 2))
    assert with_key is None
    assert type(without) is PublishRejected
    assert "Broker: Broker failed to validate record" in str(without)


async def test_who_may_not_write_to_a_topic_is_refused_in_the_brokers_words(
    kafka: Kafka, topics: Topics, publisher: MakePublisher
) -> None:
    topics.make("orders", "mails")
    allow(kafka, "shop", topics.full("orders"))
    ours = publisher(kafka.sasl("shop"))
    allowed, denied = await publish(ours, *batch("a"), *batch("a", first=2, topic="mails"))
    assert allowed is None
    assert type(denied) is PublishRejected
    assert "Topic authorization failed" in str(denied)


async def test_a_wrong_password_is_an_outage_that_says_so_at_once(kafka: Kafka, publisher: MakePublisher) -> None:
    begin = asyncio.get_running_loop().time()
    (error,) = await publish(publisher(kafka.sasl("shop", "wrong"), timeout=10), *batch("a"))
    assert type(error) is BrokerUnavailable
    assert "Authentication failed" in str(error)
    assert "mend user and password" in str(error)
    assert asyncio.get_running_loop().time() - begin < 8


async def test_a_server_that_is_not_there_is_told_at_once(publisher: MakePublisher) -> None:
    begin = asyncio.get_running_loop().time()
    (error,) = await publish(publisher("kafka://127.0.0.1:1", timeout=20), *batch("a"))
    assert type(error) is BrokerUnavailable
    assert "Connection refused" in str(error)
    assert asyncio.get_running_loop().time() - begin < 5


async def test_the_key_decides_the_partition_as_with_java_clients(topics: Topics, publisher: MakePublisher) -> None:
    """The partitions are those of org.apache.kafka's Utils.murmur2, of three."""
    topics.make("orders", partitions=3)
    expected = {"21": murmur2(b"21") % 3, "foobar": murmur2(b"foobar") % 3, "Größe 7": murmur2("Größe 7".encode()) % 3}
    await publish(publisher(), *(Message("orders", key, {}, b"", n) for n, key in enumerate(expected)))
    assert {(r.key() or b"").decode(): r.partition() for r in topics.records()} == expected


def murmur2(data: bytes) -> int:
    """Hash as Java's client does: org.apache.kafka.common.utils.Utils.murmur2, made positive."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k ^= k >> 24
        h = (h * m & mask) ^ (k * m & mask)
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return (h ^ h >> 15) & 0x7FFFFFFF


def test_our_reference_is_the_hash_of_java() -> None:
    # The vectors of Kafka's own UtilsTest: 21 → -973932308, foobar → -790332482, a-little-bit-long-string → -985981536.
    assert [murmur2(text) for text in (b"21", b"foobar", b"a-little-bit-long-string")] == [
        number & 0x7FFFFFFF for number in (-973932308, -790332482, -985981536)
    ]


ODD = [
    Message("orders", "a", {"id": "1", "content_type": "application/avro"}, bytes(range(256)), 1),
    Message("orders", "b", {"id": "2"}, b"", 2),
    Message("orders", "c", {"id": "3"}, b"x" * 262_144, 3),
    Message("orders", " leading\nand two lines ", {"id": "4", "said": " spaces ", "lines": "a\r\nb"}, b"{}", 4),
    Message("orders", None, {"id": "5", "Größe": "Ελληνικά", "two words": "yes", "nul": "a\0b"}, b"{}", 5),
    Message("orders", "nul\0nul", {"id": "6", "empty": "", "emoji": "👍", "quotes": '"\\'}, b"null", 6),
]


async def test_odd_messages_arrive_unchanged(kafka: Kafka, topics: Topics, publisher: MakePublisher) -> None:
    topics.make("orders")
    assert await publish(publisher(), *ODD) == [None] * len(ODD)
    assert all(same(one, other) for one, other in zip(topics.stored(), ODD, strict=True))
    subscriber = subscriber_of(kafka, topics, "orders")
    received = await receive(subscriber, len(ODD))
    await subscriber.close()
    assert all(same(topics.seen(one.message), sent) for one, sent in zip(received, ODD, strict=True))


async def test_a_header_name_with_nul_is_refused_and_the_others_go(topics: Topics, publisher: MakePublisher) -> None:
    topics.make("orders")
    outcomes = await publish(publisher(), Message("orders", "a", {"a\0b": "1"}, b"", 1), *batch("b", first=2))
    assert type(outcomes[0]) is PublishRejected
    assert "NUL" in str(outcomes[0])
    assert outcomes[1] is None


async def test_a_plain_message_has_the_headers_of_the_reference(topics: Topics, publisher: MakePublisher) -> None:
    topics.make("order-events")
    await publish(publisher(), encode(an_entry(), 1))
    (record,) = topics.records()
    assert record.key() == "Größe 7".encode()
    assert record.value() == b'{"total": 42}'
    assert dict(record.headers() or ()) == {
        "id": an_entry().event_id.encode(),
        "type": b"OrderPlaced",
        "aggregate_type": b"order",
        "aggregate_id": "Größe 7".encode(),
        "content_type": b"application/json",
        "shop": "Zürich".encode(),
    }


@pytest.mark.parametrize(
    ("format", "read"), [("cloudevents", from_binary), ("cloudevents-structured", from_structured)]
)
async def test_the_cloudevents_sdk_reads_our_events(
    topics: Topics, publisher: MakePublisher, format: str, read: Any
) -> None:
    topics.make("order-events")
    await publish(publisher(), encode(an_entry(), 1, format))
    (record,) = topics.records()
    headers: Any = record.headers()
    event = read(KafkaMessage(dict(headers), record.key(), record.value() or b""), JSONFormat())
    check_cloudevent(event)


@pytest.mark.parametrize("format", ["plain", "cloudevents", "cloudevents-structured"])
async def test_our_own_subscriber_reads_every_format(
    kafka: Kafka, topics: Topics, publisher: MakePublisher, format: str
) -> None:
    topics.make("order-events")
    await publish(publisher(), encode(an_entry(), 1, format))
    subscriber = subscriber_of(kafka, topics, "order-events")
    (delivery,) = await receive(subscriber, 1)
    await subscriber.close()
    check_delivery(delivery)


async def test_a_setting_that_librdkafka_does_not_know_is_told_by_its_name(publisher: MakePublisher) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.lingr\.ms"):
        publisher(lingr_ms=5)
    with pytest.raises(ConfigError, match=r"kafka\.batch\.size"):
        publisher(batch_size="large")


def subscriber_of(kafka: Kafka, topics: Topics, topic: str) -> KafkaSubscriber:
    options = KafkaOptions.read(kafka.url.removeprefix("kafka:"), {})
    return KafkaSubscriber(options, consumer=topics.full("billing"), topics=[topics.full(topic)])


def allow(kafka: Kafka, user: str, topic: str) -> None:
    """Let a user write to a topic."""
    allowed = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    admin = kafka.admin()
    for done in admin.create_acls([allowed]).values():
        done.result(10)
