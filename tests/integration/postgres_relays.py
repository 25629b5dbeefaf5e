"""Starts relays at once, by forking from a process that has everything imported: a killed one is soon replaced.

python -m tests.integration.postgres_relays URL DIRECTORY

For each line on stdin, which names a log, a relay is started that publishes to the broker in the directory; its pid is
written to stdout. When stdin ends, the relays are asked to stop.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from pillarbox import Settings
from pillarbox.brokers import sqlite as _broker  # noqa: F401 - imported once, before the first relay
from pillarbox.errors import StoreUnavailable
from pillarbox.settings import RelaySettings
from pillarbox.stores import postgres as _store  # noqa: F401
from pillarbox.telemetry.logging import log_to
from pillarbox.wiring import Relay

BATCH = 50
LEASE = timedelta(seconds=3)


def relay(url: str, directory: str, log: Path) -> None:
    settings = Settings(relay=RelaySettings(batch=BATCH, lease=LEASE, publish_timeout=timedelta(seconds=2)))
    with log.open("w", buffering=1) as lines:
        log_to(lines, as_json=True)
        while True:  # as a supervisor does: a relay that is started while the database is away ends at once
            try:
                return Relay(settings, database=url, broker=f"sqlite:///{directory}/stream.db").run_forever()
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
