"""A handler that kills its own process: its event ends as a dead letter, and nobody else pays for it."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

from pillarbox import Event
from pillarbox.brokers.sqlite import SqlitePublisher
from pillarbox.core.message import Message
from pillarbox.dbapi import Outbox
from pillarbox.telemetry.hooks import Hooks

KEYS, EACH = 20, 4
DEADLY_KEY, DEADLY_N = 0, 1
RETRIES = 4
TOPIC = "counted"
PACE, AT_ONCE, LONG = 0.04, 2, 0.04
"""How many seconds apart the load comes, how many events each time, and how long each takes: a quarter of what eight
workers handle, and they are never idle."""
SHORT = 0.02
LOAD = 12.0
"""How many seconds the load lasts after the first death."""
LONGEST_WAIT = 2.0
"""How many seconds an event of another aggregate waits at most after a restart, which lasts until something is handled.
"""
MOST_RESTARTS = 3
"""Nothing is known before the first restart; there the deadly try is counted, as are those that run beside it by
chance; at the second one all others are applied, but for these, if the deadly one comes before them; at the third one
it comes after them.
"""
BILLING = """
import os, signal, sqlite3, time
import psycopg
from pillarbox import dbapi
from pillarbox import psycopg as postgres

url = os.environ["BILLING"]
if url.startswith("sqlite"):
    inbox = dbapi.Inbox("billing", lambda: sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30))
else:
    inbox = postgres.Inbox("billing", lambda: psycopg.connect(url))
marks = ", ".join(["?" if url.startswith("sqlite") else "%s"] * 4)

@inbox.handler("Counted")
def apply(connection, event):
    time.sleep(event.payload["takes"] / 2)  # so that others are in the middle of it when one kills the process
    if event.payload["deadly"]:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(event.payload["takes"] / 2)
    connection.execute(f"INSERT INTO effects (key, n, run, at) VALUES ({marks})",
                       [event.payload["key"], event.payload["n"], int(os.environ["RUN"]), time.time()])
"""
EFFECTS = "CREATE TABLE effects (id {serial} PRIMARY KEY, key integer, n integer, run integer, at double precision)"


class Effect(NamedTuple):
    """An event was applied: by which consumer, and when."""

    key: int
    n: int
    run: int
    at: float


class Run(NamedTuple):
    """A consumer said that it consumes, and ended."""

    began: float
    ended: float


class Billing:
    """A billing database, a stream for the events, and consumers that are started one after the other."""

    def __init__(self, folder: Path, url: str, mode: str) -> None:
        self._folder, self._url = folder, url
        self._environment = os.environ | {
            "BILLING": url,
            "PILLARBOX_INBOX_MODE": mode,
            "PILLARBOX_RELAY_RETRIES": str(RETRIES),
        }
        self.runs: list[Run] = []
        (folder / "billing.py").write_text(BILLING)
        self._pillarbox("migrate", "up", "--database", url)
        self._pillarbox("migrate", "up", "--database", f"sqlite:///{folder / 'shop.db'}")
        self.query(EFFECTS.format(serial="INTEGER" if url.startswith("sqlite") else "bigserial"))

    def add(self, *events: Event[Any]) -> None:
        """Add events to the outbox of a shop, and have them published."""
        with closing(sqlite3.connect(self._folder / "shop.db")) as shop:
            Outbox(topic=TOPIC).add(shop, *events)
            shop.commit()
        shop_url = f"sqlite:///{self._folder / 'shop.db'}"
        self._pillarbox("relay", "once", "--database", shop_url, "--broker", self._broker)

    @contextmanager
    def load(self) -> Iterator["Load"]:
        """Publish events all the time."""
        load = Load(self._folder / "stream.db")
        load.start()
        try:
            yield load
        finally:
            load.end()

    @property
    def _broker(self) -> str:
        return f"sqlite:///{self._folder / 'stream.db'}"

    def _pillarbox(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pillarbox", *arguments]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def query(self, sql: str) -> Sequence[tuple[Any, ...]]:
        if self._url.startswith("sqlite"):
            with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=30)) as connection, connection:
                return connection.execute(sql).fetchall()
        with psycopg.connect(self._url) as postgres:
            cursor = postgres.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def run(self, until: Callable[[], bool]) -> int:
        """Run a consumer until it dies, or until something holds and it is told to stop; give its exit code."""
        command = [sys.executable, "-m", "pillarbox", "consume", "billing:inbox", "--broker", self._broker]
        consumer = subprocess.Popen(
            [*command, "--topic", TOPIC],
            cwd=self._folder,
            env=self._environment | {"RUN": str(len(self.runs))},
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 30
        assert consumer.stderr is not None
        try:
            assert "consumes counted" in consumer.stderr.readline()
            began = time.time()
            while not until():
                assert time.monotonic() < deadline, self.parked()
                with suppress(subprocess.TimeoutExpired):
                    consumer.wait(0.02)
                    break
            self.runs.append(Run(began, time.time()))
            consumer.terminate()
            consumer.communicate(timeout=30)
        finally:
            consumer.kill()
            consumer.communicate()
        return consumer.returncode

    def effects(self) -> list[Effect]:
        return [Effect(*row) for row in self.query("SELECT key, n, run, at FROM effects ORDER BY id")]

    def parked(self) -> list[tuple[Any, ...]]:
        """List what is in the parking lot and not handled: aggregate, state, why."""
        sql = "SELECT aggregate_id, state, last_error FROM pillarbox_inbox_parked WHERE state <> 'handled' ORDER BY id"
        return list(self.query(sql))


class Load:
    """Publishes events all the time, a few at a time, each of the next aggregate: one of them is deadly."""

    def __init__(self, path: Path) -> None:
        self._path, self._stopping = path, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._publish()))
        self.at: dict[tuple[int, int], float] = {}
        """When each was published, by aggregate and place in it."""

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    async def _publish(self) -> None:
        publisher = SqlitePublisher(self._path, publish_timeout=timedelta(seconds=30), hooks=Hooks())
        for first in count(0, AT_ONCE):
            if self._stopping.wait(PACE):
                break
            publisher.send([self._message(place) for place in range(first, first + AT_ONCE)])
            answered = 0
            while answered < AT_ONCE:
                outcomes = await publisher.outcomes()
                assert not [outcome.error for outcome in outcomes if outcome.error]
                answered += len(outcomes)
        await publisher.close()

    def _message(self, place: int) -> Message:
        n, key = divmod(place, KEYS)
        headers = {"id": str(UUID(int=place + 1)), "type": "Counted", "aggregate_type": "key", "aggregate_id": str(key)}
        body = json.dumps(payload(key, n, LONG)).encode()
        self.at[key, n] = time.time()
        return Message(TOPIC, str(key), headers, body, place)


def event(key: int, n: int) -> Event[Any]:
    return Event("Counted", payload(key, n, SHORT), aggregate=("key", key))


def payload(key: int, n: int, takes: float) -> dict[str, Any]:
    return {"key": key, "n": n, "deadly": (key, n) == (DEADLY_KEY, DEADLY_N), "takes": takes}


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    if request.param == "SQLite":
        return f"sqlite:///{tmp_path / 'billing.db'}"
    return str(request.getfixturevalue("database"))


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        pytest.param("SQLite", "handle", marks=pytest.mark.soak),
        ("SQLite", "store"),
        ("PostgreSQL", "handle"),
        pytest.param("PostgreSQL", "store", marks=pytest.mark.soak),
    ],
    indirect=["url"],
)
def test_an_event_that_kills_its_process_ends_as_a_dead_letter_and_nobody_else_pays(
    tmp_path: Path, url: str, mode: str, record_property: Callable[[str, object], None]
) -> None:
    billing = Billing(tmp_path, url, mode)
    billing.add(*(event(key, n) for n in range(EACH) for key in range(KEYS)))
    why = f"the consumer's process died, or was stopped at once, {RETRIES + 1} times while this was handled"
    expected = [("0", "dead", why), ("0", "blocked", None), ("0", "blocked", None)]
    while billing.run(lambda: billing.parked() == expected and len(billing.effects()) == KEYS * EACH - 3) == -9:
        assert len(billing.runs) <= RETRIES + 1, f"it is not dead: {billing.parked()}"
    assert len(billing.runs) == RETRIES + 2

    effects = billing.effects()
    for key in range(KEYS):
        expected_of_it = [0] if key == DEADLY_KEY else list(range(EACH))
        assert [effect.n for effect in effects if effect.key == key] == expected_of_it, f"key {key}"
    others = [effect for effect in effects if effect.key != DEADLY_KEY]
    assert max(effect.run for effect in others) <= MOST_RESTARTS, "they waited until it was dead"
    worst = max(effect.at - billing.runs[effect.run].began for effect in others)
    database = "SQLite" if url.startswith("sqlite") else "PostgreSQL"
    record_property(
        "says",
        f"beside a deadly event, inbox.mode = {mode} on {database}: the others were applied by restart"
        f" {max(effect.run for effect in others)} of {RETRIES + 1}, each within {worst:.2f} s of a start",
    )


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("PostgreSQL", "handle"),
        pytest.param("PostgreSQL", "store", marks=pytest.mark.soak),
    ],
    indirect=["url"],
)
def test_under_load_no_event_of_another_aggregate_waits_longer_than_a_restart_and_two_seconds(
    tmp_path: Path, url: str, mode: str, record_property: Callable[[str, object], None]
) -> None:
    """Also those that were being tried when the process died, and that nobody can tell from the deadly one."""
    billing = Billing(tmp_path, url, mode)
    with billing.load() as load:
        assert billing.run(lambda: False) == -9
        ends = time.time() + LOAD
        while billing.run(lambda: time.time() > ends) == -9:
            assert len(billing.runs) <= RETRIES + 1, f"it is not dead: {billing.parked()}"

    expected = sum(key != DEADLY_KEY or n < DEADLY_N for key, n in load.at)
    while billing.run(lambda: len(billing.effects()) == expected) == -9:
        assert len(billing.runs) <= RETRIES + 2, f"it is not dead: {billing.parked()}"

    others = [effect for effect in billing.effects() if effect.key != DEADLY_KEY]
    for key in set(range(KEYS)) - {DEADLY_KEY}:
        assert [effect.n for effect in others if effect.key == key] == [n for of, n in load.at if of == key], (
            f"key {key}"
        )
    waits = {(one.key, one.n): _wait(billing.runs, others, load.at[one.key, one.n], one.at) for one in others}
    longest = max(waits, key=lambda one: waits[one])
    beside = billing.query("SELECT 1 FROM pillarbox_inbox_parked WHERE state = 'handled' AND last_error IS NOT NULL")
    assert beside or mode == "store", "nothing was being tried beside the deadly one: this shows nothing"
    record_property(
        "says",
        f"under load, inbox.mode = {mode}: {len(beside)} events were tried beside the deadly one; of {len(waits)} of"
        f" other aggregates none waited longer than {waits[longest]:.2f} s after a restart",
    )
    assert waits[longest] <= LONGEST_WAIT, f"number {longest[1]} of key {longest[0]}: {waits[longest]:.2f} s"


def _wait(runs: Sequence[Run], effects: Sequence[Effect], since: float, until: float) -> float:
    """Give how long an event waited at most after a restart, until it was applied or the process died once more."""
    first = {run: min(one.at for one in effects if one.run == run) for run in {one.run for one in effects}}
    return max(min(until, runs[run].ended) - max(since, at) for run, at in first.items())
