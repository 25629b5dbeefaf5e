"""What a relay costs that has nothing to do: processor time, and statements where the database is a server."""

from contextlib import closing
from time import perf_counter, sleep
from typing import Any, NamedTuple

from pillarbox.bench.drain import PATIENCE
from pillarbox.bench.places import Place
from pillarbox.bench.processes import BenchFailed, Child, running, shared
from pillarbox.bench.usage import used_by
from pillarbox.settings import Settings
from pillarbox.settings.urls import parse_url
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import Relay

CALM = 8.0
"""Seconds until a relay has found out that nothing comes."""


SHORTEST = 5.0
"""In less there are too few statements to count, and too little processor time."""


class Idle(NamedTuple):
    """Statements a second, if they can be counted, and the share of a core."""

    statements: float | None
    core: float | None


def idle(place: Place, seconds: float) -> Idle:
    """Let a relay wait for events that do not come."""
    seconds = max(seconds, SHORTEST)
    counted = parse_url("database", place.settings.database or "").scheme != "sqlite"
    count = shared("q")
    relay = Child("relay", _relay, place.settings, count, counted)
    with running(relay), closing(place.connect()) as connection:
        deadline = perf_counter() + PATIENCE
        while not all(lane.owner for lane in place.lanes(connection)):
            relay.check()
            if perf_counter() > deadline:
                raise BenchFailed("the relay has not taken its lanes")
            sleep(0.1)
        sleep(CALM)
        began, statements, used = perf_counter(), count.value, used_by([relay.pid])
        sleep(seconds)
        passed, more, after = perf_counter() - began, count.value - statements, used_by([relay.pid])
        relay.check()
    core = None if used is None or after is None else (after - used) / passed
    return Idle(more / passed if counted else None, core)


def _relay(settings: Settings, count: Any, counted: bool, pipe: Any) -> None:
    if counted:
        _count_statements(count)
    Relay(settings, hooks=Hooks()).run_forever()


def _count_statements(count: Any) -> None:
    """Count at the client: a database tells only of everybody who works in it. This process is the relay's alone."""
    from pillarbox.bench.postgres import AsyncConnection

    plain = AsyncConnection.execute

    async def execute(self: Any, *words: Any, **more: Any) -> Any:
        count.value += 1
        return await plain(self, *words, **more)

    AsyncConnection.execute = execute  # type: ignore[method-assign]
