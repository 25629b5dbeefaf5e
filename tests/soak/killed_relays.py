"""Relays that are killed every second, on one PostgreSQL, which is killed now and then; with the torture's writers.

`pillarbox torture` does more than this, to real programs. Here a relay is forked, so that a killed one is back at once,
and publishes to a broker of which a topic can be down: what others wait for can then be measured.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from pillarbox.torture.bank import SCHEMA, PostgresBank
from pillarbox.torture.checker import Report, check, read
from servers.postgres import Postgres
from tests.integration.postgres_world import run, until
from tests.soak.forked_relays import BATCH

WRITERS, RELAYS = 8, 3
WINDOW = 2 * BATCH
"""The relay's window: this batch and the next one, which is read meanwhile."""


@dataclass(frozen=True)
class Outcome:
    """The checker's verdict, and how much there was to repeat for."""

    report: Report
    relays_killed: int
    lanes_lost: int

    @property
    def most_copies(self) -> int:
        """A crash or a loss repeats at most what lies after the newest tick."""
        return (self.relays_killed + self.lanes_lost) * (WINDOW + BATCH)

    def __str__(self) -> str:
        killed = f"{self.relays_killed} relays killed, lanes lost {self.lanes_lost} times"
        return f"{self.report.counts()}, {killed}, at most {self.most_copies} copies"


class Outages:
    """A strike: kill -9 of the whole server. It notes when the server was away: nobody can publish then."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._spans: list[tuple[float, float]] = []

    def __call__(self) -> None:
        gone = time.time()
        self._server.kill()
        self._server.start()
        self._spans.append((gone, time.time()))

    def within(self, begun: float, ended: float) -> float:
        """Give for how many seconds of a span the server was away."""
        return sum(max(0.0, min(ended, back) - max(begun, gone)) for gone, back in self._spans)


class Trip(NamedTuple):
    """An event's way: from right before its commit until the broker had its first copy."""

    topic: str
    committed: float
    arrived: float


def trips(directory: Path) -> list[Trip]:
    """Read the ways of all events that have arrived from what a run left behind."""
    logs = [log.read_text().splitlines() for log in (directory / "intents").iterdir()]
    intents = [intent for log in logs for intent in map(json.loads, log) if "events" in intent]
    committed = {event["id"]: intent["at"] for intent in intents for event in intent["events"]}
    with closing(sqlite3.connect(directory / "stream.db")) as stream:
        arrived = stream.execute("SELECT headers ->> 'id', topic, min(at) FROM messages GROUP BY 1, 2").fetchall()
    return [Trip(topic, committed[id], at / 1e6) for id, topic, at in arrived]


class KilledRelays:
    """Writers and relays at work in a directory."""

    def __init__(self, url: str, directory: Path) -> None:
        self._url, self._directory = url, directory
        self._starter: subprocess.Popen[str] | None = None
        self._relays: dict[int, Path] = {}
        """Their logs, by pid."""
        self._killed = self._started = 0
        self._chance = Random(7)

    def go(self, seconds: float, strikes: Sequence[Callable[[], None]]) -> Outcome:
        """Let everything run, kill a relay every second, strike now and then; then let it come to rest, and judge."""
        (self._directory / "intents").mkdir()
        PostgresBank(self._url).make(WRITERS, business=True, ledger=False)
        with ExitStack() as started:
            self._starter = started.enter_context(self._start_starter())
            for _ in range(RELAYS):
                self._start_relay()
            writers = [self._start_writer(started, name) for name in range(WRITERS)]
            self._strike(seconds, strikes)
            (self._directory / "stop").touch()
            for writer in writers:
                assert writer.wait(60) == 0, "a writer failed"
            # Relays that died leave lanes of which one event goes at a time: that takes a while beside other work.
            until(self._all_is_published, "everything is published", patience=180)
            assert self._starter.stdin is not None
            self._starter.stdin.close()  # it ends its relays well
            assert self._starter.wait(30) == 0, "a relay did not stop"
        return self._judge()

    def _strike(self, seconds: float, strikes: Sequence[Callable[[], None]]) -> None:
        begun, done = time.monotonic(), 0
        while time.monotonic() < begun + seconds or done < len(strikes):
            time.sleep(1)
            self._kill_a_relay()
            if done < len(strikes) and time.monotonic() >= begun + seconds * (done + 1) / (len(strikes) + 1):
                strikes[done]()
                done += 1

    def _kill_a_relay(self) -> None:
        """Kill one that has begun to relay, if there is one: the others have nothing to lose."""
        at_work = [pid for pid, log in self._relays.items() if "lanes taken" in log.read_text()]
        pid = self._chance.choice(at_work or list(self._relays))
        os.kill(pid, signal.SIGKILL)
        del self._relays[pid]
        self._killed += 1
        self._start_relay()

    def _start_starter(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "tests.soak.forked_relays", self._url, str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _start_relay(self) -> None:
        assert self._starter is not None
        assert self._starter.stdin is not None
        assert self._starter.stdout is not None
        self._started += 1
        log = self._directory / f"relay-{self._started}.log"
        log.touch()
        self._starter.stdin.write(f"{log}\n")
        self._starter.stdin.flush()
        self._relays[int(self._starter.stdout.readline())] = log

    def _start_writer(self, started: ExitStack, name: int) -> "subprocess.Popen[bytes]":
        arguments = [self._url, str(self._directory), str(name), "7"]
        writer = subprocess.Popen([sys.executable, "-m", "pillarbox.torture.writer", *arguments])
        started.callback(writer.kill)
        return writer

    def _all_is_published(self) -> bool:
        committed = {str(id) for (id,) in run(self._url, f"SELECT event_id FROM {SCHEMA}.pillarbox_outbox")}
        with closing(sqlite3.connect(self._directory / "stream.db", timeout=30)) as stream:
            return committed <= {id for (id,) in stream.execute("SELECT headers ->> 'id' FROM messages")}

    def _judge(self) -> Outcome:
        """Bring the journal to where the checker looks, and ask it."""
        journal = run(self._url, f"SELECT change FROM {SCHEMA}.journal")
        with closing(sqlite3.connect(self._directory / "shop.db")) as shop:
            shop.execute("CREATE TABLE journal (change TEXT)")
            shop.executemany("INSERT INTO journal VALUES (?)", journal)
            shop.commit()
        return Outcome(check(read(self._directory, consumer=False)), self._killed, self._lanes_lost())

    def _lanes_lost(self) -> int:
        lines = [line for log in self._directory.glob("relay-*.log") for line in log.read_text().splitlines()]
        # A relay that is killed may leave half a line at the end.
        return sum(json.loads(line)["moment"] == "lanes lost" for line in lines if line.endswith("}"))
