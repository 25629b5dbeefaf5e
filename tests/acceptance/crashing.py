"""A relay or a consumer that kills itself with -9 at a named moment. Run by test_crash_points.py.

python -m tests.acceptance.crashing relay|consumer FOLDER MOMENT NTH
"""

import asyncio
import os
import signal
import sqlite3
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pillarbox import Consumer, Event, Relay, Settings
from pillarbox.dbapi import Inbox
from pillarbox.settings import RelaySettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment

TOPIC = "order-events"
NEEDS_TIME = (Moment.LEASE_RENEWED, Moment.PRUNED)
"""Moments that an empty outbox waits for."""


class Killer:
    """Listens, and kills this process when a moment comes for the nth time."""

    def __init__(self, moment: str, nth: int) -> None:
        self._moment, self._left = moment, nth

    def __call__(self, moment: Moment, facts: Facts) -> None:
        if moment == self._moment:
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def settings(folder: Path) -> Settings:
    relay = RelaySettings(batch=40, lease=timedelta(seconds=2), publish_timeout=timedelta(seconds=1))
    shop, stream = f"sqlite:///{folder / 'shop.db'}", f"sqlite:///{folder / 'stream.db'}"
    return replace(Settings(), database=shop, broker=stream, relay=relay)


def relay(folder: Path, hooks: Hooks) -> Relay:
    return Relay(settings(folder), hooks=hooks)


def consumer(folder: Path, hooks: Hooks) -> Consumer:
    inbox = Inbox("billing", lambda: sqlite3.connect(folder / "billing.db", timeout=10))

    @inbox.handler("OrderPlaced")
    def bill(connection: sqlite3.Connection, event: Event[Any]) -> None:
        connection.execute("INSERT INTO invoices (event_id, order_id, n) VALUES (?, ?, ?)",
                           [str(event.id), event.payload["order"], event.payload["n"]])  # fmt: skip
        if event.payload["n"] == 2 and event.delivery is not None and event.delivery.attempt == 1:
            raise ValueError("fails the first time, so that something is parked")

    return Consumer(inbox, topics=[TOPIC], settings=settings(folder), hooks=hooks)


def main(kind: str, folder: str, moment: str, nth: str) -> None:
    hooks = Hooks(Killer(moment, int(nth)))
    daemon = (relay if kind == "relay" else consumer)(Path(folder), hooks)
    asyncio.run(daemon.run() if moment in NEEDS_TIME else daemon.run_once())


if __name__ == "__main__":
    main(*sys.argv[1:])
