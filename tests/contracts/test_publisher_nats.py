"""The near end of NATS JetStream keeps the publisher's contract, on a real server behind a faulty network."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from pillarbox.brokers.nats import NatsOptions, NatsPublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of, rules_that_need
from servers.fault_proxy import FaultProxy
from servers.nats import Nats, delete_streams, is_left, make_stream
from servers.nats_ack_loser import NatsAckLoser
from tests.conftest import installed
from tests.contracts.proxied_bench import FEATURES, ProxiedBench
from tests.contracts.publish_and_die import publish_and_die
from tests.integration.nats_streams import stored_in

TIMEOUT = timedelta(seconds=1)
A_BLINK = 100_000_000
"""Nanoseconds, the shortest that NATS allows: it shall not recognise copies, so that they can be counted."""


class NatsPublisherBench(ProxiedBench):
    def __init__(self, server: Nats, loser: NatsAckLoser, proxy: FaultProxy) -> None:
        super().__init__(server, proxy)
        self.server, self.loser = server, loser
        self._ours: list[NatsPublisher] = []

    def publisher(self) -> Publisher:
        options = NatsOptions.read("nats", f"//127.0.0.1:{self.proxy.port}", {})
        self._ours.append(NatsPublisher(options, publish_timeout=TIMEOUT))
        return self.opened(self._ours[-1])

    async def stored(self) -> Sequence[Message]:
        return await stored_in(self.server.url, "TEST")

    def refused(self, message: Message) -> Message:
        return message._replace(body=message.body.ljust(self.server.max_payload + 1))

    async def lose_answers(self, which: Sequence[int] | None) -> None:
        if which is not None:
            self.loser.lose(which)
            return
        for publisher in self._ours:  # all is asked before, so that it is the acknowledgements that get lost
            client = await publisher._connection.ready(asyncio.get_running_loop().time() + 5)
            assert await publisher._streams.find(client, "orders") == "TEST"
        self.proxy.lose_answers()

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        await publish_and_die(self.server.url, messages)


@asynccontextmanager
async def bench_of(server: Nats) -> AsyncIterator[NatsPublisherBench]:
    try:
        async with NatsAckLoser(server.port) as loser:
            with FaultProxy(loser.port) as proxy:
                await make(server)
                yield NatsPublisherBench(server, loser, proxy)
    finally:
        await is_left(server)
        await delete_streams(server.url)


async def make(server: Nats) -> None:
    await make_stream(server.url, "TEST", "orders", "mails", duplicate_window=A_BLINK)


@pytest.mark.parametrize("rule", rules_of(PublisherContract, FEATURES))
async def test_the_publisher_of_nats_keeps_the_rule(rule: str, nats_server: Nats) -> None:
    async with bench_of(nats_server) as bench:
        await check(PublisherContract, rule, bench)


@pytest.mark.parametrize("rule", rules_of(RelayContract, FEATURES))
async def test_a_relay_over_nats_keeps_the_rule(rule: str, nats_server: Nats) -> None:
    async with bench_of(nats_server) as bench:
        await check(RelayContract, rule, bench)


@pytest.mark.parametrize("rule", rules_that_need(RelayContract, "dies"))
async def test_a_relay_over_a_mortal_nats_keeps_the_rule(rule: str) -> None:
    with installed(Nats) as server, FaultProxy(server.port) as proxy:
        await make(server)
        await check(RelayContract, rule, NatsPublisherBench(server, NatsAckLoser(0), proxy))
