"""`pillarbox relay run` in processes of its own: how soon one takes over from another, what one costs when idle."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep

import psycopg

from benchmarks.measure import Goal, Progress, Row, alone
from benchmarks.postgres import shop
from pillarbox import Event
from pillarbox.core.routing import LANES, lane_of
from pillarbox.psycopg import Outbox
from servers.postgres import RunningPostgres

KILLS = 5
PATIENCE = 60.0


def takeover_rows(server: RunningPostgres, place: Path, quick: bool, tell: Progress) -> list[Row]:
    """Kill one of two relays; time until an event in each of its lanes is published."""
    kills = 1 if quick else KILLS
    with shop.database(server) as url, TemporaryDirectory(dir=place) as directory:
        broker = Path(directory) / "stream.db"
        times = []
        with _relay(url, broker):
            for kill in range(kills):
                tell(f"takeover after kill -9: {kill + 1} of {kills}")
                with _relay(url, broker) as second:
                    _wait(lambda: sorted(map(len, _lanes(url).values())) == [LANES // 2] * 2, 0.1)
                    sleep(2 * random())  # at any moment between two looks
                    times.append(_takeover(url, broker, second))
    name = "takeover after kill -9, direct connection"
    return [
        alone(f"{name}, median of {kills}", "s", median(times)),
        alone(f"{name}, worst of {kills}", "s", max(times), Goal("<=", 2)),
    ]


def _takeover(url: str, broker: Path, victim: subprocess.Popen[bytes]) -> float:
    [lanes] = [lanes for owner, lanes in _lanes(url).items() if f"-{victim.pid}-" in owner]
    before, killed = _arrived(broker), perf_counter()
    victim.kill()
    with psycopg.connect(url) as connection:
        Outbox().add(connection, *(_event_in(lane) for lane in lanes))
    _wait(lambda: _arrived(broker) == before + len(lanes), 0.002)
    return perf_counter() - killed


def _event_in(lane: int) -> Event[dict[str, int]]:
    id = next(str(n) for n in range(100_000) if lane_of("order", str(n), "") == lane)
    return Event("OrderPlaced", {"lane": lane}, aggregate=("order", id))


def _lanes(url: str) -> dict[str, list[int]]:
    """Say who holds what."""
    with psycopg.connect(url) as connection:
        held = connection.execute(
            "SELECT owner, array_agg(lane) FROM pillarbox_lanes WHERE owner IS NOT NULL GROUP BY 1"
        )
        return dict(held.fetchall())


def _arrived(broker: Path) -> int:
    if not broker.exists():
        return 0
    connection = sqlite3.connect(broker)
    try:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'messages'").fetchone():
            return 0
        return int(connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()[0])
    finally:
        connection.close()


def idle_rows(server: RunningPostgres, place: Path, quick: bool, tell: Progress) -> list[Row]:
    """Let a relay wait for events that do not come."""
    seconds = 5.0 if quick else 20.0
    with ExitStack() as opened:
        url = opened.enter_context(shop.database(server))
        directory = opened.enter_context(TemporaryDirectory(dir=place))
        relay = opened.enter_context(_relay(url, Path(directory) / "stream.db"))
        tell("idle: until the relay has found out that nothing comes")
        _wait(lambda: sum(map(len, _lanes(url).values())) == LANES, 0.1)
        sleep(8)
        tell(f"idle: for {seconds:.0f} s")
        began, cpu, queries = perf_counter(), _cpu(relay.pid), _transactions(server, url)
        sleep(seconds)
        passed = perf_counter() - began
        queries, cpu = _transactions(server, url) - queries, _cpu(relay.pid) - cpu
    return [
        alone("an idle relay: queries a second", "1/s", queries / passed, Goal("<=", 2)),
        alone("an idle relay: processor time", "% of a core", 100 * cpu / passed, Goal("<=", 1)),
    ]


def _transactions(server: RunningPostgres, url: str) -> int:
    """Count what was committed or rolled back there; every statement of a relay is a transaction of its own."""
    # A backend tells its figures at most once a second: asked for in another database, where we are not counted.
    [(count,)] = server.execute(
        f"SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = '{url.rpartition('/')[2]}'"
    )
    return int(count)


def _cpu(pid: int) -> float:
    """Give the seconds of processor time that a process has used, to a hundredth."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _relay(url: str, broker: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "pillarbox", "relay", "run", "--database", url, "--broker", f"sqlite:///{broker}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait(done: Callable[[], bool], look_every: float) -> None:
    deadline = perf_counter() + PATIENCE
    while not done():
        if perf_counter() > deadline:
            raise RuntimeError(f"waited {PATIENCE:.0f} s in vain")
        sleep(look_every)
