"""Debezium, warm and tuned, on the same outbox and the same Kafka: drains it as often as it is asked.

The server needs wal_level = logical. The slot must be there before the events:

    with Debezium(url, bootstrap) as debezium:
        shop.fill(url, 200_000)
        debezium.warm(200_000, print)
        rate = debezium.drain(200_000).rate
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter, sleep
from typing import NamedTuple, Self

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.measure import Progress
from benchmarks.shop import TOPIC
from pillarbox.admin.debezium import Connector, preparation
from pillarbox.settings import Settings
from servers.kafka import quiet
from servers.kafka_connect import FULL_JVM, KafkaConnect

TUNED = {
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "producer.override.batch.size": "262144",
    "producer.override.linger.ms": "5",
    "producer.override.buffer.memory": "67108864",
}
WARM = 4
"""So many drains of 200,000 events it takes until the JVM spends no less on an event than before."""
PATIENCE = 300.0
PAUSE = 0.01


class Drained(NamedTuple):
    """How many events arrived in how many seconds; the start of the connector's task does not count."""

    seconds: float
    events: int
    spent: Sequence[float] = ()
    """What was used meanwhile, by whoever was asked for."""

    @property
    def rate(self) -> float:
        return self.events / self.seconds


LOW_LATENCY = {"poll.interval.ms": "1", "producer.override.linger.ms": "0"}


class Debezium:
    """A worker with the connector that `pillarbox connector debezium` makes; open it before the outbox is filled."""

    def __init__(self, url: str, bootstrap: str, topic: str = TOPIC) -> None:
        self._url, self._topic = url, topic
        self._settings = Settings(database=url)
        self._name = Connector.of(self._settings).name
        self._worker = KafkaConnect(bootstrap, jvm=FULL_JVM)
        self._reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"}, logger=quiet)
        self._connectors = 0

    def __enter__(self) -> Self:
        self._worker.start()
        self._run(preparation(self._settings))
        return self

    def __exit__(self, *error: object) -> None:
        self._worker.close()
        self._reader.close()
        self._run(f"SELECT pg_drop_replication_slot('{self._name}')")

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._worker.server.pid

    @contextmanager
    def following(self, options: Mapping[str, str]) -> Iterator[None]:
        """Carry what is added from now on."""
        name = self._new_name()
        self._run(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
        connector = Connector.of(self._settings, name=name, options={**options, "publication.name": self._name})
        self._worker.ask("PUT", f"connectors/{name}/config", dict(connector.config))
        try:
            self._worker.until(name, "RUNNING")
            yield
        finally:
            self._worker.delete(name)
            self._drop_slot(name)

    def _drop_slot(self, name: str) -> None:
        """Drop a slot as soon as the connector has let go of it."""
        deadline = perf_counter() + PATIENCE
        while True:
            try:
                return self._run(f"SELECT pg_drop_replication_slot('{name}')")
            except psycopg.errors.ObjectInUse:
                if perf_counter() > deadline:
                    raise
                sleep(PAUSE)

    def warm(self, count: int, tell: Progress) -> None:
        """Let the JVM become as fast as it can."""
        for turn in range(WARM):
            tell(f"Debezium gets warm: {turn + 1} of {WARM}")
            self.drain(count)

    def drain(self, count: int, used: Callable[[], Sequence[float]] = lambda: ()) -> Drained:
        """Carry the whole backlog once, with a copy of the slot. `used` says what was used so far."""
        name = self._new_name()
        self._run(f"SELECT pg_copy_logical_replication_slot('{self._name}', '{name}')")
        connector = Connector.of(self._settings, name=name, options=TUNED | {"publication.name": self._name})
        there = self._end()
        self._worker.ask("PUT", f"connectors/{name}/config", dict(connector.config))
        self._worker.until(name, "RUNNING")
        began, before = perf_counter(), used()
        while (arrived := self._end() - there) < count:
            if perf_counter() - began > PATIENCE:
                raise RuntimeError(f"Debezium has brought {arrived} of {count} events: {self._worker.state_of(name)}")
            sleep(PAUSE)
        seconds, after = perf_counter() - began, used()
        self._worker.delete(name)
        self._run(f"SELECT pg_drop_replication_slot('{name}')")
        return Drained(seconds, arrived, [b - a for a, b in zip(before, after, strict=True)])

    def _new_name(self) -> str:
        """Name a slot and its connector: the worker remembers the offsets of each name."""
        self._connectors += 1
        return f"{self._name}_{self._connectors}"

    def _end(self) -> int:
        partitions = self._reader.list_topics(self._topic, timeout=10).topics[self._topic].partitions
        ends = (self._reader.get_watermark_offsets(TopicPartition(self._topic, one), timeout=10) for one in partitions)
        return sum(end[1] for end in ends)

    def _run(self, script: str) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(script.encode())
