"""A shop whose events Debezium carries: a database, a user with few rights, topics, a connector made by our command."""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from confluent_kafka import Message as Record
from typer.testing import CliRunner

from pillarbox import Event, Relay
from pillarbox.cli.app import app
from pillarbox.psycopg import Outbox
from servers.kafka_connect import KafkaConnect
from servers.postgres import RunningPostgres
from tests.integration.kafka_topics import Topics, ends_of, records_of

PARTITIONS = 6
PATIENCE = 60.0


class DebeziumShop:
    """One outbox, which a relay and Debezium may carry to the same topic."""

    def __init__(self, server: RunningPostgres, url: str, connect: KafkaConnect, topics: Topics) -> None:
        self.server, self.url, self.connect, self.topics = server, url, connect, topics
        topics.make("orders", partitions=PARTITIONS)
        self.topic = topics.full("orders")
        self.outbox = Outbox(topic=self.topic, max_payload=1 << 20)
        database = url.rpartition("/")[2]
        self.name = f"{database}_pillarbox_outbox"
        self.user = f"debezium_{uuid.uuid4().hex[:8]}"
        self.debezium_url = server.url(database, user=self.user)
        server.execute(f"CREATE ROLE {self.user} LOGIN REPLICATION PASSWORD 'hunter2'")

    def prepare(self) -> None:
        """Run the script that our command prints."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(self.quickly("--sql").encode())

    def add(self, *events: Event[Any]) -> None:
        with psycopg.connect(self.url) as connection:
            self.outbox.add(connection, *events)

    async def relay(self) -> None:
        """Let a relay carry all that it has not carried yet."""
        await Relay(database=self.url, broker=self.topics.server.url).run_once()

    def pillarbox(self, *arguments: str, url: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run `pillarbox connector debezium`."""
        database = ["--database", url or self.debezium_url]
        command = [sys.executable, "-m", "pillarbox", "connector", "debezium", *database, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)

    def register(self, *arguments: str) -> dict[str, Any]:
        """Register the connector by our command; give what it says."""
        said = self.quickly("--register", self.connect.url, "--wait", "0", "--json", *arguments)
        answer: dict[str, Any] = json.loads(said)
        return answer

    def quickly(self, *arguments: str) -> str:
        """Run our command in this process, where it must succeed; give what it prints."""
        done = CliRunner().invoke(app, ["connector", "debezium", "--database", self.debezium_url, *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    def count(self) -> int:
        return ends_of(self.topics.server, self.topic)

    def until_arrived(self, count: int) -> list[Record]:
        """Wait until so many records have arrived; give all, partition by partition."""
        until(lambda: self.count() >= count)
        return records_of(self.topics.server, self.topic)

    def has_confirmed(self, place: str) -> bool:
        """Say whether Debezium has confirmed all WAL up to this place."""
        slot = f"FROM pg_replication_slots WHERE slot_name = '{self.name}'"
        return self.server.execute(f"SELECT confirmed_flush_lsn >= '{place}' {slot}") == [(True,)]

    def close(self) -> None:
        """Forget the connector and its user."""
        if self.name in self.connect.ask("GET", "connectors"):
            self.connect.delete(self.name)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {self.user}".encode())
            connection.execute(f"DROP ROLE {self.user}".encode())


def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s"
        time.sleep(0.05)


def seen(record: Record) -> tuple[Any, ...]:
    """Give what a consumer sees of a record; a header without a value is as good as none."""
    return record.key(), record.value(), record.partition(), headers_of(record)


def headers_of(record: Record) -> dict[str, bytes]:
    pairs: Any = record.headers() or ()
    return {name: value for name, value in pairs if value is not None}


def _own_headers(n: int) -> dict[str, str]:
    trace = {"traceparent": f"00-{n:032x}-{n:016x}-01", "tracestate": f"shop={n},other=00f067aa0ba902b7"}
    return {"tenant": f"t{n % 3}", **trace, "leer": ""}


def order_events(count: int) -> Sequence[Event[Any]]:
    """Make events of every sort that has an aggregate and a JSON payload."""
    when = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
    return [
        Event(
            ("OrderPlaced", "Bestellung geändert 🚚")[n % 2],
            {"n": n, "text": 'Zoë \\ "quoted" \u2028 \x7f', "deep": [{"a": None, "b": 1.5e300}], "big": 10**20 + n},
            aggregate=(("order", "Kunde ü")[n % 3 == 0], f"{n % 50}{'-ß' * (n % 7 == 0)}"),
            headers=_own_headers(n) if n % 4 else None,
            content_type="application/vnd.shop+json" if n % 5 == 0 else None,
            idempotency_key=f"key-{n}" if n % 6 == 0 else None,
            occurred_at=when + timedelta(microseconds=n * 12_500) if n % 3 else None,
            numbered=n % 8 == 1,
        )
        for n in range(count)
    ]
