"""How fast other aggregates are handled while one handler kills its process at every try and a supervisor starts it
again; beside the same without the killer."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

import psycopg

from benchmarks.measure import Progress, Row, in_rounds
from benchmarks.postgres import shop
from pillarbox import Event
from pillarbox.psycopg import Outbox
from servers.postgres import RunningPostgres

KEYS, DEADLY = 100, "0"
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


def rows(server: RunningPostgres, place: Path, quick: bool, tell: Progress) -> list[Row]:
    """Compare the rates of those who have nothing to do with it."""
    count = 500 if quick else 5_000

    def both() -> tuple[float, float]:
        return _rate(server, place, count, deadly=True), _rate(server, place, count, deadly=False)

    name = "handle other aggregates while one handler kills its process, beside none that does"
    return [in_rounds(name, "events/s", both, tell)]


def _rate(server: RunningPostgres, place: Path, count: int, *, deadly: bool) -> float:
    with shop.database(server) as url, TemporaryDirectory(dir=place) as directory:
        folder = Path(directory)
        (folder / "billing.py").write_text(BILLING)
        broker = f"sqlite:///{folder / 'stream.db'}"
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE effects (key text)")
            Outbox(topic="counted").add(
                connection,
                *(
                    Event("Counted", {"deadly": deadly and n == KEYS}, aggregate=("key", n % KEYS))
                    for n in range(count)
                ),
            )
        _run(["relay", "once", "--database", url, "--broker", broker], folder, url).communicate()
        began = perf_counter()
        _supervise(folder, url, broker, count - count // KEYS)
        return (count - count // KEYS) / (perf_counter() - began)


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
