"""How long an event takes from its commit until a reader sees it in the broker's file, at 200 events a second."""

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from uuid import uuid4

from benchmarks import drain, shop, textbook
from benchmarks.measure import ROUNDS, Progress, Row
from pillarbox.dbapi import Outbox

RATE = 200
RELAY = """
import sys
from pillarbox.wiring import Relay
Relay(database=sys.argv[1], broker=sys.argv[2]).run_forever()
"""
TEXTBOOK = """
import sys
from pathlib import Path
from benchmarks import shop, textbook
textbook.poll_every_second(shop.connect(Path(sys.argv[1])), shop.connect(Path(sys.argv[2])))
"""
Latencies = list[float]


def rows(place: Path, quick: bool, tell: Progress) -> list[Row]:
    seconds = 2 if quick else 10
    ours: list[Latencies] = []
    reference: list[Latencies] = []
    for turn in range(ROUNDS):
        for way, found, whose in ((_relay, ours, "ours"), (_textbook, reference, "a loop that sleeps 1 s")):
            tell(f"delivery latency: round {turn + 1} of {ROUNDS}, {whose}")
            with TemporaryDirectory(dir=place) as directory:
                found.append(sorted(way(Path(directory), seconds * RATE)))
    return [_row(name, share, ours, reference) for name, share in (("p50", 0.5), ("p99", 0.99))]


def _row(name: str, share: float, ours: list[Latencies], reference: list[Latencies]) -> Row:
    mine, theirs = ([found[int(len(found) * share)] * 1000 for found in way] for way in (ours, reference))
    ratio = median(one / other for one, other in zip(mine, theirs, strict=True))
    return Row(f"delivery latency at {RATE} events/s, {name}", median(mine), "ms", median(theirs), ratio)


def _relay(at: Path, count: int) -> Latencies:
    database, broker = shop.filled(at / "shop.db", 1), at / "stream.db"
    connection, outbox = shop.connect(database), Outbox()

    def write(n: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        outbox.add(connection, shop.event(n))
        connection.execute("COMMIT")

    try:
        return _observe([RELAY, f"sqlite:///{database}", f"sqlite:///{broker}"], broker, write, count)
    finally:
        connection.close()


def _textbook(at: Path, count: int) -> Latencies:
    database, broker = drain.prepare_textbook(at)

    def write(n: int) -> None:
        database.execute(
            textbook.ADD, (str(uuid4()), "order", str(n % shop.ORDERS), "OrderPlaced", json.dumps(shop.payload(n)))
        )

    try:
        write(0)
        files = [str(at / "textbook-shop.db"), str(at / "textbook-stream.db")]
        return _observe([TEXTBOOK, *files], at / "textbook-stream.db", write, count)
    finally:
        database.close()
        broker.close()


def _observe(program: list[str], broker: Path, write: Callable[[int], None], count: int) -> Latencies:
    """Start the relay, wait until its first event is through, then write at a steady rate and watch the file."""
    process = subprocess.Popen([sys.executable, "-c", *program])
    seen: Latencies = []
    try:
        _watch(broker, 1, [])
        watcher = threading.Thread(target=_watch, args=(broker, count + 1, seen))
        watcher.start()
        committed = []
        start = perf_counter()
        for n in range(count):
            sleep(max(0.0, start + n / RATE - perf_counter()))
            write(n + 1)
            committed.append(perf_counter())
        watcher.join()
    finally:
        process.terminate()
        process.wait()
    return [max(0.0, arrived - commit) for commit, arrived in zip(committed, seen[-count:], strict=True)]


def _watch(broker: Path, until: int, seen: Latencies, patience: float = 60.0) -> None:
    """Note when each message becomes visible; a look every half millisecond."""
    deadline = perf_counter() + patience
    connection, last = sqlite3.connect(broker), 0
    while not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchall():
        _wait(deadline, broker)
    while last < until:
        (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()
        seen += [perf_counter()] * (newest - last)
        last = newest
        _wait(deadline, broker)
    connection.close()


def _wait(deadline: float, broker: Path) -> None:
    if perf_counter() > deadline:
        raise RuntimeError(f"nothing more arrived in {broker}")
    sleep(0.0005)
