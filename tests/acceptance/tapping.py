"""A relay whose broker is a file: what arrives is written there, line by line. A topic can be down, an event deadly.

python -m tests.acceptance.tapping DATABASE FOLDER LEASE PORT

    FOLDER/tap            what arrived: when, topic, body
    FOLDER/deadly         while it is there, an event of the type Deadly kills this process with -9 as it is sent
    FOLDER/down-TOPIC     while it is there, that topic is not answered ("away") or answered too late ("late")
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from pillarbox import Relay, Settings
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishError, PublishTimeout
from pillarbox.ports import Outcome
from pillarbox.settings import HealthSettings, RelaySettings

BATCH = 100


class Arrival(NamedTuple):
    """A message that the tap has."""

    at: float
    topic: str
    body: dict[str, float]


def arrivals(folder: Path) -> list[Arrival]:
    """Read what has arrived, in order; a line that is being written is left for the next time."""
    if not (folder / "tap").is_file():
        return []
    text = (folder / "tap").read_text()
    return [Arrival(*json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]


class Tap:
    """The near end of a broker; nothing is received here."""

    def __init__(self, folder: Path, publish_timeout: float) -> None:
        self._folder, self._timeout = folder, publish_timeout

    def publisher(self) -> "TapPublisher":
        return TapPublisher(self._folder, self._timeout)


class TapPublisher:
    """Writes what it is handed, and answers message by message."""

    prefix_safe = False

    def __init__(self, folder: Path, publish_timeout: float) -> None:
        self._folder, self._timeout = folder, publish_timeout
        self._answers: asyncio.Queue[Sequence[Outcome]] = asyncio.Queue()
        self._file = (folder / "tap").open("ab", buffering=0)

    def send(self, messages: Sequence[Message]) -> None:
        down = {file.name.removeprefix("down-"): file.read_text() for file in self._folder.glob("down-*")}
        answered: list[Outcome] = []
        lines: list[bytes] = []
        for message in messages:
            if message.headers["type"] == "Deadly" and (self._folder / "deadly").exists():
                self._file.write(b"".join(lines))
                os.kill(os.getpid(), signal.SIGKILL)
            how = down.get(message.topic)
            if how == "late":
                late = [Outcome(message.ticket, PublishTimeout("no answer in time"))]
                asyncio.get_running_loop().call_later(self._timeout, self._answers.put_nowait, late)
                continue
            error: PublishError | None = BrokerUnavailable("no leader") if how else None
            answered.append(Outcome(message.ticket, error))
            if error is None:
                lines.append(json.dumps([time.time(), message.topic, json.loads(message.body)]).encode() + b"\n")
        self._file.write(b"".join(lines))
        if answered:
            self._answers.put_nowait(answered)

    async def outcomes(self) -> Sequence[Outcome]:
        return await self._answers.get()

    async def close(self) -> None:
        self._file.close()


def main(database: str, folder: str, lease: str, port: str) -> None:
    timeout = float(lease) / 2
    relay = RelaySettings(
        batch=BATCH, lease=timedelta(seconds=float(lease)), publish_timeout=timedelta(seconds=timeout), retries=100
    )
    health = HealthSettings(listen=f"127.0.0.1:{port}")
    Relay(Settings(relay=relay, health=health), database=database, broker=Tap(Path(folder), timeout)).run_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
