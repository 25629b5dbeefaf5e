"""A stream of JSON lines keeps the publisher's contract."""

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import pytest

from pillarbox.brokers.stdout import StdoutPublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.testing.contracts.publisher import PublisherContract, PublisherFeatures
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of


class Pipe(io.StringIO):
    """A stream whose reader can go."""

    room: int | None = None

    def write(self, text: str) -> int:
        if self.room is not None and len(text) > self.room:
            super().write(text[: self.room])
            self.room = 0
            raise BrokenPipeError("the reader is gone")
        return super().write(text)


class StdoutBench:
    features = PublisherFeatures(prefix_safe=True, goes_away=True, goes_away_midway=True)

    def __init__(self) -> None:
        self._pipe = Pipe()
        self._opened: list[StdoutPublisher] = []

    def publisher(self) -> Publisher:
        self._opened.append(StdoutPublisher(self._pipe))
        return self._opened[-1]

    async def stored(self) -> Sequence[Message]:
        *lines, _unfinished = self._pipe.getvalue().split("\n")
        return [self._message(json.loads(line)) for line in lines]

    def _message(self, line: dict[str, Any]) -> Message:
        if "payload" in line:
            body = json.dumps(line["payload"], separators=(",", ":")).encode()
        else:
            body = base64.b64decode(line["payload_base64"])
        return Message(line["topic"], line["key"], line["headers"], body)

    async def go_away(self) -> None:
        self._pipe.room = 0

    async def go_away_midway(self) -> None:
        self._pipe.room = 20_000

    async def come_back(self) -> None:
        self._pipe.room = None

    async def close(self) -> None:
        for publisher in self._opened:
            await publisher.close()


@pytest.mark.parametrize("rule", rules_of(PublisherContract, StdoutBench.features))
async def test_the_stdout_publisher_keeps_the_rule(rule: str) -> None:
    await check(PublisherContract, rule, StdoutBench())


@pytest.mark.parametrize("rule", rules_of(RelayContract, StdoutBench.features))
async def test_a_relay_over_stdout_keeps_the_rule(rule: str) -> None:
    await check(RelayContract, rule, StdoutBench())
