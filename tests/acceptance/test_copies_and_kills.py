"""Ten copies of each event, as an at-least-once relay may send them, and eight consumers that are killed at random:
each effect once, in order per aggregate. On every broker: where members compete, each key is with one at a time, or one
member is active and the others stand by.

So that every kill strikes while there is work, a handler stands still at each of the events that were drawn, until
somebody has been killed: it, or any other, in the middle of it or just as it goes on."""

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
import os, sqlite3, time
from pathlib import Path
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
    if event.payload % 2:
        stand_still(event.payload)
    connection.execute(f"INSERT INTO effects (key, n, pid) VALUES ({marks})", effect)
    if not event.payload % 2:
        stand_still(event.payload)

def stand_still(n):
    here = Path("moments", f"{n}.{os.getpid()}")
    try:
        Path("moments", str(n)).rename(here)
    except FileNotFoundError:
        return
    while here.exists():
        time.sleep(0.005)
"""
SHARING = ("embedded", "redis", "kafka", "competing")
"""Where several members are at work at once; elsewhere one is, and the others stand by."""
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
    said = consume(tmp_path, stream, url, shared=broker in SHARING)
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


def consume(
    folder: Path, stream: Stream, url: str, *, shared: bool = True, numbered: bool = False, **environment: str
) -> str:
    """Let consumers apply all copies, and kill one after another meanwhile; say whom the kills struck."""
    chance = random.Random(SEED)
    prepare(folder, url, chance.sample(range(EVENTS * 9 // 10), KILLS))
    stream.publish(copies(stream.topic, chance, numbered=numbered))
    assert stream.unread() == COPIES * EVENTS, "the broker has not stored the copies"
    at_work = active = 0
    with Group(folder, stream, url, chance, environment) as group:
        for strikes_at_work in chance.sample([True, False] * (KILLS // 2), KILLS):
            moment = group.wait_for_a_moment()
            at_work += stream.unread() > 0 or group.waiting() != []
            active += group.kill_one(moment, strikes_at_work=strikes_at_work)
        group.wait_until_unread(0)
        group.wait_until_nothing_waits()
        members, overlapping = group.members_at_work(), group.members_at_work_beside_others()
    assert at_work == KILLS, f"seed {SEED}: only {at_work} kills struck while there was work"
    assert active >= KILLS // 2, f"seed {SEED}: only {active} kills struck the one that stood in its handler"
    assert members > 1, f"seed {SEED}: only {members} members had effects"
    assert overlapping > 1 or not shared, f"seed {SEED}: nobody had effects while another one was at work"
    return (
        f"seed {SEED}: {at_work} of {KILLS} kills struck while there was work, {active} the one that stood in its"
        f" handler; {members} members had effects, {overlapping} of them between another one's"
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
        self._moments = folder / "moments"
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

    def wait_for_a_moment(self) -> Path:
        """Wait until a handler stands still; give the file that lets it go on when it is gone."""
        deadline = time.monotonic() + 60
        while not (moments := sorted(self._moments.glob("*.*"))):
            assert time.monotonic() < deadline, f"seed {SEED}: no handler stands still: {self._log()}"
            time.sleep(0.005)
        return moments[0]

    def kill_one(self, moment: Path, *, strikes_at_work: bool) -> bool:
        """Kill the one whose handler stands still, or any one: it may just stand by. Tell whether it was that one."""
        at_work = next(n for n, consumer in enumerate(self._running) if moment.suffix == f".{consumer.pid}")
        victim = at_work if strikes_at_work else self._chance.randrange(CONSUMERS)
        if self._chance.random() < 0.5:
            moment.unlink()  # it is killed anywhere behind that
        self._running[victim].kill()
        assert self._running[victim].wait() == -9, f"seed {SEED}: it ended by itself: {self._log()}"
        moment.unlink(missing_ok=True)
        for other in self._moments.glob(f"*.{self._running[victim].pid}"):
            other.rename(other.with_suffix(""))  # whoever gets that event next stands still at it
        self._running[victim] = self._start()
        return victim == at_work

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
        while waiting := self.waiting():
            assert time.monotonic() < deadline, f"seed {SEED}: {waiting[:5]} wait: {self._log()}"
            time.sleep(0.05)

    def waiting(self) -> Sequence[tuple[Any, ...]]:
        """List what stands in the parking lot, acknowledged and not handled."""
        sql = "SELECT event_id, state, attempts FROM pillarbox_inbox_parked"
        return list(query(self._url, f"{sql} WHERE state NOT IN ('handled', 'dropped')"))

    def members_at_work(self) -> int:
        """Count those that have applied something."""
        return int(query(self._url, "SELECT count(DISTINCT pid) FROM effects")[0][0])

    def members_at_work_beside_others(self) -> int:
        """Count those that have applied something between two effects of another one."""
        spans = "SELECT pid, min(id) AS first, max(id) AS last FROM effects GROUP BY pid"
        between = (
            "SELECT 1 FROM effects WHERE effects.pid <> spans.pid AND effects.id BETWEEN spans.first AND spans.last"
        )
        return int(query(self._url, f"SELECT count(*) FROM ({spans}) AS spans WHERE EXISTS ({between})")[0][0])

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


def prepare(folder: Path, url: str, moments: Sequence[int]) -> None:
    (folder / "billing.py").write_text(BILLING)
    (folder / "moments").mkdir()
    for n in moments:
        (folder / "moments" / str(n)).touch()
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
