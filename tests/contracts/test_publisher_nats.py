"""The near end of NATS JetStream keeps the publisher's contract, on a real server behind a faulty network."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import pytest

from pillarbox.brokers.nats import NatsOptions, NatsPublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract, PublisherFeatures
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of
from servers.fault_proxy import FaultProxy
from servers.nats import Nats, delete_streams, make_stream
from servers.nats_ack_loser import NatsAckLoser
from tests.integration.nats_streams import stored_in

TIMEOUT = timedelta(seconds=1)


class NatsPublisherBench:
    features = PublisherFeatures(
        durable=True,
        refuses=True,
        goes_away=True,
        goes_away_midway=True,
        falls_silent=True,
        loses_answers=True,
        loses_single_answers=True,
    )

    def __init__(self, server: Nats, loser: NatsAckLoser, proxy: FaultProxy) -> None:
        self.server, self.loser, self.proxy = server, loser, proxy
        self._opened: list[NatsPublisher] = []

    def publisher(self) -> Publisher:
        options = NatsOptions.read("nats", f"//127.0.0.1:{self.proxy.port}", {})
        self._opened.append(NatsPublisher(options, publish_timeout=TIMEOUT))
        return self._opened[-1]

    async def stored(self) -> Sequence[Message]:
        return await stored_in(self.server.url, "TEST")

    def refused(self, message: Message) -> Message:
        return message._replace(body=message.body.ljust(self.server.max_payload + 1))

    async def go_away(self) -> None:
        self.proxy.cut()

    async def go_away_midway(self) -> None:
        self.proxy.drop_after(20_000)

    async def fall_silent(self) -> None:
        self.proxy.half_open()

    async def lose_answers(self, count: int | None) -> None:
        if count is not None:
            self.loser.lose(range(count))
            return
        for publisher in self._opened:  # all is asked before, so that it is the acknowledgements that get lost
            client = await publisher._connection.ready(asyncio.get_running_loop().time() + 5)
            assert await publisher._streams.find(client, "orders") == "TEST"
        self.proxy.lose_answers()

    async def come_back(self) -> None:
        self.proxy.heal()

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        sent = json.dumps([[*message[:3], message.body.decode(), message.ticket] for message in messages])
        port = str(self.server.port)
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PUBLISH_AND_DIE, port, sent)
        assert await process.wait() == -signal.SIGKILL

    async def close(self) -> None:
        await self.come_back()
        for publisher in self._opened:
            await publisher.close()


PUBLISH_AND_DIE = """
import asyncio, json, os, signal, sys
from datetime import timedelta
from pillarbox.brokers.nats import NatsOptions, NatsPublisher
from pillarbox.core.message import Message

async def main():
    options = NatsOptions.read("nats", f"//127.0.0.1:{sys.argv[1]}", {})
    publisher = NatsPublisher(options, publish_timeout=timedelta(seconds=10))
    messages = [Message(t, k, h, b.encode(), n) for t, k, h, b, n in json.loads(sys.argv[2])]
    publisher.send(messages)
    waiting = len(messages)
    while waiting:
        waiting -= sum(outcome.error is None for outcome in await publisher.outcomes())
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.fixture
async def bench(nats_server: Nats) -> AsyncIterator[NatsPublisherBench]:
    await make_stream(nats_server.url, "TEST", "orders", "mails")
    async with NatsAckLoser(nats_server.port) as loser:
        with FaultProxy(loser.port) as proxy:
            yield NatsPublisherBench(nats_server, loser, proxy)
    await delete_streams(nats_server.url)


@pytest.mark.parametrize("rule", rules_of(PublisherContract, NatsPublisherBench.features))
async def test_the_publisher_of_nats_keeps_the_rule(rule: str, bench: NatsPublisherBench) -> None:
    await check(PublisherContract, rule, bench)


@pytest.mark.parametrize("rule", rules_of(RelayContract, NatsPublisherBench.features))
async def test_a_relay_over_nats_keeps_the_rule(rule: str, bench: NatsPublisherBench) -> None:
    await check(RelayContract, rule, bench)
