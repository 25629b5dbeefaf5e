"""How fast one relay brings PostgreSQL's outbox to a broker, beside the same client with nothing but the messages."""

import asyncio
import multiprocessing
from collections.abc import Sequence
from time import perf_counter, sleep
from typing import Any

from benchmarks.brokers import stages
from benchmarks.brokers.stages import Stage
from benchmarks.measure import Goal, Progress, Row, in_rounds
from benchmarks.postgres import shop
from pillarbox.core.message import Message, encode
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay
from servers.postgres import RunningPostgres

ORDERS = 1000
PATIENCE = 300.0
_spawn = multiprocessing.get_context("spawn")


def rows(server: RunningPostgres, kind: str, quick: bool, tell: Progress) -> list[Row]:
    """Drain to one kind of broker."""
    count = 10_000 if quick else 200_000
    with stages.ALL[kind]() as stage, shop.database(server) as url:
        shop.fill(url, count, ORDERS)
        messages = asyncio.run(_messages(url, count))

        def both() -> tuple[float, float]:
            stage.empty()
            bare = _bare(stage, messages)
            stage.empty()
            shop.rewind(url)
            return _drained(url, stage, count), bare

        goal = None if stage.goal is None else Goal(">=", stage.goal)
        return [in_rounds(f"drain PostgreSQL to {stage.name}, beside its bare client", "events/s", both, tell, goal)]


async def _messages(url: str, count: int) -> list[Message]:
    """Read and encode what the relay will send."""
    store = shop.store_at(url)
    await store.open()
    await store.take()
    messages: list[Message] = []
    while len(messages) < count:
        messages += [encode(entry, 0, "plain") for entry in await store.entries(1000)]
    await store.close()
    return messages


def _bare(stage: Stage, messages: Sequence[Message]) -> float:
    began = perf_counter()
    stage.publish(messages)
    return len(messages) / (perf_counter() - began)


def _drained(url: str, stage: Stage, count: int) -> float:
    """Run a relay in a process of its own until everything is settled; its start does not count."""
    taken_at, settled = _spawn.Value("d", 0.0), _spawn.Value("q", 0)
    relay = _spawn.Process(target=_relay, args=(url, stage.url, taken_at, settled), daemon=True)
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
