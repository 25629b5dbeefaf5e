"""Redis and Valkey as they are: what they refuse and in which words, what they lose, how they come back."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cloudevents.core.bindings import kafka
from redis.exceptions import ExecAbortError, NoPermissionError

from pillarbox.brokers.redis import RedisPublisher, RedisSubscriber
from pillarbox.brokers.redis.publisher import Order
from pillarbox.brokers.sends import Send
from pillarbox.core.entry import Entry
from pillarbox.core.message import Message, encode
from pillarbox.errors import BrokerUnavailable, ConfigError, PublishError, PublishRejected
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.contracts.publisher import answers, batch, bodies
from pillarbox.testing.contracts.subscriber import receive
from servers.fault_proxy import FaultProxy
from servers.redis import Redis

Errors = dict[int, PublishError | None]


@asynccontextmanager
async def publisher_at(url: str, seconds: float = 2, **options: Any) -> AsyncIterator[RedisPublisher]:
    publisher = RedisPublisher(url, options=options, publish_timeout=timedelta(seconds=seconds), hooks=Hooks())
    try:
        yield publisher
    finally:
        await publisher.close()


@asynccontextmanager
async def subscriber_at(url: str) -> AsyncIterator[RedisSubscriber]:
    subscriber = RedisSubscriber(url, consumer="billing", topics=["orders"])
    try:
        yield subscriber
    finally:
        await subscriber.close()


async def publish(publisher: RedisPublisher, messages: Sequence[Message]) -> Errors:
    publisher.send(messages)
    return dict(await answers(publisher, len(messages)))


def stored(server: Redis, topic: str = "orders") -> list[bytes]:
    with server.client() as client:
        return [fields[b"body"] for _, fields in client.xrange(topic)]


async def test_a_stream_whose_name_is_taken_refuses_for_good_and_others_go(redis: Redis) -> None:
    with redis.client() as client:
        client.set("mails", "no stream")
    async with publisher_at(redis.url()) as publisher:
        errors = await publish(publisher, batch("a") + batch("bb", first=2, topic="mails") + batch("a", first=4))
    assert [errors[1], errors[4]] == [None, None]
    assert isinstance(errors[2], PublishRejected)
    assert "WRONGTYPE Operation against a key holding the wrong kind of value" in str(errors[2])
    assert "mails-b-2" in str(errors[2])
    assert type(errors[3]) is PublishError, "what stands behind a refused one is not refused for good"
    assert stored(redis) == [b"a1", b"a4"]


async def test_a_stream_that_the_user_may_not_write_refuses_for_good_and_others_go(redis: Redis) -> None:
    with redis.client() as client:
        client.acl_setuser("shop", enabled=True, reset=True, passwords=["+pw"], keys=["orders"], commands=["+@all"])
    async with publisher_at(redis.url(login="shop:pw@")) as publisher:
        errors = await publish(publisher, batch("a") + batch("ab", first=2, topic="mails") + batch("a", first=4))
    assert [errors[1], errors[4]] == [None, None]
    assert isinstance(errors[2], PublishRejected)
    assert isinstance(errors[3], PublishRejected)
    assert "NOPERM" in str(errors[2])
    assert stored(redis) == [b"a1", b"a4"]


async def test_a_right_that_is_given_in_mid_batch_lets_nothing_overtake(redis: Redis) -> None:
    async with publisher_at(redis.url()) as publisher:
        send = Send(batch("aab"), 0.0)
        orders = [Order(send, message, b"") for message in send.messages]
        refused: list[tuple[Order, PublishError]] = []
        answers = [b"OK", NoPermissionError("No permissions to access a key"), b"QUEUED", b"QUEUED", ExecAbortError("")]
        assert publisher._without_refused(orders, answers, refused) == orders[2:]
    assert [type(error) for _, error in refused] == [PublishRejected, PublishError]


async def test_what_was_refused_before_a_cut_is_not_overtaken_by_the_first_message_after_it(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.brokers.redis.publisher.LARGEST_TRANSACTION", 1000)
    async with publisher_at(redis.url()) as publisher:
        send = Send(batch("abaa", padding=300), 0.0)
        refused: list[tuple[Order, PublishError]] = []
        transactions = publisher._transactions([send], refused)
        first = next(transactions)
        refused.append((first[0], PublishRejected("the first of them")))
        assert [order.message.ticket for orders in [first, *transactions] for order in orders] == [1, 2]
    assert [order.message.ticket for order, _ in refused] == [1, 3, 4]


async def test_a_user_that_may_not_add_at_all_is_waited_for(redis: Redis) -> None:
    with redis.client() as client:
        client.acl_setuser("shop", enabled=True, reset=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-xadd"])
    async with publisher_at(redis.url(login="shop:pw@")) as publisher:
        errors = await publish(publisher, batch("ab"))
        assert {type(error) for error in errors.values()} == {BrokerUnavailable}
        assert re.search(r"NOPERM.*xadd.*grant the user this right", str(errors[1]))
        with redis.client() as client:
            client.acl_setuser("shop", enabled=True, keys=["*"], commands=["+xadd"])
        assert await publish(publisher, batch("a", first=3)) == {3: None}


@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_a_login_that_fails_is_waited_for(own_redis: Callable[..., Redis], kind: str) -> None:
    server = own_redis(kind)
    server.configure(requirepass="secret")
    for login in ("", "shop:wrong@", "default:wrong@"):
        async with publisher_at(server.url(login=login)) as publisher:
            (error,) = (await publish(publisher, batch("a"))).values()
        assert isinstance(error, BrokerUnavailable)
        assert re.search("does not let us in: .*mend user and password", str(error))
        assert ":wrong" not in str(error)
        async with subscriber_at(server.url(login=login)) as subscriber:
            with pytest.raises(BrokerUnavailable, match="does not let us in"):
                await subscriber.deliveries(1, 0.0)
    async with publisher_at(server.url(login=":secret@")) as publisher:
        assert await publish(publisher, batch("a")) == {1: None}


@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_a_password_that_is_changed_and_changed_back_needs_nobody_here(
    own_redis: Callable[..., Redis], kind: str
) -> None:
    server = own_redis(kind)
    with server.client() as client:
        client.acl_setuser("shop", enabled=True, passwords=["+old"], keys=["*"], commands=["+@all"])
    url = server.url(login="shop:old@")
    async with publisher_at(url) as publisher, subscriber_at(url) as subscriber:
        assert await publish(publisher, batch("a")) == {1: None}
        await receive(subscriber, 1)
        with server.client() as client:
            client.acl_setuser("shop", enabled=True, passwords=["-old", "+new"])
            client.client_kill_filter(_type="normal", skipme=True)
        errors = await publish(publisher, batch("a", first=2))
        while "does not let us in" not in str(errors[2]):  # it hears of the break when it writes
            assert isinstance(errors[2], BrokerUnavailable)
            errors = await publish(publisher, batch("a", first=2))
        assert isinstance(errors[2], BrokerUnavailable)
        with pytest.raises(BrokerUnavailable):
            await subscriber.deliveries(1, 0.0)
        with server.client() as client:
            client.acl_setuser("shop", enabled=True, passwords=["-new", "+old"])
        assert await publish(publisher, batch("a", first=2)) == {2: None}
        assert stored(server) == [b"a1", b"a2"]
        while not (found := await subscriber.deliveries(10, 10.0)):
            pass
        assert bodies(delivery.message for delivery in found)[-1] == b"a2"


async def test_a_database_that_is_not_there_is_a_matter_of_settings(redis: Redis) -> None:
    async with publisher_at(redis.url(99)) as publisher:
        with pytest.raises(ConfigError, match="DB index is out of range"):
            await publish(publisher, batch("a"))


async def test_a_full_memory_is_an_outage_and_what_is_there_can_still_be_read(redis: Redis) -> None:
    async with publisher_at(redis.url()) as publisher, subscriber_at(redis.url()) as subscriber:
        await publish(publisher, batch("a"))
        redis.configure(maxmemory_policy="noeviction", maxmemory=1)
        try:
            errors = await publish(publisher, batch("bc", first=2))
            received = await receive(subscriber, 1)
            await subscriber.acknowledge(received)
        finally:
            redis.configure(maxmemory=0)
        assert bodies(delivery.message for delivery in received) == [b"a1"]
        assert {type(error) for error in errors.values()} == {BrokerUnavailable}
        assert "OOM command not allowed when used memory > 'maxmemory'" in str(errors[2])
        assert await publish(publisher, batch("b", first=4)) == {4: None}
    assert stored(redis) == [b"a1", b"b4"]


async def test_a_replica_is_an_outage_until_it_is_promoted(own_redis: Callable[..., Redis]) -> None:
    server = own_redis("valkey")
    async with publisher_at(server.url()) as publisher:
        with server.client() as client:
            client.replicaof("127.0.0.1", 1)
            errors = await publish(publisher, batch("a"))
            assert isinstance(errors[1], BrokerUnavailable)
            assert "READONLY You can't write against a read only replica" in str(errors[1])
            client.replicaof("NO", "ONE")
        assert await publish(publisher, batch("a", first=2)) == {2: None}


async def test_a_publisher_leaves_a_former_primary_for_the_one_that_its_address_leads_to(
    redis: Redis, own_redis: Callable[..., Redis]
) -> None:
    old = own_redis("redis")
    with FaultProxy(old.port) as proxy:
        async with publisher_at(old.url(port=proxy.port)) as publisher:
            assert await publish(publisher, batch("a")) == {1: None}
            proxy.target = redis.port
            with old.client() as client:
                client.replicaof("127.0.0.1", 1)
            assert isinstance((await publish(publisher, batch("a", first=2)))[2], BrokerUnavailable)
            assert await publish(publisher, batch("a", first=3)) == {3: None}
    assert stored(redis) == [b"a3"]


async def test_a_consumer_leaves_a_former_primary_for_the_one_that_its_address_leads_to(
    redis: Redis, own_redis: Callable[..., Redis]
) -> None:
    old = own_redis("redis")
    with FaultProxy(old.port) as proxy:
        async with subscriber_at(old.url(port=proxy.port)) as subscriber:
            assert await subscriber.deliveries(1, 0.1) == []  # its bell hangs there too
            proxy.target = redis.port
            with old.client() as client:
                client.replicaof("127.0.0.1", 1)
            for _ in range(2):  # the member hears of it, and the bell
                with suppress(BrokerUnavailable):
                    await subscriber.deliveries(1, 0.1)
            assert await subscriber.deliveries(1, 0.6) == []
            with old.client() as client:
                assert not [one for one in client.client_list() if one["name"] == "pillarbox"]
            async with publisher_at(redis.url()) as publisher:
                await publish(publisher, batch("a"))
            assert bodies(delivery.message for delivery in await receive(subscriber, 1)) == [b"a1"]


async def test_a_server_that_cannot_save_is_an_outage(own_redis: Callable[..., Redis]) -> None:
    server = own_redis("redis", appendonly="no", save="3600 1000000")
    server.directory.chmod(0o500)
    try:
        with server.client() as client:
            client.bgsave()
            while client.info("persistence")["rdb_last_bgsave_status"] == "ok":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        async with publisher_at(server.url()) as publisher:
            errors = await publish(publisher, batch("a"))
        assert isinstance(errors[1], BrokerUnavailable)
        assert "MISCONF" in str(errors[1])
    finally:
        server.directory.chmod(0o700)


async def test_a_server_that_is_loading_is_an_outage(own_redis: Callable[..., Redis]) -> None:
    server = own_redis("redis", **{"enable-debug-command": "yes", "loading-process-events-interval-bytes": "1024"})
    with server.client() as client:
        client.mset({f"key {n}": "x" * 100 for n in range(3000)})
        client.config_set("key-load-delay", 1000)
        reloading = threading.Thread(target=client.execute_command, args=("DEBUG", "RELOAD"))
        reloading.start()
        async with publisher_at(server.url(), seconds=10) as publisher:
            errors: Errors = {1: None}
            while errors[1] is None and reloading.is_alive():
                errors = await publish(publisher, batch("a"))
            reloading.join()
            assert isinstance(errors[1], BrokerUnavailable)
            assert "LOADING" in str(errors[1])
            assert await publish(publisher, batch("a", first=2)) == {2: None}


async def test_a_connection_that_was_cut_while_idle_is_opened_anew(redis: Redis) -> None:
    async with publisher_at(redis.url()) as publisher:
        await publish(publisher, batch("a"))
        with redis.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        # It hears of it when it writes, and cannot know whether that arrived.
        errors = await publish(publisher, batch("a", first=2))
        assert errors[2] is None or isinstance(errors[2], BrokerUnavailable)
        assert await publish(publisher, batch("a", first=3)) == {3: None}


async def test_a_stream_is_trimmed_only_if_that_was_asked_for(redis: Redis) -> None:
    messages = batch("abcd" * 500)
    async with publisher_at(redis.url(), seconds=10) as publisher:
        await publish(publisher, messages)
    assert len(stored(redis)) == 2000
    async with publisher_at(redis.url(), seconds=10, maxlen=500, unsafe=True) as publisher:
        await publish(publisher, batch("a", first=5000))
    assert 500 <= len(stored(redis)) < 1000
    assert stored(redis)[-1] == b"a5000"


async def test_what_was_trimmed_unread_is_told_and_holds_up_nobody(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with publisher_at(redis.url()) as publisher, subscriber_at(redis.url()) as first:
        await publish(publisher, batch("aaa"))
        await receive(first, 2)
        await first.vanish()
        with redis.client() as client:
            client.xtrim("orders", maxlen=1, approximate=False)
        async with subscriber_at(redis.url()) as second:
            assert bodies(delivery.message for delivery in await second.deliveries(10, 10.0)) == [b"a3"]
    assert "the stream orders was trimmed: 2 entries are gone that billing had not handled" in caplog.text


async def test_a_server_that_may_evict_streams_is_told_of(redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    redis.configure(maxmemory_policy="allkeys-lru")
    try:
        async with publisher_at(redis.url()) as publisher:
            await publish(publisher, batch("a"))
    finally:
        redis.configure(maxmemory_policy="noeviction")
    assert "maxmemory-policy is allkeys-lru" in caplog.text


@pytest.mark.parametrize("redis", ["redis"], indirect=True)
async def test_durable_on_a_server_that_cannot_tell_is_warned_of_once(
    redis: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with publisher_at(redis.url(), durable=True) as publisher:
        assert await publish(publisher, batch("a")) == {1: None}
        assert await publish(publisher, batch("a", first=2)) == {2: None}
    assert caplog.text.count("has no WAITAOF") == 1
    assert "its restart may lose it; set appendonly yes and appendfsync always there" in caplog.text


@pytest.mark.parametrize("redis", ["redis"], indirect=True)
async def test_durable_is_asked_for_anew_with_each_connection(redis: Redis, own_redis: Callable[..., Redis]) -> None:
    newer = own_redis("valkey")
    with FaultProxy(redis.port) as proxy:
        async with publisher_at(redis.url(port=proxy.port), durable=True) as publisher:
            assert await publish(publisher, batch("a")) == {1: None}
            proxy.target = newer.port
            proxy.reset()
            proxy.heal()
            while (await publish(publisher, batch("a", first=2)))[2] is not None:
                pass  # it hears of the break when it writes
    with newer.client() as client:
        calls = client.info("commandstats")["cmdstat_waitaof"]["calls"]
    assert calls == 2, "when it connected, and after the batch"


async def test_durable_on_a_server_that_keeps_nothing_waits_until_it_does(own_redis: Callable[..., Redis]) -> None:
    server = own_redis("valkey", appendonly="no")
    async with publisher_at(server.url(), durable=True) as publisher:
        (error,) = (await publish(publisher, batch("a"))).values()
        assert isinstance(error, BrokerUnavailable)
        assert re.search(r"redis\.durable: .*appendonly is disabled.*set appendonly yes", str(error))
        assert stored(server) == [], "each try would store it once more"
        server.configure(appendonly="yes")
        assert await publish(publisher, batch("a")) == {1: None}


@pytest.mark.parametrize("redis", ["valkey"], indirect=True)
async def test_durable_without_the_right_to_wait_stores_nothing(redis: Redis) -> None:
    with redis.client() as client:
        allowed = ["+@all", "-waitaof"]
        client.acl_setuser("shop", enabled=True, reset=True, passwords=["+pw"], keys=["*"], commands=allowed)
    async with publisher_at(redis.url(login="shop:pw@"), durable=True) as publisher:
        (error,) = (await publish(publisher, batch("a"))).values()
        assert isinstance(error, BrokerUnavailable)
        assert re.search("NOPERM.*waitaof.*grant the user this right", str(error))
        assert stored(redis) == []
        with redis.client() as client:
            client.acl_setuser("shop", enabled=True, keys=["*"], commands=["+waitaof"])
        assert await publish(publisher, batch("a")) == {1: None}


@pytest.mark.parametrize("redis", ["valkey"], indirect=True)
async def test_what_no_replica_has_on_disk_is_not_published(redis: Redis) -> None:
    async with publisher_at(redis.url(), seconds=2, durable=True, replicas=1) as publisher:
        errors = await publish(publisher, batch("a"))
    assert isinstance(errors[1], BrokerUnavailable)
    assert "not on disk in time: 1 of 1 here, 0 of 1 on replicas" in str(errors[1])


async def test_large_batches_go_in_several_transactions_and_keep_their_order(redis: Redis) -> None:
    messages = batch("ab" * 50, padding=256 << 10)
    async with publisher_at(redis.url(), seconds=20) as publisher, subscriber_at(redis.url()) as subscriber:
        assert set((await publish(publisher, messages)).values()) == {None}
        received = await receive(subscriber, 100)
    assert [delivery.message.body for delivery in received if delivery.message.key == "a"] == bodies(messages, "a")
    assert [delivery.message.body for delivery in received if delivery.message.key == "b"] == bodies(messages, "b")


@pytest.mark.parametrize("body", [b"", bytes(range(256)), b"x" * (256 << 10)], ids=["empty", "binary", "256 KiB"])
async def test_bytes_and_headers_arrive_unchanged(redis: Redis, body: bytes) -> None:
    headers = {"id": "7", "language": "Ελληνικά", "emoji": "\N{POSTBOX}", "key": "k", "body": "b", "header:x": "y"}
    sent = Message("orders", "order 7/ü", headers, body)
    async with publisher_at(redis.url()) as publisher, subscriber_at(redis.url()) as subscriber:
        await publish(publisher, [sent])
        (delivery,) = await receive(subscriber, 1)
    assert delivery.message == sent


def entry(**fields: Any) -> Entry:
    values: dict[str, Any] = {
        "position": 1,
        "event_id": "0198c0de-0000-7000-8000-000000000000",
        "event_type": "OrderPlaced",
        "aggregate_type": "order",
        "aggregate_id": "7",
        "topic": "orders",
        "data": '{"total":42}',
        "content_type": "application/json",
        "headers": None,
        "idempotency_key": None,
        "number": None,
        "available_at": None,
        "occurred_at": None,
        "created_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return Entry(**{**values, **fields})


@pytest.mark.parametrize("format", ["cloudevents", "cloudevents-structured"])
async def test_the_cloudevents_sdk_reads_what_arrives(redis: Redis, format: str) -> None:
    async with publisher_at(redis.url()) as publisher:
        await publish(publisher, [encode(entry(), 1, format)])
    with redis.client() as client:
        ((_, fields),) = client.xrange("orders")
    value = fields.pop(b"body")
    key = fields.pop(b"key")
    headers = {name.decode(): text for name, text in fields.items()}
    # CloudEvents has no binding for Redis: names and values are as in the one for Kafka, whose reader is used here.
    event = kafka.from_kafka_event(kafka.KafkaMessage(headers, key, value))
    assert event.get_id() == "0198c0de-0000-7000-8000-000000000000"
    assert event.get_type() == "OrderPlaced"
    assert event.get_subject() == "7"
    assert event.get_data() == {"total": 42}
