"""How long an event takes from its commit until the relay hands it to the publisher, at 1,000 events a second.

Beside it stands what a writer waits for its own durable commit in the same seconds: the relay needs one too.
"""

import json
import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from threading import Thread
from time import perf_counter, sleep
from typing import Any, NamedTuple

import psycopg

from benchmarks import shop as events
from benchmarks.measure import ROUNDS, Goal, Progress, Row, compared
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
            found.append(_latencies(url, seconds * RATE))
    name = f"commit → published at {RATE:,} events/s, polling"
    return [_row(f"{name}, p50", 0.5, found), _row(f"{name}, p99", 0.99, found, Goal("<=", 20))]


def _row(name: str, share: float, found: Sequence["_Latencies"], goal: Goal | None = None) -> Row:
    """Show a percentile; the goal bounds the milliseconds."""
    ours, commits = ([_percentile(of, share) for of in way] for way in zip(*found, strict=True))
    row = compared(name, "ms", ours, commits)
    return row if goal is None else replace(row, goal=f"{goal} ms", met=goal.is_met(row.value))


def _percentile(seconds: Sequence[float], share: float) -> float:
    return sorted(seconds)[int(len(seconds) * share)] * 1000


class _Latencies(NamedTuple):
    """Of each event, from the end of its commit until it was published; and how long its commit took. In seconds."""

    publishing: list[float]
    committing: list[float]


def _latencies(url: str, count: int) -> _Latencies:
    """Start a relay, wait until its first event is through, then write at a steady rate."""
    ours, theirs = _spawn.Pipe()
    relay = _spawn.Process(target=_relay, args=(url, count, theirs), daemon=True)
    relay.start()
    try:
        with psycopg.connect(url) as connection:
            Outbox().add(connection, events.event(0))
        _receive(ours)
        committed, commits = _write(url, count)
        published: Moments = _receive(ours)
    finally:
        relay.kill()
        relay.join()
    # The writer may hear of its commit after the relay has seen it.
    return _Latencies([max(0.0, published[n] - at) for n, at in committed.items()], commits)


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


def _write(url: str, count: int) -> tuple[Moments, list[float]]:
    """Let several writers commit one event at a time; give when each commit came back, and how long they took."""
    committed: Moments = {}
    commits: list[float] = []
    start = perf_counter() + 0.1

    def write(mine: range) -> None:
        outbox = Outbox()
        with psycopg.connect(url) as connection:
            for n in mine:
                sleep(max(0.0, start + n / RATE - perf_counter()))
                outbox.add(connection, events.event(n))
                asked = perf_counter()
                connection.commit()
                committed[n] = perf_counter()
                commits.append(committed[n] - asked)

    writers = [Thread(target=write, args=(range(first, count + 1, WRITERS),)) for first in range(1, WRITERS + 1)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    return committed, commits
