"""Ten copies of each event, as an at-least-once relay may send them, and eight consumers that are killed at random:
each effect once, in order per aggregate. On every broker: where members compete, each key is with one at a time, or one
member is active and the others stand by."""

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg
import pytest

from pillarbox.core.message import Message
from tests.acceptance.streams import STREAMS, Stream, stream_on

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
marks = ", ".join(["?" if url.startswith("sqlite") else "%s"] * 3)

@inbox.handler("Counted")
def apply(connection, event):
    effect = [event.aggregate[1], event.payload, os.getpid()]
    connection.execute(f"INSERT INTO effects (key, n, pid) VALUES ({marks})", effect)
"""
PLACES = [
    pytest.param(broker, database, marks=[] if (broker, database) == ("embedded", "PostgreSQL") else [pytest.mark.soak])
    for broker in STREAMS
    for database in ("PostgreSQL", "SQLite")
]


@pytest.fixture
def stream(broker: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stream]:
    with stream_on(broker, f"counted-{uuid4().hex[:8]}", tmp_path, request) as stream:
        yield stream


@pytest.fixture
def url(database_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URL of an empty database."""
    if database_kind == "SQLite":
        return f"sqlite:///{tmp_path / 'billing.db'}"
    return str(request.getfixturevalue("database"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("broker", "database_kind"), PLACES)
def test_ten_copies_and_eight_killed_consumers_apply_each_event_once_and_in_order(
    tmp_path: Path,
    stream: Stream,
    url: str,
    broker: str,
    database_kind: str,
    record_property: Callable[[str, object], None],
) -> None:
    said = consume(tmp_path, stream, url)
    record_property("says", f"copies and kills, {broker} and {database_kind}: {said}")
    assert_once_and_in_order(url)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker", ["competing"])
@pytest.mark.parametrize("database_kind", ["PostgreSQL", "SQLite"])
def test_consumers_that_compete_for_a_queue_apply_each_event_once_and_in_order_by_its_number(
    tmp_path: Path, stream: Stream, url: str, database_kind: str, record_property: Callable[[str, object], None]
) -> None:
    said = consume(tmp_path, stream, url, numbered=True, PILLARBOX_INBOX_UNORDERED="true")
    record_property("says", f"copies and kills, competing for a queue and {database_kind}, numbered: {said}")
    assert_once_and_in_order(url)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("broker", ["competing"])
@pytest.mark.parametrize("database_kind", ["PostgreSQL", "SQLite"])
def test_consumers_that_compete_for_a_queue_apply_each_event_once_in_an_order_that_nobody_promises(
    tmp_path: Path, stream: Stream, url: str, database_kind: str, record_property: Callable[[str, object], None]
) -> None:
    said = consume(tmp_path, stream, url)
    record_property("says", f"copies and kills, competing for a queue and {database_kind}: {said}")
    assert_once(url)


def consume(folder: Path, stream: Stream, url: str, *, numbered: bool = False, **environment: str) -> str:
    """Let consumers apply all copies, and kill one after another meanwhile; say whom the kills struck."""
    chance = random.Random(SEED)
    prepare(folder, url)
    stream.publish(copies(stream.topic, chance, numbered=numbered))
    assert stream.unread() == COPIES * EVENTS, "the broker has not stored the copies"
    at_work = active = 0
    with Group(folder, stream, url, chance, environment) as group:
        for left in sorted(chance.sample(range(100, COPIES * EVENTS), KILLS), reverse=True):
            at_work += group.wait_until_unread(left) > 0
            active += group.kill_one()
        group.wait_until_unread(0)
        group.wait_until_nothing_waits()
    return (
        f"{at_work} of {KILLS} kills struck while there was work, {active} the one whose effect was the newest;"
        f" {group.members_at_work()} members had effects"
    )


def assert_once(url: str) -> list[tuple[str, int]]:
    effects = [(key, n) for key, n in query(url, "SELECT key, n FROM effects ORDER BY id")]
    assert sorted(n for _, n in effects) == list(range(EVENTS)), f"seed {SEED}: lost or applied twice"
    assert query(url, "SELECT event_id, state, last_error FROM pillarbox_inbox_parked WHERE state <> 'handled'") == []
    return effects


def assert_once_and_in_order(url: str) -> None:
    effects = assert_once(url)
    for key in range(KEYS):
        applied = [n for found, n in effects if found == str(key)]
        assert applied == list(range(key * EACH, (key + 1) * EACH)), f"key {key}, seed {SEED}"


class Group:
    """The consumers, of which one after another is killed and replaced. All deadlines only end a test that failed."""

    def __init__(
        self, folder: Path, stream: Stream, url: str, chance: random.Random, environment: Mapping[str, str]
    ) -> None:
        self._folder, self._stream, self._url, self._chance = folder, stream, url, chance
        self._environment = os.environ | environment | {"BILLING": url}
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self._running = [self._start() for _ in range(CONSUMERS)]
        return self

    def __exit__(self, *error: object) -> None:
        for consumer in self._running:
            consumer.kill()
            consumer.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        where = ["--topic", self._stream.topic, "--broker", self._stream.url]
        command = [sys.executable, "-m", "pillarbox", "consume", "billing:inbox", *where]
        with (self._folder / "consumers.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self._folder, env=self._environment, stdout=log, stderr=log)

    def kill_one(self) -> bool:
        """Kill any one, or the one at work: others may just stand by. Tell whether it was that one."""
        at_work = self._at_work()
        victim = self._chance.randrange(CONSUMERS)
        if self._chance.random() < 0.5 and at_work is not None:
            victim = at_work
        self._running[victim].kill()
        assert self._running[victim].wait() == -9, f"seed {SEED}: it ended by itself: {self._log()}"
        self._running[victim] = self._start()
        return victim == at_work

    def _at_work(self) -> int | None:
        """Find the one whose effect is the newest; wait until it is one that lives, if there is work."""
        deadline = time.monotonic() + 60
        while True:
            newest = query(self._url, "SELECT pid FROM effects ORDER BY id DESC LIMIT 1")
            for index, consumer in enumerate(self._running):
                if newest and consumer.pid == newest[0][0]:
                    return index
            if self._stream.unread() == 0:
                return None
            assert time.monotonic() < deadline, f"seed {SEED}: nobody is at work: {self._log()}"
            time.sleep(0.05)

    def wait_until_unread(self, at_most: int) -> int:
        """Wait until so few messages are not acknowledged; give how many."""
        deadline = time.monotonic() + 60
        while (unread := self._stream.unread()) > at_most:
            assert time.monotonic() < deadline, f"seed {SEED}: {unread} messages are unread: {self._log()}"
            time.sleep(0.01)
        return unread

    def wait_until_nothing_waits(self) -> None:
        """Wait until the parking lot is empty: what processes have died with twice is tried last, out of the lot."""
        deadline = time.monotonic() + 60
        sql = "SELECT event_id, state, attempts FROM pillarbox_inbox_parked WHERE state NOT IN ('handled', 'dropped')"
        while waiting := query(self._url, sql):
            assert time.monotonic() < deadline, f"seed {SEED}: {waiting[:5]} wait: {self._log()}"
            time.sleep(0.05)

    def members_at_work(self) -> int:
        """Count those that have applied something."""
        return int(query(self._url, "SELECT count(DISTINCT pid) FROM effects")[0][0])

    def _log(self) -> str:
        return (self._folder / "consumers.log").read_text()[-3000:]


def copies(topic: str, chance: random.Random, *, numbered: bool) -> list[Message]:
    """Give every event ten times: the first copies in order, the others anywhere behind their first."""
    placed = [(float(n), n) for n in range(EVENTS)]
    placed += [(chance.uniform(n, EVENTS), n) for n in range(EVENTS) for _ in range(COPIES - 1)]
    return [message(topic, n, numbered=numbered) for _, n in sorted(placed)]


def message(topic: str, n: int, *, numbered: bool) -> Message:
    key = str(n // EACH)  # those of one aggregate are neighbours: without its order they would overtake one another
    headers = {"id": str(UUID(int=n)), "type": "Counted", "aggregate_type": "key", "aggregate_id": key}
    if numbered:
        headers["number"] = str(n % EACH + 1)
    return Message(topic, key, headers, json.dumps(n).encode())


def prepare(folder: Path, url: str) -> None:
    (folder / "billing.py").write_text(BILLING)
    command = [sys.executable, "-m", "pillarbox", "migrate", "up", "--database", url]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    serial = "INTEGER" if url.startswith("sqlite") else "bigserial"
    query(url, f"CREATE TABLE effects (id {serial} PRIMARY KEY, key text, n integer, pid integer)")


def query(url: str, sql: str) -> Sequence[tuple[Any, ...]]:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection, connection:
            return connection.execute(sql).fetchall()
    with psycopg.connect(url) as postgres:
        cursor = postgres.execute(sql.encode())
        return cursor.fetchall() if cursor.description else []
