"""Our relay beside Debezium, on the same table, PostgreSQL and Kafka: rate, processor time, latency."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.brokers import stages
from benchmarks.brokers.debezium import LOW_LATENCY, Debezium
from benchmarks.brokers.drain import LOADS
from benchmarks.brokers.stages import PARTITIONS, Stage
from benchmarks.measure import ROUNDS, Goal, Progress, Row, compared
from benchmarks.postgres import shop
from benchmarks.postgres.latency import beside_commits
from benchmarks.shop import TOPIC
from pillarbox.bench.drain import drain
from pillarbox.bench.latency import Latencies, Seen, numbers, percentile, relay_plainly, watched
from pillarbox.bench.load import Load
from pillarbox.bench.places import Place
from pillarbox.bench.processes import Child, running
from pillarbox.bench.usage import used_by, used_by_family
from servers.postgres import Postgres

RATE = 1000


class Ground(NamedTuple):
    """Where both work."""

    server: Postgres
    stage: Stage
    url: str
    debezium: Debezium

    @property
    def place(self) -> Place:
        return shop.place_at(self.url, self.stage.url)


@contextmanager
def _ground() -> Iterator[Ground]:
    """Start everything; the log of this PostgreSQL can be read by Debezium."""
    logical = Postgres("15", fsync=True, settings={**shop.SETTINGS, "wal_level": "logical"})
    with (
        logical as server,
        stages.kafka() as stage,
        shop.database(server) as url,
        Debezium(url, stage.url.removeprefix("kafka://")) as debezium,
    ):
        yield Ground(server, stage, url, debezium)


def rows(quick: bool, tell: Progress) -> list[Row]:
    """Drain the same backlog both ways."""
    count = 10_000 if quick else LOADS[0].events
    ours, theirs = _Costs(count), _Costs(count)
    with _ground() as ground:
        shop.fill(ground.url, count, LOADS[0].orders)
        ground.debezium.warm(count, tell)
        for turn in range(ROUNDS):
            tell(f"drain beside Debezium: round {turn + 1} of {ROUNDS}")
            ground.stage.empty()
            found = ground.debezium.drain(count, lambda: _used(ground, ground.debezium.pid))
            theirs.add(found.rate, found.spent)
            ground.stage.empty()
            shop.rewind(ground.url)
            ours.add(*_relay(ground, count))
    name = "drain PostgreSQL to Kafka, beside a warm and tuned Debezium"
    cpu, beside = "processor time of PostgreSQL to Kafka", "beside a warm and tuned Debezium"
    return [
        compared(name, "events/s", ours.rates, theirs.rates, Goal(">=", 3)),
        compared(
            f"{cpu}, all processes with Kafka's own, {beside}", "µs/event", ours.all, theirs.all, Goal("<=", 0.333)
        ),
        compared(f"{cpu}, without Kafka's own, {beside}", "µs/event", ours.without_kafka, theirs.without_kafka),
    ]


class _Costs:
    """What the rounds of one way have cost."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.rates: list[float] = []
        self.all: list[float] = []
        self.without_kafka: list[float] = []

    def add(self, rate: float, spent: Sequence[float]) -> None:
        """Note a round: its rate, and the seconds of the carrier, of PostgreSQL and of Kafka."""
        carrier, postgres, kafka = (1e6 * seconds / self._count for seconds in spent)
        self.rates.append(rate)
        self.all.append(carrier + postgres + kafka)
        self.without_kafka.append(carrier + postgres)


def _used(ground: Ground, carrier: int) -> list[float]:
    found = used_by([carrier]), used_by_family(ground.server.server.pid), used_by([ground.stage.pid])
    if None in found:
        raise RuntimeError("the processor time of a server cannot be read")
    return [seconds for seconds in found if seconds is not None]


def _relay(ground: Ground, count: int) -> tuple[float, Sequence[float]]:
    """Let a relay drain; give its rate, and what it, PostgreSQL and Kafka have used."""
    before = used_by([ground.stage.pid])
    found = drain(ground.place, count)
    after = used_by([ground.stage.pid])
    assert found.by_relays is not None
    assert found.by_database is not None
    assert before is not None
    assert after is not None
    return found.rate, (found.by_relays, found.by_database, after - before)


def latency_rows(quick: bool, tell: Progress) -> list[Row]:
    """Read with a plain consumer what is added at a steady rate; carried by a relay, and by a Debezium in a hurry."""
    count = RATE * (2 if quick else 10)
    ours: list[Latencies] = []
    theirs: list[Latencies] = []
    numbers = iter(range(0, 1_000_000_000, 1_000_000))
    with _ground() as ground:
        backlog = 10_000 if quick else 200_000
        shop.fill(ground.url, backlog, LOADS[0].orders)
        ground.debezium.warm(backlog, tell)
        _by_debezium(ground, next(numbers), count)
        for turn in range(ROUNDS):
            tell(f"commit → Kafka consumer at {RATE:,} events/s: round {turn + 1} of {ROUNDS}")
            theirs.append(_by_debezium(ground, next(numbers), count))
            ours.append(_by_relay(ground, next(numbers), count))
    name = f"commit → Kafka consumer at {RATE:,} events/s, polling"
    return [
        beside_commits(f"{name}, p50", 0.5, ours),
        beside_commits(f"{name}, p99", 0.99, ours, Goal("<=", 20)),
        _beside(f"{name}, beside a Debezium for low latency, p50", 0.5, ours, theirs),
        _beside(f"{name}, beside a Debezium for low latency, p99", 0.99, ours, theirs, Goal("<=", 1)),
    ]


def _beside(
    name: str, share: float, ours: Sequence[Latencies], theirs: Sequence[Latencies], goal: Goal | None = None
) -> Row:
    mine, others = ([percentile(one.taken, share) for one in found] for found in (ours, theirs))
    return compared(name, "ms", mine, others, goal)


def _by_relay(ground: Ground, first: int, count: int) -> Latencies:
    ground.stage.empty()
    reader, relay = _reader(ground, first, count), Child("relay", relay_plainly, ground.place.settings)
    with running(reader, relay):
        return watched(reader, ground.place, Load(), first, count, RATE)


def _by_debezium(ground: Ground, first: int, count: int) -> Latencies:
    ground.stage.empty()
    with ground.debezium.following(LOW_LATENCY), running(reader := _reader(ground, first, count)):
        return watched(reader, ground.place, Load(), first, count, RATE)


def _reader(ground: Ground, first: int, count: int) -> Child:
    return Child("Kafka consumer", _read, urlsplit(ground.stage.url).netloc, first, numbers(count, RATE))


def _read(servers: str, first: int, count: int, pipe: Any) -> None:
    """Read the topic with the bare client, and note each event by its header."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    seen = Seen(first, count, pipe.send)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
    while True:
        for message in consumer.consume(1000, 0.001):
            if message.error():
                raise RuntimeError(f"Kafka: {message.error()}")
            now = perf_counter()
            id = dict(message.headers() or [])["id"]
            seen.note(id.decode() if isinstance(id, bytes) else str(id), now)
