"""How fast other aggregates are handled while one handler kills its process at every try and a supervisor starts it
again, beside the same without the killer; and how long they stand still at most, beyond what a start takes anyway."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import NamedTuple

import psycopg

from benchmarks.measure import Goal, Progress, Row, alone, in_rounds
from benchmarks.postgres import shop
from pillarbox import Event
from pillarbox.psycopg import Outbox
from servers.postgres import RunningPostgres

KEYS, DEADLY = 100, "0"
STALLS = """
WITH others AS (SELECT at FROM effects WHERE key <> %(deadly)s),
     gaps AS (SELECT at - lag(at) OVER (ORDER BY at) AS gap FROM others)
SELECT extract(epoch FROM (SELECT min(at) FROM others) - (SELECT at FROM began))::float8,
       extract(epoch FROM (SELECT max(gap) FROM gaps))::float8
"""
PATIENCE = 180.0
BILLING = """
import os, signal, psycopg
from pillarbox.psycopg import Inbox

inbox = Inbox("billing", lambda: psycopg.connect(os.environ["BILLING"]))

@inbox.handler("Counted")
def apply(connection, event):
    if event.payload["deadly"]:
        os.kill(os.getpid(), signal.SIGKILL)
    connection.execute("INSERT INTO effects (key) VALUES (%s)", [event.aggregate[1]])
"""


class Run(NamedTuple):
    """How the other aggregates fared: events a second, and in seconds how long the first one took from the start of its
    process, and the longest time in which nothing was handled."""

    rate: float
    start: float
    stall: float


def rows(server: RunningPostgres, place: Path, quick: bool, tell: Progress) -> list[Row]:
    """Compare the rates of those who have nothing to do with it."""
    count = 500 if quick else 5_000
    stalls: list[float] = []

    def both() -> tuple[float, float]:
        beside, without = _run_all(server, place, count, deadly=True), _run_all(server, place, count, deadly=False)
        stalls.append(max(0.0, beside.stall - without.start))
        return beside.rate, without.rate

    name = "handle other aggregates while one handler kills its process, beside none that does"
    rates = in_rounds(name, "events/s", both, tell)
    return [rates, alone("other aggregates at a death: longest stall beyond a start", "s", max(stalls), Goal("<=", 2))]


def _run_all(server: RunningPostgres, place: Path, count: int, *, deadly: bool) -> Run:
    with shop.database(server) as url, TemporaryDirectory(dir=place) as directory:
        folder = Path(directory)
        (folder / "billing.py").write_text(BILLING)
        broker = f"sqlite:///{folder / 'stream.db'}"
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE effects (key text, at timestamptz DEFAULT clock_timestamp())")
            Outbox(topic="counted").add(
                connection,
                *(
                    Event("Counted", {"deadly": deadly and n == KEYS}, aggregate=("key", n % KEYS))
                    for n in range(count)
                ),
            )
        _run(["relay", "once", "--database", url, "--broker", broker], folder, url).communicate()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE began AS SELECT clock_timestamp() AS at")
            began = perf_counter()
            _supervise(folder, url, broker, count - count // KEYS)
            rate = (count - count // KEYS) / (perf_counter() - began)
            return Run(rate, *connection.execute(STALLS, {"deadly": DEADLY}).fetchone())  # type: ignore[misc]


def _supervise(folder: Path, url: str, broker: str, others: int) -> None:
    """Keep a consumer running until all other aggregates are handled."""
    deadline = perf_counter() + PATIENCE
    command = ["consume", "billing:inbox", "--broker", broker, "--topic", "counted"]
    consumer = _run(command, folder, url)
    try:
        with psycopg.connect(url, autocommit=True) as connection:
            sql = "SELECT count(*) FROM effects WHERE key <> %s"
            while (connection.execute(sql, [DEADLY]).fetchone() or (0,))[0] < others:
                if perf_counter() > deadline:
                    raise RuntimeError("the other aggregates were not all handled")
                if consumer.poll() is not None:
                    consumer = _run(command, folder, url)
                sleep(0.02)
    finally:
        consumer.kill()
        consumer.wait()


def _run(arguments: list[str], folder: Path, url: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "pillarbox", *arguments],
        cwd=folder,
        env=os.environ | {"BILLING": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
