"""Members of one consumer at NATS that linger, die and come back: no key is overtaken, and nothing is lost."""

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import NamedTuple

import pytest

from pillarbox.brokers.nats import NatsOptions, NatsPublisher, NatsSubscriber
from pillarbox.core.message import Delivery, Message
from pillarbox.errors import BrokerUnavailable
from pillarbox.testing.contracts.publisher import answers, batch
from pillarbox.testing.contracts.subscriber import receive, texts
from servers.fault_proxy import FaultProxy
from servers.nats import Nats, ask, delete_streams, make_stream

LEASE = 0.6


class Hall(NamedTuple):
    """A server with a stream, and members that come and go."""

    url: str
    publisher: NatsPublisher
    opened: list[NatsSubscriber]

    async def publish(self, messages: list[Message]) -> None:
        self.publisher.send(messages)
        assert not any(outcome.error for outcome in await answers(self.publisher, len(messages)))

    def member(
        self, url: str | None = None, *, topics: tuple[str, ...] = ("orders",), lease: float = LEASE
    ) -> NatsSubscriber:
        options = NatsOptions.read("nats", (url or self.url)[5:], {"lease": lease})
        self.opened.append(NatsSubscriber(options, consumer="billing", topics=topics))
        return self.opened[-1]


async def kill(member: NatsSubscriber) -> None:
    """Do what the kernel does to a process that dies: close its connection, nothing else."""
    if member._beating is not None:
        member._beating.cancel()
    await member._connection.close()


@pytest.fixture
async def hall(nats_server: Nats) -> AsyncIterator[Hall]:
    await make_stream(nats_server.url, "TEST", "orders", "mails")
    options = NatsOptions.read("nats", nats_server.url[5:], {})
    hall = Hall(nats_server.url, NatsPublisher(options, publish_timeout=timedelta(seconds=10)), [])
    yield hall
    await hall.publisher.close()
    for member in hall.opened:
        await member.close()
    await delete_streams(nats_server.url)


async def test_a_living_member_keeps_what_it_has_for_longer_than_a_lease(hall: Hall) -> None:
    first, second = hall.member(), hall.member()
    await hall.publish(batch("aaaa"))
    received = await receive(first, 2)
    for _ in range(4):  # nobody asks the first one for anything meanwhile
        assert not await second.deliveries(10, LEASE)
    received += await receive(first, 2)
    assert texts(received) == [b"a1", b"a2", b"a3", b"a4"]
    info = await ask(hall.url, f"CONSUMER.INFO.TEST.{first._seats['orders'].name}", {})
    assert info["num_redelivered"] == 0


async def test_what_a_member_has_in_hand_is_not_overtaken_by_what_comes_after_it(hall: Hall) -> None:
    """The former member lives on behind a network that is cut: its messages come again only when its time is over."""
    port = int(hall.url.rpartition(":")[2])
    with FaultProxy(port) as proxy:
        first, second = hall.member(f"nats://127.0.0.1:{proxy.port}"), hall.member()
        await hall.publish(batch("aaa"))
        await receive(first, 3)
        proxy.half_open()
        stream, name = "TEST", first._seats["orders"].name
        await ask(hall.url, f"CONSUMER.UNPIN.{stream}.{name}", {"group": "pillarbox"})
        await hall.publish(batch("aaa", first=4))
        assert texts(await receive(second, 6)) == [b"a1", b"a2", b"a3", b"a4", b"a5", b"a6"]


@pytest.mark.parametrize("in_doubt", [0, 1], ids=["nothing else", "an acknowledgement of which nobody knows"])
async def test_what_is_lost_with_the_connection_is_not_overtaken_by_what_comes_after_it(
    hall: Hall, in_doubt: int
) -> None:
    """The server has sent it, and counts it as in hand, until its time is over."""
    with FaultProxy(int(hall.url.rpartition(":")[2])) as proxy:
        member = hall.member(f"nats://127.0.0.1:{proxy.port}", lease=3.0)
        await hall.publish(batch("aa"))
        received = await receive(member, 2)
        await member.acknowledge(received[in_doubt:])
        proxy.lose_answers()
        asking = asyncio.create_task(receive(member, 1))
        await hall.publish(batch("a", first=3))
        await until_pending(hall, member, 1 + in_doubt)
        if in_doubt:
            with pytest.raises(BrokerUnavailable):
                await member.acknowledge(received[:in_doubt])
            await until_pending(hall, member, 1)
        proxy.heal()
        await asyncio.gather(asking, return_exceptions=True)
        await hall.publish(batch("aa", first=4))
        again: list[Delivery] = asking.result() if asking.exception() is None else []
        async with asyncio.timeout(20):
            while len(again) < 3:
                try:
                    again += await member.deliveries(3, 0.1)
                except BrokerUnavailable:
                    continue
        assert texts(again) == [b"a3", b"a4", b"a5"]


async def until_pending(hall: Hall, member: NatsSubscriber, count: int) -> None:
    """Wait until the server counts so many messages as in somebody's hand."""
    async with asyncio.timeout(10):
        while True:
            info = await ask(hall.url, f"CONSUMER.INFO.TEST.{member._seats['orders'].name}", {})
            if info["num_ack_pending"] == count:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", range(3))
async def test_members_that_keep_dying_lose_nothing_and_keep_the_order_of_each_key(hall: Hall, seed: int) -> None:
    chance = random.Random(seed)
    keys = "abcdefgh"
    await hall.publish(batch(keys * 40))
    handled: dict[str, list[int]] = {key: [] for key in keys}
    members = [hall.member() for _ in range(3)]
    async with asyncio.timeout(60):
        while any(len(set(numbers)) < 40 for numbers in handled.values()):
            for index, member in enumerate(members):
                deliveries = await member.deliveries(chance.randrange(1, 40), 0.02)
                for delivery in deliveries:
                    note(handled, delivery)
                await member.acknowledge(deliveries[: chance.randrange(len(deliveries) + 1)])
                if deliveries and chance.random() < 0.2:
                    await (kill(member) if chance.random() < 0.5 else member.close())
                    members[index] = hall.member()
    for numbers in handled.values():
        firsts = list(dict.fromkeys(numbers))
        assert firsts == sorted(firsts), "a key was overtaken"


def note(handled: dict[str, list[int]], delivery: Delivery) -> None:
    key = delivery.message.key or ""
    handled[key].append(int(bytes(delivery.message.body)[1:]))


async def test_a_server_that_was_killed_goes_on_where_it_was() -> None:
    with Nats() as server:
        await make_stream(server.url, "TEST", "orders")
        options = NatsOptions.read("nats", server.url[5:], {"lease": LEASE})
        publisher = NatsPublisher(options, publish_timeout=timedelta(seconds=10))
        publisher.send(batch("aaaa"))
        await answers(publisher, 4)
        member = NatsSubscriber(options, consumer="billing", topics=["orders"])
        await member.acknowledge(await receive(member, 2))
        server.kill()
        server.start()
        received: list[Delivery] = []
        async with asyncio.timeout(20):
            while texts(received)[-2:] != [b"a3", b"a4"]:
                try:
                    received += await member.deliveries(2, 0.1)
                except BrokerUnavailable:
                    continue
        await member.close()
        await publisher.close()


async def test_a_consumer_that_somebody_deleted_is_made_again(hall: Hall) -> None:
    member = hall.member()
    await hall.publish(batch("a"))
    await member.acknowledge(await receive(member, 1))
    await ask(hall.url, f"CONSUMER.DELETE.TEST.{member._seats['orders'].name}", {})
    await hall.publish(batch("a", first=2))
    assert b"a2" in texts(await receive(member, 2))  # from the beginning: the inbox knows what it has


async def test_a_topic_that_no_stream_takes_is_missed_once_and_found_when_it_comes(
    hall: Hall, caplog: pytest.LogCaptureFixture
) -> None:
    member = hall.member(topics=("late",))
    assert not await member.deliveries(10, 1.5)  # it was looked for several times
    (told,) = [record.getMessage() for record in caplog.records if "'late'" in record.getMessage()]
    assert "mend the name" in told
    await make_stream(hall.url, "LATE", "late")
    await hall.publish(batch("a", topic="late"))
    assert texts(await receive(member, 1)) == [b"a1"]
