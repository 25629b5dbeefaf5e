"""Four consumers of one group on the embedded broker, killed with -9 again and again: effects once, in order."""

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pillarbox import Event
from pillarbox.dbapi import Outbox

EVENTS, KEYS, KILLS, SEED = 10_000, 100, 12, 20261115
BILLING = """
import os, sqlite3
from pillarbox.dbapi import Inbox

inbox = Inbox("billing", lambda: sqlite3.connect(os.environ["BILLING"], timeout=30))

@inbox.handler("Counted")
def apply(connection, event):
    connection.execute("INSERT INTO effects (key, n, event_id) VALUES (?, ?, ?)",
                       [event.aggregate[1], event.payload, str(event.id)])
"""


@pytest.mark.timeout(300)
def test_four_killed_consumers_apply_ten_thousand_events_once_and_in_order(tmp_path: Path) -> None:
    prepare(tmp_path)
    chance = random.Random(SEED)
    with four_consumers(tmp_path) as consumers:
        for kill in range(KILLS):
            wait_until(tmp_path, at_least=(kill + 1) * EVENTS // (KILLS + 2))
            victim = chance.randrange(len(consumers))
            consumers[victim].kill()
            assert consumers[victim].wait() == -9
            consumers[victim] = start(tmp_path)
        wait_until(tmp_path, at_least=EVENTS)
    with closing(sqlite3.connect(tmp_path / "billing.db")) as billing:
        assert billing.execute("SELECT count(*), count(DISTINCT event_id) FROM effects").fetchone() == (EVENTS, EVENTS)
        late = "SELECT key, n, lag(n) OVER (PARTITION BY key ORDER BY id) AS before FROM effects"
        assert billing.execute(f"SELECT * FROM ({late}) WHERE n < before").fetchall() == [], f"seed {SEED}"


def prepare(folder: Path) -> None:
    (folder / "billing.py").write_text(BILLING)
    for name in ("shop.db", "billing.db"):
        pillarbox("migrate", "up", "--database", f"sqlite:///{folder / name}")
    with closing(sqlite3.connect(folder / "billing.db")) as billing:
        billing.execute("CREATE TABLE effects (id INTEGER PRIMARY KEY, key TEXT, n INTEGER, event_id TEXT)")
    with closing(sqlite3.connect(folder / "shop.db")) as shop:
        Outbox(topic="counted").add(shop, *(Event("Counted", n, aggregate=("key", n % KEYS)) for n in range(EVENTS)))
        shop.commit()
    pillarbox("relay", "once", "--database", f"sqlite:///{folder / 'shop.db'}", "--broker", stream(folder))


def stream(folder: Path) -> str:
    return f"sqlite:///{folder / 'stream.db'}"


def pillarbox(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pillarbox", *arguments], check=True, capture_output=True, timeout=60)


def start(folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "pillarbox", "consume", "billing:inbox", "--broker", stream(folder)]
    environment = os.environ | {"BILLING": str(folder / "billing.db")}
    with (folder / "consumers.log").open("ab") as log:
        return subprocess.Popen([*command, "--topic", "counted"], cwd=folder, env=environment, stdout=log, stderr=log)


@contextmanager
def four_consumers(folder: Path) -> "Iterator[list[subprocess.Popen[bytes]]]":
    consumers = [start(folder) for _ in range(4)]
    try:
        yield consumers
    finally:
        for consumer in consumers:
            consumer.kill()
            consumer.wait()


def wait_until(folder: Path, at_least: int) -> None:
    """Wait for so many effects; the deadline is only there to end a test that has failed."""
    deadline = time.monotonic() + 120
    with closing(sqlite3.connect(folder / "billing.db")) as billing:
        while billing.execute("SELECT count(*) FROM effects").fetchone()[0] < at_least:
            assert time.monotonic() < deadline, (folder / "consumers.log").read_text()[-3000:]
            time.sleep(0.02)
