"""What is special about RabbitMQ: each way in which it refuses, blocks or goes away, in its own words."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import aiormq
import pytest
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_rabbitmq_event

from pillarbox.brokers.rabbitmq import Address, RabbitPublisher, RabbitSubscriber
from pillarbox.core.entry import Entry
from pillarbox.core.message import Message, decode, encode
from pillarbox.errors import BrokerUnavailable, PublishRejected
from pillarbox.ports import Outcome
from pillarbox.testing.contracts.publisher import accepted, answers, batch, bodies, errors
from pillarbox.testing.contracts.subscriber import receive, texts
from servers.confirm_loser import ConfirmLoser
from servers.fault_proxy import FaultProxy
from servers.rabbitmq import LARGEST_MESSAGE, RabbitMQ
from tests.contracts.rabbitmq_bench import stored_in


@asynccontextmanager
async def publisher_to(url: str, timeout: float = 5) -> AsyncIterator[RabbitPublisher]:
    publisher = RabbitPublisher(Address.parse(url), publish_timeout=timedelta(seconds=timeout))
    try:
        yield publisher
    finally:
        await publisher.close()


async def outcomes_of(url: str, messages: Sequence[Message]) -> list[Outcome]:
    async with publisher_to(url) as publisher:
        publisher.send(messages)
        return await answers(publisher, len(messages))


def words(outcomes: Sequence[Outcome]) -> set[str]:
    return {str(outcome.error) for outcome in outcomes if outcome.error is not None}


async def test_without_a_queue_of_that_name_it_is_returned(rabbitmq: RabbitMQ, vhost: str) -> None:
    outcomes = await outcomes_of(rabbitmq.url(vhost), batch("a", topic="nowhere"))
    assert errors(outcomes) == {1: PublishRejected}
    assert words(outcomes) == {"RabbitMQ returned it (312 NO_ROUTE): there is no queue 'nowhere'"}


async def test_without_a_queue_bound_for_the_topic_it_is_returned(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_exchange(vhost, "shop")
    outcomes = await outcomes_of(f"{rabbitmq.url(vhost)}?exchange=shop", batch("a"))
    (said,) = words(outcomes)
    assert said == (
        "RabbitMQ returned it (312 NO_ROUTE): no queue is bound to the exchange 'shop' for the topic 'orders'"
    )


async def test_of_many_in_flight_just_the_unroutable_are_refused(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    messages = [m if m.ticket % 3 else m._replace(topic="nowhere") for m in batch("abcde" * 200)]
    messages += [m._replace(topic="nowhere", headers={}) for m in batch("xyz", first=1001)]  # not even an id
    outcomes = await outcomes_of(rabbitmq.url(vhost), messages)
    good = [m for m in messages if m.topic == "orders"]
    assert accepted(messages, outcomes) == good
    assert errors(outcomes) == {m.ticket: None if m.topic == "orders" else PublishRejected for m in messages}
    assert bodies(stored_in(rabbitmq, vhost, "orders")) == bodies(good)


async def test_unless_it_is_mandatory_nobody_hears_of_it(rabbitmq: RabbitMQ, vhost: str) -> None:
    url = f"{rabbitmq.url(vhost)}?mandatory=false&unsafe=true"
    assert errors(await outcomes_of(url, batch("a", topic="nowhere"))) == {1: None}


async def test_without_the_exchange_it_is_refused_until_there_is_one(rabbitmq: RabbitMQ, vhost: str) -> None:
    async with publisher_to(f"{rabbitmq.url(vhost)}?exchange=shop") as publisher:
        publisher.send(batch("abc"))
        outcomes = await answers(publisher, 3)
        assert set(errors(outcomes).values()) == {PublishRejected}
        assert words(outcomes) == {f"RabbitMQ refused it: NOT_FOUND - no exchange 'shop' in vhost '{vhost}'"}
        rabbitmq.declare_exchange(vhost, "shop")
        rabbitmq.declare_queue(vhost, "orders")
        rabbitmq.bind(vhost, "shop", "orders", "orders")
        publisher.send(batch("a", first=4))
        assert errors(await answers(publisher, 1)) == {4: None}


async def test_whoever_may_not_write_is_refused(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_exchange(vhost, "shop")
    rabbitmq.create_user("reader", vhost, read=".*")
    url = rabbitmq.url(vhost, user="reader", password="reader")
    outcomes = await outcomes_of(f"{url}?exchange=shop", batch("ab"))
    assert set(errors(outcomes).values()) == {PublishRejected}
    (said,) = words(outcomes)
    assert "ACCESS_REFUSED" in said
    assert "'shop'" in said


async def test_a_topic_that_is_not_allowed_does_not_harm_others(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_exchange(vhost, "shop")
    for topic in ("orders", "secrets"):
        rabbitmq.declare_queue(vhost, topic)
        rabbitmq.bind(vhost, "shop", topic, topic)
    rabbitmq.create_user("clerk", vhost, write=".*")
    rabbitmq.ask("PUT", f"topic-permissions/{vhost}/clerk", {"exchange": "shop", "write": "^orders$", "read": ".*"})
    messages = [m if m.ticket % 10 else m._replace(topic="secrets") for m in batch("abcde" * 20)]
    url = rabbitmq.url(vhost, user="clerk", password="clerk")
    outcomes = await outcomes_of(f"{url}?exchange=shop", messages)
    assert errors(outcomes) == {m.ticket: None if m.topic == "orders" else PublishRejected for m in messages}
    assert all("access to topic 'secrets'" in said for said in words(outcomes))
    stored = bodies(stored_in(rabbitmq, vhost, "orders"))
    assert list(dict.fromkeys(stored)) == bodies(m for m in messages if m.topic == "orders")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_a_full_queue_refuses(kind: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    full = {"x-queue-type": kind, "x-max-length": 5, "x-overflow": "reject-publish"}
    rabbitmq.declare_queue(vhost, "orders", **full)
    messages = batch("a" * 50)
    async with publisher_to(rabbitmq.url(vhost)) as publisher:
        outcomes = []
        for message in messages:  # one by one: a quorum queue may take some more of what comes at once
            publisher.send([message])
            outcomes += await answers(publisher, 1)
    stored = bodies(stored_in(rabbitmq, vhost, "orders"))
    assert 5 <= len(stored) < 50
    assert stored == bodies(accepted(messages, outcomes))
    assert set(errors(outcomes).values()) == {None, PublishRejected}
    assert all("basic.nack" in said for said in words(outcomes))


async def test_a_message_that_is_too_large_does_not_harm_others(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    messages = batch("abcde" * 20)
    for number in (17, 60):
        messages[number] = messages[number]._replace(body=b"x" * (LARGEST_MESSAGE + 1))
    async with publisher_to(rabbitmq.url(vhost)) as publisher:
        publisher.send(messages)
        outcomes = await answers(publisher, len(messages))
        publisher.send([messages[17]._replace(ticket=1000)])
        again = await answers(publisher, 1)
    refused = {ticket for ticket, kind in errors(outcomes).items() if kind is not None}
    assert refused == {18, 61}
    assert any("message size" in said for said in words(outcomes))
    assert "RabbitMQ takes at most 1,048,576 (max_message_size)" in words(again).pop()
    stored = bodies(stored_in(rabbitmq, vhost, "orders"))
    assert list(dict.fromkeys(stored)) == bodies(m for m in messages if m.ticket not in refused)


async def test_a_refusal_whose_words_name_nobody_finds_the_guilty_one(
    rabbitmq: RabbitMQ, vhost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.brokers.rabbitmq.publisher._TOO_LARGE", re.compile("(?!)"))
    rabbitmq.declare_queue(vhost, "orders")
    messages = batch("abcde" * 20)
    messages[17] = messages[17]._replace(body=b"x" * (LARGEST_MESSAGE + 1))
    outcomes = await outcomes_of(rabbitmq.url(vhost), messages)
    assert [ticket for ticket, kind in errors(outcomes).items() if kind is not None] == [18]
    stored = bodies(stored_in(rabbitmq, vhost, "orders"))
    assert list(dict.fromkeys(stored)) == bodies(m for m in messages if m.ticket != 18)


async def test_headers_as_large_as_a_frame_arrive(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    fits = Message("orders", "a", {"id": "1", "big": "x" * 131_000}, b"x", 1)
    too_large = Message("orders", "a", {"id": "2", "big": "x" * 131_072}, b"x", 2)
    outcomes = await outcomes_of(rabbitmq.url(vhost), [fits, too_large])
    assert errors(outcomes) == {1: None, 2: PublishRejected}
    assert [dict(message.headers) for message in stored_in(rabbitmq, vhost, "orders")] == [fits.headers]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            lambda server, vhost: server.url(vhost, password="wrong"),
            r"does not let us in: .*ACCESS_REFUSED.*; mend user and password there, or in the broker's URL",
        ),
        (lambda server, vhost: server.url("nowhere"), "no such virtual host"),
        (lambda server, vhost: server.url(vhost, port=1), "Connect call failed"),
    ],
    ids=["wrong password", "no such virtual host", "nobody there"],
)
async def test_where_nobody_lets_us_in_it_is_away(
    url: Callable[[RabbitMQ, str], str], said: str, rabbitmq: RabbitMQ, vhost: str
) -> None:
    outcomes = await outcomes_of(url(rabbitmq, vhost), batch("ab"))
    assert set(errors(outcomes).values()) == {BrokerUnavailable}
    (heard,) = words(outcomes)
    assert re.search(said, heard)
    assert "wrong" not in heard


async def test_a_server_short_of_memory_is_away_and_gets_nothing_more(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    async with publisher_to(rabbitmq.url(vhost), timeout=1) as publisher:
        await asyncio.to_thread(rabbitmq.control, "set_vm_memory_high_watermark", "0.0000001")
        try:
            publisher.send(batch("a"))
            assert errors(await answers(publisher, 1)) == {1: BrokerUnavailable}
            for first in range(2, 12):
                publisher.send(batch("a", first=first))
                outcomes = await answers(publisher, 1)
                assert words(outcomes).pop().endswith("has blocked the connection: it is short of memory or disk space")
        finally:
            await asyncio.to_thread(rabbitmq.control, "set_vm_memory_high_watermark", "0.4")
        publisher.send(batch("a", first=12))
        while errors(outcomes := await answers(publisher, 1)) != {12: None}:
            publisher.send(batch("a", first=12))
    assert bodies(stored_in(rabbitmq, vhost, "orders")) == [b"a1", b"a12"]


async def test_a_connection_that_an_operator_closes_is_opened_again(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    with FaultProxy(rabbitmq.port) as proxy:
        async with publisher_to(rabbitmq.url(vhost, port=proxy.port)) as publisher:
            publisher.send(batch("a"))
            await answers(publisher, 1)
            proxy.reset()
            proxy.heal()
            publisher.send(batch("a", first=2))
            (outcome,) = await answers(publisher, 1)
            if outcome.error is not None:  # it was written before the reset was noticed
                assert isinstance(outcome.error, BrokerUnavailable)
                publisher.send(batch("a", first=3))
                assert errors(await answers(publisher, 1)) == {3: None}


async def test_a_link_on_which_nothing_is_heard_is_given_up(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    async with ConfirmLoser(rabbitmq.port) as loser:
        loser.lose([0])
        async with publisher_to(rabbitmq.url(vhost, port=loser.port), timeout=0.5) as publisher:
            publisher.send(batch("a"))
            assert errors(await answers(publisher, 1)) == {1: BrokerUnavailable}
            assert loser.accepted == 1
            publisher.send(batch("a", first=2))
            assert errors(await answers(publisher, 1)) == {2: None}
            assert loser.accepted == 2


async def test_the_client_does_not_log_what_is_told_as_an_outage(
    rabbitmq: RabbitMQ, vhost: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await outcomes_of(rabbitmq.url(vhost, port=1), batch("a"))
    assert not caplog.records


def entry(**fields: object) -> Entry:
    given = {
        "position": 1,
        "event_id": "0192c5a4-0000-7000-8000-000000000001",
        "aggregate_type": "order",
        "aggregate_id": "42 ü",
        "event_type": "OrderPlaced",
        "topic": "orders",
        "data": '{"total": 4.20}',
        "created_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "headers": '{"language": "Ελληνικά"}',
        "content_type": None,
        "idempotency_key": None,
        "number": None,
        "available_at": None,
        "occurred_at": None,
    }
    return Entry(**(given | fields))  # type: ignore[arg-type]


async def raw(url: str, queue: str) -> RabbitMQMessage:
    """Take a message off a queue as any other client does."""
    connection = await aiormq.connect(url.replace("rabbitmq:", "amqp:"))
    try:
        channel = await connection.channel()
        found = await channel.basic_get(queue, no_ack=True)
    finally:
        await connection.close()
    properties = found.header.properties
    headers = {name: str(value) for name, value in (properties.headers or {}).items() if name != "x-delivery-count"}
    return RabbitMQMessage(headers, properties.content_type, found.body)


@pytest.mark.parametrize("format", ["cloudevents", "cloudevents-structured"])
@pytest.mark.parametrize("data", ['{"total": 4.20}', b"\x00\xff"])
async def test_the_cloudevents_sdk_reads_what_we_write(
    format: str, data: str | bytes, rabbitmq: RabbitMQ, vhost: str
) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    content_type = "application/json" if isinstance(data, str) else "application/octet-stream"
    one = entry(data=data, content_type=content_type)
    await outcomes_of(rabbitmq.url(vhost), [encode(one, 1, format)])
    event = from_rabbitmq_event(await raw(rabbitmq.url(vhost), "orders"))
    assert (event.get_id(), event.get_type(), event.get_source()) == (one.event_id, "OrderPlaced", "/order")
    assert (event.get_subject(), event.get_extension("partitionkey")) == ("42 ü", "42 ü")
    assert event.get_datacontenttype() == content_type
    assert event.get_data() == ({"total": 4.2} if isinstance(data, str) else data)


@pytest.mark.parametrize("format", ["plain", "cloudevents", "cloudevents-structured"])
async def test_a_consumer_reads_the_event_in_every_format(format: str, rabbitmq: RabbitMQ, vhost: str) -> None:
    subscriber = RabbitSubscriber(
        Address.parse(f"{rabbitmq.url(vhost)}?exchange=shop"), consumer="billing", topics=["orders"]
    )
    assert not await subscriber.deliveries(1, 0.0)  # it makes the exchange and its queue
    await outcomes_of(f"{rabbitmq.url(vhost)}?exchange=shop", [encode(entry(), 1, format)])
    (delivery,) = await receive(subscriber, 1)
    event = decode(delivery)
    await subscriber.close()
    assert (str(event.id), event.type, event.aggregate) == (entry().event_id, "OrderPlaced", ("order", "42 ü"))
    assert (event.payload, dict(event.headers)) == ({"total": 4.2}, {"language": "Ελληνικά"})
    assert delivery.message.key == "42 ü"


@pytest.mark.parametrize("body", [b"", bytes(range(256)), b"x" * 262_144], ids=["empty", "binary", "256 KiB"])
async def test_bodies_arrive_as_they_were_sent(body: bytes, rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    subscriber = RabbitSubscriber(Address.parse(rabbitmq.url(vhost)), consumer="billing", topics=["orders"])
    headers = {"id": "1", "content_type": "application/avro", "Upper-Case": "Ελληνικά", "empty": ""}
    await outcomes_of(rabbitmq.url(vhost), [Message("orders", "a", headers, body, 1)])
    (delivery,) = await receive(subscriber, 1)
    await subscriber.close()
    assert delivery.message == Message("orders", "a", headers, body)


async def test_a_consumer_whose_queue_is_deleted_makes_it_again(rabbitmq: RabbitMQ, vhost: str) -> None:
    url = f"{rabbitmq.url(vhost)}?exchange=shop"
    subscriber = RabbitSubscriber(Address.parse(url), consumer="billing", topics=["orders"])
    await subscriber.deliveries(1, 0.0)
    waiting = asyncio.create_task(subscriber.deliveries(1, 10.0))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(rabbitmq.ask, "DELETE", f"queues/{vhost}/billing.orders")
    with pytest.raises(BrokerUnavailable):
        await waiting
    await subscriber.deliveries(1, 0.0)
    await outcomes_of(url, batch("a"))
    assert texts(await receive(subscriber, 1)) == [b"a1"]
    await subscriber.close()


async def test_a_consumer_makes_a_durable_queue_with_one_active_reader(rabbitmq: RabbitMQ, vhost: str) -> None:
    address = Address.parse(f"{rabbitmq.url(vhost)}?exchange=shop")
    subscriber = RabbitSubscriber(address, consumer="billing", topics=["orders"])
    await subscriber.deliveries(1, 0.0)
    await subscriber.close()
    queue = rabbitmq.ask("GET", f"queues/{vhost}/billing.orders?disable_stats=true&enable_queue_totals=true")
    assert queue["arguments"] == {"x-queue-type": "quorum", "x-single-active-consumer": True}
    assert queue["durable"]
    assert rabbitmq.ask("GET", f"exchanges/{vhost}/shop")["durable"]


async def test_a_consumer_may_do_with_reading_alone(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_exchange(vhost, "shop")
    rabbitmq.declare_queue(vhost, "billing.orders", **{"x-single-active-consumer": True})
    rabbitmq.bind(vhost, "shop", "billing.orders", "orders")
    rabbitmq.create_user("reader", vhost, read=".*")
    url = f"{rabbitmq.url(vhost, user='reader', password='reader')}?exchange=shop"
    subscriber = RabbitSubscriber(Address.parse(url), consumer="billing", topics=["orders"])
    await outcomes_of(f"{rabbitmq.url(vhost)}?exchange=shop", batch("a"))
    assert texts(await receive(subscriber, 1)) == [b"a1"]
    await subscriber.close()


async def test_what_comes_again_says_which_attempt_it_is(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.declare_queue(vhost, "orders", **{"x-single-active-consumer": True})
    await outcomes_of(rabbitmq.url(vhost), batch("a"))
    attempts = []
    for _ in range(3):
        subscriber = RabbitSubscriber(Address.parse(rabbitmq.url(vhost)), consumer="billing", topics=["orders"])
        attempts += [(delivery.attempt, delivery.redelivered) for delivery in await receive(subscriber, 1)]
        await subscriber.close()
    assert attempts == [(1, False), (2, True), (3, True)]
