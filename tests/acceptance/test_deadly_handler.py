"""A handler that kills its own process: its event ends as a dead letter, and nobody else pays for it."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from pillarbox import Event
from pillarbox.dbapi import Outbox

KEYS, EACH = 20, 4
DEADLY_KEY, DEADLY_N = 0, 1
RETRIES = 4
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
    if event.payload["deadly"]:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)  # so that others are in the middle of it when one kills the process
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


class Billing:
    """A billing database, a stream with the events, and consumers that are started one after the other."""

    def __init__(self, folder: Path, url: str, mode: str) -> None:
        self._folder, self._url = folder, url
        self._environment = os.environ | {
            "BILLING": url,
            "PILLARBOX_INBOX_MODE": mode,
            "PILLARBOX_RELAY_RETRIES": str(RETRIES),
        }
        self.began: list[float] = []
        """When each consumer said that it consumes."""
        (folder / "billing.py").write_text(BILLING)
        self._pillarbox("migrate", "up", "--database", url)
        self._pillarbox("migrate", "up", "--database", f"sqlite:///{folder / 'shop.db'}")
        self.query(EFFECTS.format(serial="INTEGER" if url.startswith("sqlite") else "bigserial"))
        with closing(sqlite3.connect(folder / "shop.db")) as shop:
            Outbox(topic="counted").add(shop, *(event(key, n) for n in range(EACH) for key in range(KEYS)))
            shop.commit()
        self._pillarbox("relay", "once", "--database", f"sqlite:///{folder / 'shop.db'}", "--broker", self._broker)

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
            [*command, "--topic", "counted"],
            cwd=self._folder,
            env=self._environment | {"RUN": str(len(self.began))},
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 30
        assert consumer.stderr is not None
        try:
            first = consumer.stderr.readline()
            self.began.append(time.time())
            assert "consumes counted" in first
            while consumer.poll() is None and not until():
                assert time.monotonic() < deadline, self.parked()
                time.sleep(0.02)
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


def event(key: int, n: int) -> Event[Any]:
    deadly = (key, n) == (DEADLY_KEY, DEADLY_N)
    return Event("Counted", {"key": key, "n": n, "deadly": deadly}, aggregate=("key", key))


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
    why = f"crashed the consumer: its process died {RETRIES + 1} times while this was handled"
    expected = [("0", "dead", why), ("0", "blocked", None), ("0", "blocked", None)]
    while billing.run(lambda: billing.parked() == expected and len(billing.effects()) == KEYS * EACH - 3) == -9:
        assert len(billing.began) <= RETRIES + 1, f"it is not dead: {billing.parked()}"
    assert len(billing.began) == RETRIES + 2

    effects = billing.effects()
    for key in range(KEYS):
        expected_of_it = [0] if key == DEADLY_KEY else list(range(EACH))
        assert [effect.n for effect in effects if effect.key == key] == expected_of_it, f"key {key}"
    others = [effect for effect in effects if effect.key != DEADLY_KEY]
    assert max(effect.run for effect in others) <= MOST_RESTARTS, "they waited until it was dead"
    worst = max(effect.at - billing.began[effect.run] for effect in others)
    database = "SQLite" if url.startswith("sqlite") else "PostgreSQL"
    record_property(
        "says",
        f"beside a deadly event, inbox.mode = {mode} on {database}: the others were applied by restart"
        f" {max(effect.run for effect in others)} of {RETRIES + 1}, each within {worst:.2f} s of a start",
    )
