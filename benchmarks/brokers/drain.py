"""How fast one relay brings PostgreSQL's outbox to a broker, beside the same client with nothing but the messages."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.brokers import stages
from benchmarks.brokers.stages import Stage
from benchmarks.measure import Goal, Progress, Row, in_rounds
from benchmarks.postgres import relays, shop
from pillarbox.core.message import Message, encode
from servers.postgres import RunningPostgres


class Load(NamedTuple):
    """What is in the outbox."""

    name: str
    events: int
    orders: int = 1000
    padding: int = 0
    """Bytes that are added to each payload of about 310, or taken away."""
    judged: bool = False
    bare: int = 200_000
    """The bare client publishes so many of them at most: it keeps them in memory."""
    kinds: Sequence[str] = ("kafka", "redis", "nats", "rabbitmq")


LOADS = (
    Load("", 200_000, judged=True),
    Load(", 10 aggregates", 20_000, orders=10),
    Load(", payloads of 4 KiB", 50_000, padding=4096 - 310),
    Load(", payloads of 100 B", 200_000, padding=100 - 310),
    Load(", 1,000,000 aggregates", 1_000_000, orders=1_000_000, kinds=("kafka", "redis")),
)


def rows(server: RunningPostgres, kind: str, quick: bool, tell: Progress) -> list[Row]:
    """Drain to one kind of broker."""
    with stages.ALL[kind]() as stage:
        loads = [load._replace(events=load.events // (20 if quick else 1)) for load in LOADS if kind in load.kinds]
        return [_row(server, stage, load, tell) for load in loads] + _shared(server, stage, loads[0], tell)


def _row(server: RunningPostgres, stage: Stage, load: Load, tell: Progress) -> Row:
    with shop.database(server) as url:
        shop.fill(url, load.events, load.orders, load.padding)
        messages = asyncio.run(messages_of(url, min(load.events, load.bare)))

        def both() -> tuple[float, float]:
            stage.empty()
            bare = len(messages) / stage.publish(messages)
            stage.empty()
            shop.rewind(url)
            return relays.drain(url, load.events, stage.url), bare

        goal = Goal(">=", stage.goal) if stage.goal is not None and load.judged else None
        name = f"drain PostgreSQL to {stage.name}, beside its bare client{load.name}"
        return in_rounds(name, "events/s", both, tell, goal)


def _shared(server: RunningPostgres, stage: Stage, load: Load, tell: Progress) -> list[Row]:
    """Let two relays share the lanes, if the broker's bare client is faster than a relay can be in one process."""
    if stage.name != "Kafka":
        return []
    with shop.database(server) as url:
        shop.fill(url, load.events, load.orders)
        messages = asyncio.run(messages_of(url, load.events))

    def both() -> tuple[float, float]:
        stage.empty()
        bare = load.events / stage.publish(messages)
        stage.empty()
        return relays.drain_together(server, 2, load.events, stage.url), bare

    name = f"drain PostgreSQL to {stage.name} with two relays, beside its bare client"
    return [in_rounds(name, "events/s", both, tell)]


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
