"""Consumer groups on Redis: members that die, hang and lose answers. Nothing is lost and every key keeps its order."""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from string import ascii_letters

import pytest

from pillarbox.brokers.redis import RedisPublisher, RedisSubscriber
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, ConfigError
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.contracts.publisher import answers, batch
from pillarbox.testing.contracts.subscriber import receive, texts
from servers.fault_proxy import FaultProxy
from servers.redis import Redis

MEMBER = Path(__file__).with_name("redis_member.py")
MESSAGES, KEYS, MEMBERS, KILLS = 2000, 40, 3, 5


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


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what other processes do tells nobody
            await asyncio.sleep(0.01)


class Members:
    """The processes, and what they wrote down. Some kill themselves amid their work; others are killed at any time."""

    def __init__(self, url: str, log: Path, chance: random.Random) -> None:
        self._command = [sys.executable, str(MEMBER), url, str(log)]
        self._log, self._chance = log, chance
        self.kills = 0
        self._processes = [self._start() for _ in range(MEMBERS)]

    def _start(self) -> "subprocess.Popen[bytes]":
        life = self._chance.randrange(1, 150) if self.kills < KILLS else 0
        return subprocess.Popen([*self._command, str(life)])

    def replace_the_dead(self) -> bool:
        """Start those again that have died; tell whether enough have."""
        for index, process in enumerate(self._processes):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL
                self.kills += 1
                self._processes[index] = self._start()
        return self.kills >= KILLS

    def kill_one(self) -> None:
        self._chance.choice(self._processes).kill()

    def lines(self) -> list[tuple[bool, int, int]]:
        """Give what was delivered, in order: whether it was marked, its key, its number within the key."""
        rows = [line.split() for line in self._log.read_text().splitlines()]
        return [(marked == "1", int(key), int(number)) for marked, key, number in rows]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


async def publish_slowly(server: Redis) -> None:
    numbers = [0] * KEYS
    chance = random.Random(7)
    for first in range(0, MESSAGES, 200):
        messages = []
        for ticket in range(first, first + 200):
            key = chance.randrange(KEYS)
            messages.append(
                Message("orders", f"key {key}", {"id": str(ticket)}, b"%d %d" % (key, numbers[key]), ticket)
            )
            numbers[key] += 1
        await publish(server, messages)


def unacknowledged(server: Redis) -> int:
    with server.client() as client:
        (group,) = client.xinfo_groups("orders")
    return int(group["pending"]) + int(group["lag"])


async def test_nothing_is_lost_and_every_key_keeps_its_order_while_members_are_killed(
    redis: Redis, tmp_path: Path
) -> None:
    chance = random.Random(redis.kind)
    members = Members(redis.url(), tmp_path / "deliveries", chance)
    publishing = asyncio.create_task(publish_slowly(redis))
    try:
        for enough in (KILLS // 3, 2 * KILLS // 3):
            await until(lambda enough=enough: members.replace_the_dead() or members.kills >= enough)  # type: ignore[misc]
            members.kill_one()
        await until(members.replace_the_dead)
        await publishing
        await until(lambda: members.replace_the_dead() and unacknowledged(redis) == 0)
    finally:
        members.stop()
    check(members.lines())


def check(lines: list[tuple[bool, int, int]]) -> None:
    """Look at everything that was delivered, in order."""
    seen = dict.fromkeys(range(KEYS), 0)
    copies = 0
    for marked, key, number in lines:
        assert number <= seen[key], f"key {key}: {number} was delivered before {seen[key]}"
        if number < seen[key]:
            copies += 1
            assert marked, f"key {key}: {number} came again without its mark"
        else:
            seen[key] += 1
    assert sum(seen.values()) == MESSAGES
    assert copies >= KILLS // 2, "the kills struck nothing in flight"


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
        server.server.start()
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
