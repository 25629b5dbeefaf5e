"""How long an event takes from its commit until the relay hands it to the publisher, at 1,000 events a second."""

import json
import multiprocessing
from statistics import median
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import psycopg

from benchmarks import shop as events
from benchmarks.measure import ROUNDS, Goal, Progress, Row, alone
from benchmarks.postgres import shop
from pillarbox.core.message import Message
from pillarbox.psycopg import Outbox
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import Relay
from servers.postgres import RunningPostgres

RATE = 1000
WRITERS = 8
PATIENCE = 30.0
Moments = dict[int, float]
_spawn = multiprocessing.get_context("spawn")


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    seconds = 2 if quick else 10
    found = []
    for turn in range(ROUNDS):
        tell(f"latency at {RATE:,} events/s: round {turn + 1} of {ROUNDS}")
        with shop.database(server) as url:
            found.append(sorted(_latencies(url, seconds * RATE)))

    def at(share: float) -> float:
        return median(latencies[int(len(latencies) * share)] * 1000 for latencies in found)

    name = f"commit → published at {RATE:,} events/s, polling"
    return [alone(f"{name}, p50", "ms", at(0.5)), alone(f"{name}, p99", "ms", at(0.99), Goal("<=", 20))]


def _latencies(url: str, count: int) -> list[float]:
    """Start a relay, wait until its first event is through, then write at a steady rate."""
    ours, theirs = _spawn.Pipe()
    relay = _spawn.Process(target=_relay, args=(url, count, theirs), daemon=True)
    relay.start()
    try:
        with psycopg.connect(url) as connection:
            Outbox().add(connection, events.event(0))
        _receive(ours)
        committed = _write(url, count)
        published: Moments = _receive(ours)
    finally:
        relay.kill()
        relay.join()
    # The writer may hear of its commit after the relay has seen it.
    return [max(0.0, published[n] - at) for n, at in committed.items()]


def _receive(pipe: Any) -> Any:
    if not pipe.poll(PATIENCE):
        raise RuntimeError(f"the relay did not publish everything within {PATIENCE:.0f} s")
    return pipe.recv()


def _relay(url: str, count: int, pipe: Any) -> None:
    """Publish nowhere, but note when; tell of the first event, and in the end of all."""
    published: Moments = {}

    async def publish(messages: list[Message]) -> None:
        now = perf_counter()
        for message in messages:
            published.setdefault(json.loads(message.body)["order_id"], now)
        if 0 in published:
            pipe.send(published.pop(0))
        if len(published) == count:
            pipe.send(published)

    Relay(database=url, publish=publish, hooks=Hooks()).run_forever()


def _write(url: str, count: int) -> Moments:
    """Let several writers commit one event at a time; give the moment at which each commit came back."""
    committed: Moments = {}
    start = perf_counter() + 0.1

    def write(mine: range) -> None:
        outbox = Outbox()
        with psycopg.connect(url) as connection:
            for n in mine:
                sleep(max(0.0, start + n / RATE - perf_counter()))
                outbox.add(connection, events.event(n))
                connection.commit()
                committed[n] = perf_counter()

    writers = [Thread(target=write, args=(range(first, count + 1, WRITERS),)) for first in range(1, WRITERS + 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return committed
