"""Starts relays at once, by forking from a process that has everything imported: a killed one is soon replaced.

python -m tests.soak.forked_relays URL DIRECTORY

For each line on stdin, which names a log, a relay is started that publishes to the broker in the directory; its pid is
written to stdout. When stdin ends, the relays are asked to stop. While there is a file `down-TOPIC` in the directory,
that topic is refused as away.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from pillarbox import Settings
from pillarbox.brokers.sqlite import SqlitePublisher
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, StoreUnavailable
from pillarbox.settings import OutboxSettings, RelaySettings
from pillarbox.stores import postgres as _store  # noqa: F401 - imported once, before the first relay
from pillarbox.telemetry.hooks import Hooks
from pillarbox.telemetry.logging import log_to
from pillarbox.torture.bank import SCHEMA
from pillarbox.wiring import Relay

BATCH = 50
LEASE = timedelta(seconds=3)
PUBLISH_TIMEOUT = timedelta(seconds=2)


class Broker:
    """The near end of the embedded broker in a directory, of which a topic can be down."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def publisher(self) -> "Publisher":
        return Publisher(self._directory)


class Publisher(SqlitePublisher):
    """Refuses what belongs to a topic that is down, and stores the rest."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "stream.db", publish_timeout=PUBLISH_TIMEOUT, hooks=Hooks())
        self._directory = directory

    def send(self, messages: Sequence[Message]) -> None:
        down = {file.name.removeprefix("down-") for file in self._directory.glob("down-*")}
        refused = self._sends.begin([message for message in messages if message.topic in down])
        self._sends.fail(refused, BrokerUnavailable("no leader"))
        super().send([message for message in messages if message.topic not in down])


def relay(url: str, directory: str, log: Path) -> None:
    settings = Settings(
        outbox=OutboxSettings(schema=SCHEMA),
        relay=RelaySettings(batch=BATCH, lease=LEASE, publish_timeout=PUBLISH_TIMEOUT),
    )
    with log.open("w", buffering=1) as lines:
        log_to(lines, as_json=True)
        while True:  # as a supervisor does: a relay that is started while the database is away ends at once
            try:
                return Relay(settings, database=url, broker=Broker(Path(directory))).run_forever()
            except StoreUnavailable:
                time.sleep(0.1)


def main(url: str, directory: str) -> int:
    relays = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.close(0)
            relay(url, directory, Path(line.strip()))
            os._exit(0)
        relays.append(pid)
        print(pid, flush=True)
    return end(relays)


def end(relays: list[int]) -> int:
    """Ask those that still run to stop; tell whether each of them did, or had been killed."""
    for pid in relays:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    statuses = [os.waitpid(pid, 0)[1] for pid in relays]
    ended = [os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL) for status in statuses]
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
