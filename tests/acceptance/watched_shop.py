"""A shop that a real Prometheus watches: relays and consumers as people start them, Redis as their broker."""

import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from pillarbox import Event
from pillarbox.dbapi import Outbox
from pillarbox.stores.sqlite.schema import Tables
from servers.process import free_port
from servers.prometheus import Prometheus
from servers.redis import Redis
from tests.conftest import installed

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "pillarbox.rules.yml"
PATIENCE = 60.0
CONFIGURATION = """
global:
  scrape_interval: {every}s
  scrape_timeout: {every}s
  evaluation_interval: 1s
rule_files: [rules.yml]
scrape_configs:
  - job_name: shop
    static_configs: [targets: ['127.0.0.1:{relay}']]
  - job_name: billing
    static_configs: [targets: ['127.0.0.1:{consumer}']]
"""
BILLING = """
import sqlite3
from pillarbox import Reject
from pillarbox.dbapi import Inbox

inbox = Inbox("billing", lambda: sqlite3.connect("billing.db"))

@inbox.handler("OrderPlaced")
def bill(connection, event):
    if event.payload["order_id"] == 13:
        raise Reject("we do not bill order 13")
"""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def quicker(rules: str, times: int) -> str:
    """Let every duration of the rules pass so many times faster: how long a thing holds, windows, bounds in seconds."""

    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{max(int(found[2]) * SECONDS[found[3]] // times, 1)}s"

    rules = re.sub(r"(for: |\[|offset )(\d+)([smhd])\b", shorter, rules)
    heard = re.split(r"^(?= +- alert: )", rules, flags=re.MULTILINE)
    return "".join(
        re.sub(r" > (\d+)\n", lambda found: f" > {int(found[1]) / times}\n", rule) if "_seconds" in rule else rule
        for rule in heard
    )


def until(condition: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    """Wait until something holds; fail if it takes too long, and say what was seen."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited too long: {what()}"
        time.sleep(0.1)


class WatchedShop:
    """An outbox and an inbox in SQLite files, a broker of our own that may go, and Prometheus over all.

    It scrapes `every` so many seconds, and by its rules time passes so many `times` faster.
    """

    def __init__(
        self,
        directory: Path,
        *,
        times: int = 60,
        every: int = 1,
        rules: str = RULES.read_text(),
        database: str = "sqlite:///shop.db",
    ) -> None:
        self.directory, self.database, self._every, self._rules = directory, database, every, quicker(rules, times)
        self.relay_port, self.consumer_port = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._servers = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as servers:
            self.redis = servers.enter_context(installed(Redis))
            configuration = CONFIGURATION.format(every=self._every, relay=self.relay_port, consumer=self.consumer_port)
            rules = {"rules.yml": self._rules}
            self.prometheus = servers.enter_context(installed(lambda: Prometheus(configuration, rules)))
            for name in ("shop.db", "billing.db"):
                connection = sqlite3.connect(self.directory / name, isolation_level=None)
                Tables(str(self.directory / name), "pillarbox_").up(connection)
                connection.close()
            (self.directory / "billing.py").write_text(BILLING)
            self._servers = servers.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._servers.close()

    def relay(self, *more: str) -> "subprocess.Popen[bytes]":
        """Start a relay."""
        # It looks often, for in this world a loop is stale after seconds.
        words = ["relay", "run", *self._broker, "--set", "relay.idle_longest=100 ms", "--database", self.database]
        return self._start(self.relay_port, [*words, *more])

    def watch(self) -> "subprocess.Popen[bytes]":
        """Start one that watches the slot whose reader carries the events."""
        return self._start(self.relay_port, ["relay", "watch", "--database", self.database])

    def consumer(self, *more: str) -> "subprocess.Popen[bytes]":
        """Start a consumer."""
        return self._start(
            self.consumer_port, ["consume", "billing:inbox", "--topic", "order-events", *self._broker, *more]
        )

    @property
    def _broker(self) -> list[str]:
        return ["--broker", self.redis.url()]

    def _start(self, port: int, words: Sequence[str]) -> "subprocess.Popen[bytes]":
        place = ["--set", f"health.listen=127.0.0.1:{port}"]
        with (self.directory / f"{words[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pillarbox", *words, *place], cwd=self.directory, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process

    def add(self, *events: Event[Any]) -> None:
        connection = sqlite3.connect(self.directory / "shop.db")
        with connection:
            Outbox().add(connection, *events)
        connection.close()

    def place(self, orders: Iterable[int]) -> None:
        """Add an event for each order."""
        self.add(*(Event("OrderPlaced", {"order_id": order}, aggregate=("order", order)) for order in orders))

    def refuse(self, topic: str) -> None:
        """Let the broker refuse whatever is published to a topic, for good."""
        with self.redis.client() as client:
            client.set(topic, "no stream")

    def value(self, expression: str) -> float:
        """Give the sum of what an expression says now; 0 if it says nothing."""
        return sum(self.prometheus.query(expression).values())

    def until_value(self, expression: str, least: float) -> None:
        """Wait until Prometheus has seen so much."""
        until(lambda: self.value(expression) >= least, lambda: self.prometheus.query(expression))

    def until_firing(self, *names: str) -> None:
        """Wait until each of these alerts fires, or has fired since this was called."""
        missing = set(names)

        def all_fired() -> bool:
            missing.difference_update(self.prometheus.alerts())
            return not missing

        until(all_fired, lambda: (missing, self.prometheus.alerts(), self.prometheus.alerts("pending")))


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Send SIGKILL, and wait until it is gone."""
    process.send_signal(signal.SIGKILL)
    process.wait()
