"""How fast one relay brings PostgreSQL's outbox to a broker, beside the same client with nothing but the messages."""

import asyncio
import multiprocessing
from time import perf_counter, sleep
from typing import Any, NamedTuple

from benchmarks.brokers import stages
from benchmarks.brokers.stages import Stage
from benchmarks.measure import Goal, Progress, Row, in_rounds
from benchmarks.postgres import shop
from pillarbox.core.message import Message, encode
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay
from servers.postgres import Postgres, RunningPostgres

PATIENCE = 300.0
WARM_UPS = 2
"""How often Debezium drains everything before it counts."""
_spawn = multiprocessing.get_context("spawn")


class Load(NamedTuple):
    """What is in the outbox."""

    name: str
    events: int
    orders: int = 1000
    padding: int = 0
    """Bytes that are added to each payload of about 310."""
    judged: bool = False


LOADS = (
    Load("", 200_000, judged=True),
    Load(", 10 aggregates", 20_000, orders=10),
    Load(", payloads of 4 KiB", 50_000, padding=4096 - 310),
)


def rows(server: RunningPostgres, kind: str, quick: bool, tell: Progress) -> list[Row]:
    """Drain to one kind of broker."""
    with stages.ALL[kind]() as stage:
        return [_row(server, stage, load._replace(events=load.events // (20 if quick else 1)), tell) for load in LOADS]


def _row(server: RunningPostgres, stage: Stage, load: Load, tell: Progress) -> Row:
    with shop.database(server) as url:
        shop.fill(url, load.events, load.orders, load.padding)
        messages = asyncio.run(messages_of(url, load.events))

        def both() -> tuple[float, float]:
            stage.empty()
            bare = load.events / stage.publish(messages)
            stage.empty()
            shop.rewind(url)
            return drained(url, stage.url, load.events), bare

        goal = Goal(">=", stage.goal) if stage.goal is not None and load.judged else None
        name = f"drain PostgreSQL to {stage.name}, beside its bare client{load.name}"
        return in_rounds(name, "events/s", both, tell, goal)


def debezium_rows(quick: bool, tell: Progress) -> list[Row]:
    """Drain to Kafka, and let Debezium do the same with the same table, on a PostgreSQL whose log it can read."""
    from benchmarks.brokers.debezium import Debezium

    count = 10_000 if quick else LOADS[0].events
    logical = Postgres("15", fsync=True, settings={**shop.SETTINGS, "wal_level": "logical"})
    with (
        logical as server,
        stages.kafka() as stage,
        shop.database(server) as url,
        Debezium(url, stage.url.removeprefix("kafka://")) as debezium,
    ):
        shop.fill(url, count, LOADS[0].orders)
        for turn in range(WARM_UPS):
            tell(f"Debezium gets warm: {turn + 1} of {WARM_UPS}")
            debezium.drain(count)

        def both() -> tuple[float, float]:
            stage.empty()
            theirs = debezium.drain(count).rate
            stage.empty()
            shop.rewind(url)
            return drained(url, stage.url, count), theirs

        name = "drain PostgreSQL to Kafka, beside a warm and tuned Debezium"
        return [in_rounds(name, "events/s", both, tell, Goal(">=", 3))]


async def messages_of(url: str, count: int) -> list[Message]:
    """Read and encode what the relay will send."""
    store = shop.store_at(url)
    await store.open()
    await store.take()
    messages: list[Message] = []
    while len(messages) < count:
        messages += [encode(entry, 0, "plain") for entry in await store.entries(1000)]
    await store.close()
    return messages


def drained(url: str, broker: str, count: int) -> float:
    """Run a relay in a process of its own until everything is settled; its start does not count."""
    taken_at, settled = _spawn.Value("d", 0.0), _spawn.Value("q", 0)
    relay = _spawn.Process(target=_relay, args=(url, broker, taken_at, settled), daemon=True)
    relay.start()
    deadline = perf_counter() + PATIENCE
    try:
        while settled.value < count:
            if perf_counter() > deadline or not relay.is_alive():
                raise RuntimeError(f"the relay has settled {settled.value} of {count} events and goes no further")
            sleep(0.001)
        began: float = taken_at.value
        return count / (perf_counter() - began)
    finally:
        relay.kill()
        relay.join()


def _relay(url: str, broker: str, taken_at: Any, settled: Any) -> None:
    def hear(moment: Moment, facts: Facts) -> None:
        if moment is Moment.LANES_TAKEN and not taken_at.value:
            taken_at.value = perf_counter()
        elif moment is Moment.SETTLED:
            settled.value += facts["count"]

    Relay(database=url, broker=broker, hooks=Hooks(hear)).run_forever()
