"""Consumer groups on Redis: members that die, hang and lose answers. Nothing is lost and every key keeps its order."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from string import ascii_letters

import pytest

from pillarbox.brokers.redis import RedisPublisher, RedisSubscriber
from pillarbox.core.message import Delivery, Message
from pillarbox.errors import BrokerUnavailable, ConfigError
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.contracts.publisher import answers, batch
from pillarbox.testing.contracts.subscriber import receive, texts
from servers.fault_proxy import FaultProxy
from servers.redis import Redis
from tests.integration.members import Plan, kill_members

PLAN = Plan(messages=2000, members=3, kills=5, copies=2)


async def publish(server: Redis, messages: Sequence[Message]) -> None:
    publisher = RedisPublisher(server.url(), publish_timeout=timedelta(seconds=20), hooks=Hooks())
    publisher.send(messages)
    assert all(outcome.error is None for outcome in await answers(publisher, len(messages)))
    await publisher.close()


@asynccontextmanager
async def member_of(url: str, lease: float = 15) -> AsyncIterator[RedisSubscriber]:
    subscriber = RedisSubscriber(url, consumer="billing", topics=["orders"], lease=timedelta(seconds=lease))
    try:
        yield subscriber
    finally:
        await subscriber.close()


async def test_nothing_is_lost_and_every_key_keeps_its_order_while_members_are_killed(
    redis: Redis, tmp_path: Path
) -> None:
    def unacknowledged() -> int:
        with redis.client() as client:
            (group,) = client.xinfo_groups("orders")
        return int(group["pending"]) + int(group["lag"])

    log, chance = tmp_path / "deliveries", random.Random(redis.kind)
    await kill_members(redis.url(), log, PLAN, chance, partial(publish, redis), unacknowledged)


async def test_an_acknowledgement_whose_answer_is_lost_lets_nothing_overtake(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.brokers.redis.member.PATIENCE", 0.3)
    with FaultProxy(redis.port) as proxy:
        async with member_of(redis.url(port=proxy.port)) as first, member_of(redis.url()) as second:
            await publish(redis, batch("c"))
            held = await receive(first, 1)
            for member in (second, first, second):  # it takes its share; the key stays with the first
                assert not await member.deliveries(10, 0.0)
            await publish(redis, batch("c", first=2))
            assert not await second.deliveries(10, 0.0)  # pulls it, for the first
            proxy.lose_answers()
            with pytest.raises(BrokerUnavailable):
                await first.acknowledge(held)
            proxy.heal()
            await publish(redis, batch("c", first=3))
            assert texts(await receive(first, 2)) == [b"c2", b"c3"]


async def test_what_another_member_pulled_comes_without_a_mark(redis: Redis) -> None:
    async with member_of(redis.url()) as first, member_of(redis.url()) as second:
        for member in (first, second, first, second):
            assert not await member.deliveries(10, 0.0)
        await publish(redis, batch(ascii_letters))
        pulled = await first.deliveries(100, 0.0)
        received = [*pulled, *await receive(second, len(ascii_letters) - len(pulled))]
        assert 0 < len(pulled) < len(received)
        assert not any(delivery.redelivered for delivery in received)


async def test_a_member_that_hangs_is_replaced_when_its_lease_is_over(redis: Redis) -> None:
    with FaultProxy(redis.port) as proxy:
        async with member_of(redis.url(port=proxy.port), lease=1) as hanging, member_of(redis.url(), lease=1) as other:
            await publish(redis, batch("ab"))
            await receive(hanging, 2)
            proxy.half_open()
            assert sorted(texts(await receive(other, 2))) == [b"a1", b"b2"]
            proxy.heal()


async def test_a_slow_handler_keeps_its_keys(redis: Redis) -> None:
    async with member_of(redis.url(), lease=0.6) as slow, member_of(redis.url(), lease=0.6) as other:
        await publish(redis, batch("a"))
        received = await receive(slow, 1)
        assert not await other.deliveries(10, 2.0)
        await slow.acknowledge(received)
        await publish(redis, batch("a", first=2))
        both = [*await slow.deliveries(10, 0.5), *await other.deliveries(10, 0.5)]
        assert texts(both) == [b"a2"]


async def test_members_without_the_right_to_see_connections_wait_for_the_lease(redis: Redis) -> None:
    with redis.client() as client:
        allowed = ["+@all", "-client|list"]
        client.acl_setuser("shop", enabled=True, reset=True, passwords=["+pw"], keys=["*"], commands=allowed)
    url = redis.url(login="shop:pw@")
    async with member_of(url, lease=1) as first, member_of(url, lease=1) as second:
        await publish(redis, batch("ab"))
        await receive(first, 2)
        await first.vanish()
        assert sorted(texts(await receive(second, 2))) == [b"a1", b"b2"]


@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_a_server_that_was_killed_keeps_the_group(own_redis: Callable[..., Redis], kind: str) -> None:
    server = own_redis(kind)
    async with member_of(server.url()) as member:
        await publish(server, batch("aaaa"))
        received = await receive(member, 3)
        await member.acknowledge(received[:1])
        server.kill()
        with pytest.raises(BrokerUnavailable):
            await member.deliveries(10, 5.0)
        server.start()
        await member.acknowledge(received[1:2])
        assert texts(await receive(member, 1)) == [b"a4"]
        await member.vanish()
    async with member_of(server.url()) as other:
        assert texts(await receive(other, 2)) == [b"a3", b"a4"]


async def test_a_server_that_says_nothing_is_away(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.brokers.redis.member.PATIENCE", 0.3)
    with FaultProxy(redis.port) as proxy:
        async with member_of(redis.url(port=proxy.port)) as member:
            await member.deliveries(10, 0.0)
            proxy.half_open()
            with pytest.raises(BrokerUnavailable):
                await member.deliveries(10, 0.0)
            proxy.heal()
            await publish(redis, batch("a"))
            assert texts(await receive(member, 1)) == [b"a1"]


async def test_scripts_that_the_server_forgot_are_told_again(redis: Redis) -> None:
    async with member_of(redis.url()) as member:
        await publish(redis, batch("aa"))
        received = await receive(member, 1)
        with redis.client() as client:
            client.script_flush()
        await member.acknowledge(received)
        assert texts(await receive(member, 1)) == [b"a2"]


async def test_a_stream_that_was_deleted_begins_anew(redis: Redis) -> None:
    async with member_of(redis.url()) as member:
        await publish(redis, batch("a"))
        received = await receive(member, 1)
        with redis.client() as client:
            client.delete("orders")
        await member.acknowledge(received)
        await publish(redis, batch("a", first=2))
        assert texts(await receive(member, 1)) == [b"a2"]


@pytest.mark.parametrize(
    ("keys", "commands"),
    [
        (["other"], ["+@all"]),
        (["orders"], ["+@all"]),  # not what stands beside it
        (["*"], ["+@all", "-xack"]),
        (["*"], ["+@all", "-eval", "-evalsha"]),
    ],
)
async def test_rights_that_a_member_lacks_are_waited_for(redis: Redis, keys: list[str], commands: list[str]) -> None:
    with redis.client() as client:
        client.acl_setuser("shop", enabled=True, reset=True, passwords=["+pw"], keys=keys, commands=commands)
    async with member_of(redis.url(login="shop:pw@")) as member:
        await publish(redis, batch("a"))
        received: Sequence[Delivery] = []
        with pytest.raises(BrokerUnavailable, match="grant the user this right"):
            await member.acknowledge(received := await member.deliveries(10, 0.0))
        with redis.client() as client:
            client.acl_setuser("shop", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all"])
        await member.acknowledge(received := received or await receive(member, 1))
        assert texts(received) == [b"a1"]


async def test_a_topic_that_is_no_stream_is_a_matter_of_settings(redis: Redis) -> None:
    with redis.client() as client:
        client.set("orders", "no stream")
    async with member_of(redis.url()) as member:
        with pytest.raises(ConfigError, match=r"'orders' cannot be consumed .*WRONGTYPE"):
            await member.deliveries(10, 0.0)


async def test_a_member_that_hangs_does_not_make_the_others_pull_without_end(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.brokers.redis.member.MOST_PENDING", 50)
    async with member_of(redis.url()) as member:
        await publish(redis, batch("abcd" * 100))
        received = [await member.deliveries(30, 0.0) for _ in range(10)]
        assert 50 <= sum(map(len, received)) < 80
        for deliveries in received:
            await member.acknowledge(deliveries)
        assert await member.deliveries(30, 0.0)
