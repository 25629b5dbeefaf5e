"""Ten copies of each event, as an at-least-once relay may send them, and eight consumers that are killed at random:
each effect once, in order per aggregate."""

import asyncio
import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pillarbox.brokers.sqlite.publisher import SqlitePublisher
from pillarbox.core.message import Message
from pillarbox.telemetry.hooks import Hooks

KEYS, EACH, COPIES = 50, 20, 10
EVENTS = KEYS * EACH
CONSUMERS, KILLS, SEED = 8, 16, 20261116
BILLING = """
import os, sqlite3
import psycopg
from pillarbox import dbapi
from pillarbox import psycopg as postgres

url = os.environ["BILLING"]
if url.startswith("sqlite"):
    inbox = dbapi.Inbox("billing", lambda: sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30))
else:
    inbox = postgres.Inbox("billing", lambda: psycopg.connect(url))
marks = ", ".join(["?" if url.startswith("sqlite") else "%s"] * 2)

@inbox.handler("Counted")
def apply(connection, event):
    connection.execute(f"INSERT INTO effects (key, n) VALUES ({marks})", [event.aggregate[1], event.payload])
"""
UNREAD = """
SELECT count(*) FROM messages LEFT JOIN positions
ON positions.consumer = 'billing' AND positions.topic = messages.topic AND positions.partition = messages.partition
WHERE messages.id > coalesce(positions.position, 0)
"""


@pytest.fixture(params=[pytest.param("SQLite", marks=pytest.mark.soak), "PostgreSQL"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "SQLite":
        return f"sqlite:///{tmp_path / 'billing.db'}"
    return str(request.getfixturevalue("database"))


def test_ten_copies_and_eight_killed_consumers_apply_each_event_once_and_in_order(
    tmp_path: Path, url: str, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(SEED)
    prepare(tmp_path, url)
    asyncio.run(publish(tmp_path, copies(chance)))
    at_work = 0
    with consumers(tmp_path, url) as running:
        for left in sorted(chance.sample(range(100, COPIES * EVENTS), KILLS), reverse=True):
            at_work += wait_until_unread(tmp_path, left) > 0
            victim = chance.randrange(CONSUMERS)
            running[victim].kill()
            assert running[victim].wait() == -9, f"seed {SEED}: it ended by itself: {log_of(tmp_path)}"
            running[victim] = start(tmp_path, url)
        wait_until_unread(tmp_path, 0)
        wait_until_nothing_waits(tmp_path, url)
    database = "SQLite" if url.startswith("sqlite") else "PostgreSQL"
    record_property("says", f"copies and kills on {database}: {at_work} of {KILLS} kills struck while there was work")
    effects = query(url, "SELECT key, n FROM effects ORDER BY id")
    for key in range(KEYS):
        applied = [n for found, n in effects if found == str(key)]
        assert applied == list(range(key * EACH, (key + 1) * EACH)), f"key {key}, seed {SEED}"
    assert len(effects) == EVENTS, f"seed {SEED}"
    assert query(url, "SELECT event_id, state, last_error FROM pillarbox_inbox_parked WHERE state <> 'handled'") == []


def copies(chance: random.Random) -> list[Message]:
    """Give every event ten times: the first copies in order, the others anywhere behind their first."""
    placed = [(float(n), n) for n in range(EVENTS)]
    placed += [(chance.uniform(n, EVENTS), n) for n in range(EVENTS) for _ in range(COPIES - 1)]
    return [message(n) for _, n in sorted(placed)]


def message(n: int) -> Message:
    key = str(n // EACH)  # those of one aggregate are neighbours: without its order they would overtake one another
    headers = {"id": str(UUID(int=n)), "type": "Counted", "aggregate_type": "key", "aggregate_id": key}
    return Message("counted", key, headers, json.dumps(n).encode())


async def publish(folder: Path, messages: Sequence[Message]) -> None:
    publisher = SqlitePublisher(folder / "stream.db", publish_timeout=timedelta(seconds=30), hooks=Hooks())
    publisher.send([message._replace(ticket=ticket) for ticket, message in enumerate(messages)])
    answered = 0
    while answered < len(messages):
        outcomes = await publisher.outcomes()
        assert not any(outcome.error for outcome in outcomes)
        answered += len(outcomes)
    await publisher.close()


def prepare(folder: Path, url: str) -> None:
    (folder / "billing.py").write_text(BILLING)
    command = [sys.executable, "-m", "pillarbox", "migrate", "up", "--database", url]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    serial = "INTEGER" if url.startswith("sqlite") else "bigserial"
    query(url, f"CREATE TABLE effects (id {serial} PRIMARY KEY, key text, n integer)")


def query(url: str, sql: str) -> Sequence[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection, connection:
            return connection.execute(sql).fetchall()
    with psycopg.connect(url) as postgres:
        cursor = postgres.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []


def start(folder: Path, url: str) -> "subprocess.Popen[bytes]":
    stream = f"sqlite:///{folder / 'stream.db'}"
    command = [sys.executable, "-m", "pillarbox", "consume", "billing:inbox", "--topic", "counted", "--broker", stream]
    with (folder / "consumers.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=os.environ | {"BILLING": url}, stdout=log, stderr=log)


@contextmanager
def consumers(folder: Path, url: str) -> "Iterator[list[subprocess.Popen[bytes]]]":
    running = [start(folder, url) for _ in range(CONSUMERS)]
    try:
        yield running
    finally:
        for consumer in running:
            consumer.kill()
            consumer.wait()


def wait_until_unread(folder: Path, at_most: int) -> int:
    """Wait until so few messages are not acknowledged; give how many. The deadline only ends a test that has failed."""
    deadline = time.monotonic() + 60
    with closing(sqlite3.connect(folder / "stream.db", timeout=30)) as stream:
        while (unread := stream.execute(UNREAD).fetchone()[0]) > at_most:
            assert time.monotonic() < deadline, f"seed {SEED}: {unread} messages are unread: {log_of(folder)}"
            time.sleep(0.01)
    return int(unread)


def wait_until_nothing_waits(folder: Path, url: str) -> None:
    """Wait until the parking lot is empty: what processes have died with twice is tried last, out of the lot."""
    deadline = time.monotonic() + 60
    sql = "SELECT event_id, state, attempts FROM pillarbox_inbox_parked WHERE state NOT IN ('handled', 'dropped')"
    while waiting := query(url, sql):
        assert time.monotonic() < deadline, f"seed {SEED}: {waiting[:5]} wait: {log_of(folder)}"
        time.sleep(0.05)


def log_of(folder: Path) -> str:
    return (folder / "consumers.log").read_text()[-3000:]
