"""What the benches of publishers share whose broker is a real server behind a faulty network."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from pillarbox.ports import Publisher
from pillarbox.testing.contracts.memory_broker import PUBLISHER_FEATURES
from servers.fault_proxy import FaultProxy

FEATURES = replace(PUBLISHER_FEATURES, prefix_safe=False, dies=False)
"""All that a network can do; whoever has a server of its own is asked what needs `dies` apart."""


class Mortal(Protocol):
    """A server that may be killed, if it is the bench's own."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


class ProxiedBench:
    """What the network does, and the end of the server."""

    features = FEATURES

    def __init__(self, server: Mortal, proxy: FaultProxy) -> None:
        self._mortal, self.proxy = server, proxy
        self._publishers: list[Publisher] = []

    def opened(self, publisher: Publisher) -> Publisher:
        """Close it at the end."""
        self._publishers.append(publisher)
        return publisher

    async def go_away(self) -> None:
        self.proxy.cut()

    async def go_away_midway(self) -> None:
        self.proxy.drop_after(20_000)

    async def fall_silent(self) -> None:
        self.proxy.half_open()

    async def lose_answers(self, which: Sequence[int] | None) -> None:
        assert which is None, "single ones are for those who know the protocol"
        self.proxy.lose_answers()

    async def come_back(self) -> None:
        self.proxy.heal()

    async def kill(self) -> None:
        self._mortal.kill()

    async def start_again(self) -> None:
        # In a thread, so that the relay goes on meanwhile; it lives as long as the loop, and the server as long as it.
        await asyncio.to_thread(self._mortal.start)

    async def close(self) -> None:
        self.proxy.heal()
        for publisher in self._publishers:
            await publisher.close()
