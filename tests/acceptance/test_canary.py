"""The canary through real processes: green while it flows, red while the broker is away or a consumer hangs."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import psycopg
import pytest

from servers.postgres import RunningPostgres
from servers.process import free_port
from servers.redis import Redis
from tests.acceptance.test_cli_postgres import type_
from tests.integration.postgres_shop import made

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

Until = Callable[[Callable[[], bool]], None]
CANARY = "--set health.canary=200ms --set 'health.oldest_pending=2 s'"
OFTEN = ["--set", "health.canary=200ms", "--set", "health.oldest_pending=2 s"]
BILLING = """
import threading
{opens}

@inbox.handler("OrderPlaced")
def bill(connection, event):
    threading.Event().wait()
"""
ON_SQLITE = """
import sqlite3
from pillarbox.dbapi import Inbox
inbox = Inbox("billing", lambda: sqlite3.connect("billing.db"))
"""
ON_POSTGRESQL = """
import os
import psycopg
from pillarbox.psycopg import Inbox
inbox = Inbox("billing", lambda: psycopg.connect(os.environ["BILLING"]))
"""


@pytest.fixture
def other_database(postgres_at: Callable[[str], RunningPostgres]) -> Iterator[str]:
    """The URL of the consumer's own database."""
    server, name = postgres_at("15"), f"test_{uuid.uuid4().hex}"
    yield server.create_database(name)
    server.drop_database(name)


class Watched:
    """A relay and a consumer, each with its pages."""

    def __init__(self) -> None:
        self.relay, self.consumer = free_port(), free_port()

    def problems(self, port: int) -> list[str] | None:
        """Give what a daemon's /readyz tells; None if it does not answer, or is not ready."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=10)
        except httpx.TransportError:
            return None
        kinds: list[str] = answer.json()["problems"]
        return kinds if answer.status_code == 200 else None

    @property
    def is_green(self) -> bool:
        return self.problems(self.relay) == [] and self.problems(self.consumer) == []

    def metric(self, port: int, name: str) -> float | None:
        lines = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text.splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), None)

    def has_flown(self) -> bool:
        """A canary has gone the whole way since the processes began."""
        received = self.metric(self.consumer, "pillarbox_canary_received_timestamp_seconds")
        return bool(received) and self.metric(self.relay, "pillarbox_canary_age_seconds") is not None


@contextmanager
def running(directory: Path, *daemons: list[str], **environment: str) -> Iterator[None]:
    """Run daemons meanwhile, with the canary on; they are killed in the end, for a handler may hang."""
    with ExitStack() as stack:
        for words in daemons:
            process = subprocess.Popen(
                [sys.executable, "-m", "pillarbox", *words, *OFTEN],
                cwd=directory,
                env={**os.environ, **environment},
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def listening(port: int) -> list[str]:
    return ["--set", f"health.listen=127.0.0.1:{port}"]


def consume(broker: str, port: int) -> list[str]:
    topics = ["--topic", "order-events", "--topic", "pillarbox-canary"]
    return ["consume", "billing:inbox", *topics, "--broker", broker, "--set", "inbox.concurrency=1", *listening(port)]


def test_a_consumer_that_hangs_is_degraded_and_its_relay_is_not(migrated: "Shop", until: Until) -> None:
    (migrated.directory / "billing.py").write_text(BILLING.format(opens=ON_SQLITE))
    migrated.migrate("billing.db")
    watched = Watched()
    relay = ["relay", "run", "--database", migrated.database, "--broker", migrated.broker, *listening(watched.relay)]
    with running(migrated.directory, relay, consume(migrated.broker, watched.consumer)):
        until(lambda: watched.is_green)
        until(watched.has_flown)
        migrated.type(f"pillarbox health --database {migrated.database} {CANARY}")
        migrated.placed()
        until(lambda: "canary" in (watched.problems(watched.consumer) or ()))  # the slow handler may be told of too
        assert watched.problems(watched.relay) == []
    until(lambda: "the last canary was sent" in health(migrated))  # no relay, nothing pending, and not green


def health(shop: "Shop") -> str:
    """Ask whether all is well; give what is said."""
    words = [sys.executable, "-m", "pillarbox", "health", "--database", shop.database, *OFTEN]
    return subprocess.run(words, cwd=shop.directory, capture_output=True, text=True, check=False).stdout


def test_a_broker_that_is_away_makes_both_ends_degraded_until_it_is_back(
    database: str,
    other_database: str,
    own_redis: Callable[[str], Redis],
    tmp_path: Path,
    until: Until,
) -> None:
    made(database)
    made(other_database)
    redis = own_redis("redis")
    (tmp_path / "billing.py").write_text(BILLING.format(opens=ON_POSTGRESQL))
    watched = Watched()
    relay = ["relay", "run", "--database", database, "--broker", redis.url(), *listening(watched.relay)]
    with running(tmp_path, relay, consume(redis.url(), watched.consumer), BILLING=other_database):
        until(lambda: watched.is_green)
        until(watched.has_flown)
        redis.kill()
        until(lambda: "canary" in (watched.problems(watched.relay) or ()))
        until(lambda: set(watched.problems(watched.consumer) or ()) == {"canary", "broker away"})
        with psycopg.connect(database) as connection:
            pending = "SELECT count(*) FROM pillarbox_events WHERE status <> 'published'"
            assert connection.execute(pending).fetchone() == (1,)  # they do not pile up
        redis.restart()
        until(lambda: watched.is_green)
    with psycopg.connect(other_database) as connection:
        assert connection.execute("SELECT count(*) > 1 FROM pillarbox_inbox").fetchone() == (True,)


def test_relay_once_sends_no_canary_and_health_says_that_there_was_none(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made(database)
    type_(f"pillarbox relay once --database {database} --broker stdout: {CANARY}")
    health = type_(f"pillarbox health --database {database} {CANARY}", code=3).stdout
    assert health == "degraded: no canary has been sent yet, and one is to be every 200 ms: a relay sends it\n"
