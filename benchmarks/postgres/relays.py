"""Relays in processes of their own, without a broker: their publish function only counts."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import Synchronized
from time import perf_counter, sleep
from typing import Any

import psycopg

from benchmarks.postgres import shop
from pillarbox.core.message import Message
from pillarbox.core.routing import LANES
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay
from servers.postgres import RunningPostgres

PATIENCE = 300.0
_spawn = multiprocessing.get_context("spawn")


class CountingRelay:
    """A relay process; says when it took its first lanes and how many events it has published."""

    def __init__(self, url: str) -> None:
        self._taken_at: Synchronized[float] = _spawn.Value("d", 0.0)
        self._published: Synchronized[int] = _spawn.Value("q", 0)
        # The clock is the machine's, so both processes read the same one.
        self._process = _spawn.Process(target=_relay, args=(url, self._taken_at, self._published), daemon=True)
        self._process.start()

    @property
    def taken_at(self) -> float:
        return self._taken_at.value

    @property
    def published(self) -> int:
        return self._published.value

    def freeze(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    @property
    def _pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid


def _relay(url: str, taken_at: Any, published: Any) -> None:
    def note(moment: Moment, facts: Facts) -> None:
        if moment is Moment.LANES_TAKEN and not taken_at.value:
            taken_at.value = perf_counter()

    async def publish(messages: list[Message]) -> None:
        published.value += len(messages)

    Relay(database=url, publish=publish, hooks=Hooks(note)).run_forever()


def drain(url: str, until: int) -> float:
    """Let one relay publish the first `until` events; give events a second since it took its lanes."""
    with _running(url, 1) as [relay]:
        ended = _wait(lambda: relay.published >= until, "the events to be published")
        return relay.published / (ended - relay.taken_at)


def drain_together(server: RunningPostgres, relays: int, count: int) -> float:
    """Let relays that have shared the lanes publish everything; give events a second, all of them together."""
    with shop.database(server) as url, _running(url, relays) as running:
        _wait(lambda: _shares(url) == [LANES // relays] * relays, "the relays to share the lanes", look_every=0.1)
        before = _epochs(url)
        for relay in running:
            relay.freeze()
        shop.fill(url, count)
        began = perf_counter()
        for relay in running:
            relay.thaw()
        ended = _wait(lambda: sum(relay.published for relay in running) >= count, "the events to be published")
        if _epochs(url) != before:
            raise RuntimeError("the relays were frozen for longer than their lease, so lanes were lost: run it again")
        return count / (ended - began)


@contextmanager
def _running(url: str, count: int) -> Iterator[list[CountingRelay]]:
    running = [CountingRelay(url) for _ in range(count)]
    try:
        yield running
    finally:
        for relay in running:
            relay.kill()


def _shares(url: str) -> list[int]:
    """Count the lanes of each relay."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT count(*) FROM pillarbox_lanes WHERE owner IS NOT NULL GROUP BY owner")
        return [count for (count,) in rows]


def _epochs(url: str) -> list[tuple[int, int]]:
    """Give each lane's epoch: it changes when the lane is taken."""
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT lane, epoch FROM pillarbox_lanes ORDER BY lane").fetchall()


def _wait(done: Any, what: str, look_every: float = 0.001) -> float:
    """Look until it is done; give the moment."""
    deadline = perf_counter() + PATIENCE
    while not done():
        if perf_counter() > deadline:
            raise RuntimeError(f"waited {PATIENCE:.0f} s in vain for {what}")
        sleep(look_every)
    return perf_counter()
