"""Relays in processes of their own, that count what they have settled; without a broker, publishing is free."""

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
    """A relay process; says when it took its first lanes and how many events it has settled."""

    def __init__(self, url: str, broker: str | None = None) -> None:
        self._taken_at: Synchronized[float] = _spawn.Value("d", 0.0)
        self._settled: Synchronized[int] = _spawn.Value("q", 0)
        # The clock is the machine's, so both processes read the same one.
        self._process = _spawn.Process(target=_relay, args=(url, broker, self._taken_at, self._settled), daemon=True)
        self._process.start()

    @property
    def taken_at(self) -> float:
        return self._taken_at.value

    @property
    def settled(self) -> int:
        return self._settled.value

    @property
    def lives(self) -> bool:
        return self._process.is_alive()

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


def _relay(url: str, broker: str | None, taken_at: Any, settled: Any) -> None:
    def note(moment: Moment, facts: Facts) -> None:
        if moment is Moment.LANES_TAKEN and not taken_at.value:
            taken_at.value = perf_counter()
        elif moment is Moment.SETTLED:
            settled.value += facts["count"]

    async def publish(messages: list[Message]) -> None:
        """Have it published at once."""

    way_out: dict[str, Any] = {"publish": publish} if broker is None else {"broker": broker}
    Relay(database=url, hooks=Hooks(note), **way_out).run_forever()


def drain(url: str, until: int, broker: str | None = None) -> float:
    """Let one relay settle the first `until` events; give events a second since it took its lanes."""
    with _running(url, 1, broker) as [relay]:
        ended = _wait(lambda: relay.settled >= until or not relay.lives, "the events to be settled")
        if relay.settled < until:
            raise RuntimeError(f"the relay has settled {relay.settled} of {until} events, and has ended")
        return relay.settled / (ended - relay.taken_at)


def drain_together(server: RunningPostgres, relays: int, count: int, broker: str | None = None) -> float:
    """Let relays that have shared the lanes settle everything; give events a second, all of them together."""
    with shop.database(server) as url, _running(url, relays, broker) as running:
        _wait(lambda: _shares(url) == [LANES // relays] * relays, "the relays to share the lanes", look_every=0.1)
        before = _epochs(url)
        for relay in running:
            relay.freeze()
        shop.fill(url, count)
        began = perf_counter()
        for relay in running:
            relay.thaw()
        ended = _wait(lambda: sum(relay.settled for relay in running) >= count, "the events to be settled")
        if _epochs(url) != before:
            raise RuntimeError("the relays were frozen for longer than their lease, so lanes were lost: run it again")
        return count / (ended - began)


@contextmanager
def _running(url: str, count: int, broker: str | None) -> Iterator[list[CountingRelay]]:
    running = [CountingRelay(url, broker) for _ in range(count)]
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
