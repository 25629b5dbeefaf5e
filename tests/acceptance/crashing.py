"""A relay or a consumer that kills or stops itself at a named moment. Run by test_crash_points.py.

python -m tests.acceptance.crashing relay|tapped|consumer|storing|sharing FOLDER DATABASE MOMENT NTH [SIGSTOP]

The broker is in the folder, or it is the one that the file `broker` there names; the outbox or the inbox is in the
database. A tapped relay publishes to a file of lines instead: one that is stopped holds no lock of that. A storing
consumer stores first, a sharing one has several events in one transaction.
"""

import asyncio
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from psycopg import connect

from pillarbox import Consumer, Event, Relay, Settings, dbapi, psycopg
from pillarbox.core.message import Message
from pillarbox.settings import InboxSettings, RelaySettings, RetentionSettings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment

TOPIC = "order-events"
BATCH = 8
ORDERS = 20
NEEDS_TIME = (Moment.LEASE_RENEWED, Moment.PRUNED)
"""Moments that an empty outbox waits for."""


class Killer:
    """Listens, and sends this process a signal when a moment comes for the nth time."""

    def __init__(self, moment: str, nth: int, signal: signal.Signals) -> None:
        self._moment, self._left, self._signal = moment, nth, signal

    def __call__(self, moment: Moment, facts: Facts) -> None:
        # To prune nothing is no moment to die at: nothing would be gone.
        if moment == self._moment and (moment is not Moment.PRUNED or facts["count"]):
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), self._signal)


def think(moment: Moment, facts: Facts) -> None:
    """Let a while pass after every answer: a log stores its progress only so often."""
    if moment is Moment.ANSWERED:
        time.sleep(0.3)


def settings(folder: Path, database: str) -> Settings:
    broker, _ = place(folder)
    relay = RelaySettings(batch=BATCH, lease=timedelta(seconds=2), publish_timeout=timedelta(seconds=1))
    return replace(Settings(), database=database, broker=broker, relay=relay)


def place(folder: Path) -> tuple[str, str]:
    """Give the URL of the broker, and the topic."""
    if not (folder / "broker").exists():
        return f"sqlite:///{folder / 'stream.db'}", TOPIC
    url, topic = (folder / "broker").read_text().split()
    return url, topic


def relay(folder: Path, database: str, hooks: Hooks) -> Relay:
    return Relay(settings(folder, database), hooks=hooks)


def pruning(folder: Path, database: str, hooks: Hooks) -> Relay:
    """Make a relay that deletes what it has published as soon as it prunes."""
    at_once = RetentionSettings(published=timedelta(0))
    return Relay(replace(settings(folder, database), retention=at_once), hooks=hooks)


def tapped(folder: Path, database: str, hooks: Hooks) -> Relay:
    async def publish(messages: list[Message]) -> None:
        with (folder / "tap").open("ab", buffering=0) as tap:
            tap.write(b"".join(message.body + b"\n" for message in messages))

    return Relay(replace(settings(folder, database), broker=None), publish=publish, hooks=hooks)


def consumer(folder: Path, database: str, hooks: Hooks) -> Consumer:
    return _consumer(folder, database, hooks, InboxSettings(), fails=lambda order: True)


def storing(folder: Path, database: str, hooks: Hooks) -> Consumer:
    return _consumer(folder, database, hooks, InboxSettings(mode="store"), fails=lambda order: True)


def sharing(folder: Path, database: str, hooks: Hooks) -> Consumer:
    # One worker, and only the last order fails: the first transaction is one that is shared and succeeds.
    one = InboxSettings(concurrency=1)
    return _consumer(folder, database, hooks, one, fails=lambda order: order == ORDERS - 1, batch=True)


def _consumer(
    folder: Path,
    database: str,
    hooks: Hooks,
    settled: InboxSettings,
    *,
    fails: Callable[[int], bool],
    batch: bool = False,
) -> Consumer:
    inbox: Any  # of one door or the other: what they have in common is all that is used of it
    if database.startswith("sqlite"):
        inbox = dbapi.Inbox("billing", lambda: sqlite3.connect(folder / "billing.db", timeout=10))
    else:
        inbox = psycopg.Inbox("billing", lambda: connect(database))
    marker = "?" if database.startswith("sqlite") else "%s"

    def bill(connection: Any, event: Event[Any]) -> None:
        order, n = event.payload["order"], event.payload["n"]
        connection.execute(f"INSERT INTO invoices (order_id, n) VALUES ({marker}, {marker})", [order, n])
        if n == 2 and fails(order) and event.delivery is not None and event.delivery.attempt == 1:
            raise ValueError("fails the first time, so that something is parked")

    def bill_all(connection: Any, events: list[Event[Any]]) -> None:
        for event in events:
            bill(connection, event)

    inbox.handler("OrderPlaced", batch=batch)(bill_all if batch else bill)
    chosen = replace(settings(folder, database), inbox=settled)
    return Consumer(inbox, topics=[place(folder)[1]], settings=chosen, hooks=hooks)


KINDS: dict[str, Callable[[Path, str, Hooks], Relay | Consumer]]
KINDS = {"relay": relay, "tapped": tapped, "consumer": consumer, "storing": storing, "sharing": sharing}


def main(kind: str, folder: str, database: str, moment: str, nth: str, how: str = "SIGKILL") -> None:
    killer = Killer(moment, int(nth), signal.Signals[how])
    hooks = Hooks(killer, think) if moment == Moment.SETTLING else Hooks(killer)
    daemon = (
        pruning(Path(folder), database, hooks)
        if moment == Moment.PRUNED
        else KINDS[kind](Path(folder), database, hooks)
    )
    if how == "SIGSTOP":
        daemon.run_forever()
    else:
        asyncio.run(daemon.run() if moment in NEEDS_TIME else daemon.run_once())


if __name__ == "__main__":
    main(*sys.argv[1:])
