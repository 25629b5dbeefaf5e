"""The torture: writers and relays in processes of their own on one PostgreSQL, all of which are killed now and then.

What was committed, what the broker has, and what the relays said are left in a directory for the checker.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from pillarbox.torture.checker import Report, check, read
from servers.postgres import Postgres
from tests.integration.postgres_relays import BATCH
from tests.integration.postgres_world import run, until
from tests.integration.postgres_writer import create_tables

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


class Torture:
    """Writers and relays at work in a directory."""

    def __init__(self, server: Postgres, url: str, directory: Path) -> None:
        self._server, self._url, self._directory = server, url, directory
        self._starter: subprocess.Popen[str] | None = None
        self._relays: dict[int, Path] = {}
        """Their logs, by pid."""
        self._killed = self._started = 0
        self._chance = Random(7)

    def go(self, seconds: float, server_kills: int) -> Outcome:
        """Let everything run, kill a relay every second and the server now and then; then let it come to rest."""
        (self._directory / "intents").mkdir()
        create_tables(self._url, WRITERS)
        with ExitStack() as started:
            self._starter = started.enter_context(self._start_starter())
            for _ in range(RELAYS):
                self._start_relay()
            writers = [self._start_writer(started, name, seconds) for name in range(WRITERS)]
            self._strike(seconds, server_kills)
            for writer in writers:
                assert writer.wait(60) == 0, "a writer failed"
            until(self._all_is_published, "everything is published")
            assert self._starter.stdin is not None
            self._starter.stdin.close()  # it ends its relays well
            assert self._starter.wait(30) == 0, "a relay did not stop"
        return self._judge()

    def _strike(self, seconds: float, server_kills: int) -> None:
        begun = time.monotonic()
        strikes = [begun + seconds * (n + 1) / (server_kills + 1) for n in range(server_kills)]
        while time.monotonic() < begun + seconds:
            time.sleep(1)
            self._kill_a_relay()
            if strikes and time.monotonic() >= strikes[0]:
                strikes.pop(0)
                self._server.kill()
                self._server.start()
        assert not strikes, "the server was not killed as often as it should"

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
            [sys.executable, "-m", "tests.integration.postgres_relays", self._url, str(self._directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def _start_relay(self) -> None:
        assert self._starter is not None and self._starter.stdin is not None and self._starter.stdout is not None
        self._started += 1
        log = self._directory / f"relay-{self._started}.log"
        log.touch()
        self._starter.stdin.write(f"{log}\n")
        self._starter.stdin.flush()
        self._relays[int(self._starter.stdout.readline())] = log

    def _start_writer(self, started: ExitStack, name: int, seconds: float) -> "subprocess.Popen[bytes]":
        arguments = [self._url, str(self._directory), str(name), str(seconds)]
        writer = subprocess.Popen([sys.executable, "-m", "tests.integration.postgres_writer", *arguments])
        started.callback(writer.kill)
        return writer

    def _all_is_published(self) -> bool:
        committed = {str(id) for (id,) in run(self._url, "SELECT event_id FROM pillarbox_outbox")}
        with closing(sqlite3.connect(self._directory / "stream.db", timeout=30)) as stream:
            return committed <= {id for (id,) in stream.execute("SELECT headers ->> 'id' FROM messages")}

    def _judge(self) -> Outcome:
        """Bring the journal to where the checker looks, and ask it."""
        with closing(sqlite3.connect(self._directory / "shop.db")) as shop:
            shop.execute("CREATE TABLE journal (change TEXT)")
            shop.executemany("INSERT INTO journal VALUES (?)", run(self._url, "SELECT change FROM journal"))
            shop.commit()
        return Outcome(check(read(self._directory, consumer=False)), self._killed, self._lanes_lost())

    def _lanes_lost(self) -> int:
        lines = [line for log in self._directory.glob("relay-*.log") for line in log.read_text().splitlines()]
        # A relay that is killed may leave half a line at the end.
        return sum(json.loads(line)["moment"] == "lanes lost" for line in lines if line.endswith("}"))
