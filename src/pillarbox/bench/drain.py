"""How fast relays empty a full outbox, in processes of their own, and what an event costs meanwhile."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from multiprocessing.sharedctypes import Synchronized
from time import perf_counter, sleep
from typing import Any, NamedTuple

from pillarbox.bench.places import Lane, Place
from pillarbox.bench.processes import BenchFailed, Child, running, shared
from pillarbox.bench.usage import used_by
from pillarbox.core.message import Message
from pillarbox.core.routing import LANES
from pillarbox.settings import Settings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Relay

PATIENCE = 300.0
"""Seconds without progress after which something is wrong."""


class Drained(NamedTuple):
    """What was settled in how many seconds, and what it took: processor seconds and bytes, where they can be seen."""

    events: int
    seconds: float
    by_relays: float | None = None
    by_database: float | None = None
    written: int | None = None

    @property
    def rate(self) -> float:
        return self.events / self.seconds


class CountingRelay:
    """A relay process; says when it took its first lanes and how many events it has settled."""

    def __init__(self, settings: Settings, work: Callable[..., None]) -> None:
        self._taken_at: Synchronized[float] = shared("d")
        self._settled: Synchronized[int] = shared("q")
        # The clock is the machine's, so both processes read the same one.
        self.child = Child("relay", work, settings, self._taken_at, self._settled)

    @property
    def taken_at(self) -> float:
        return self._taken_at.value

    @property
    def settled(self) -> int:
        return self._settled.value

    def check(self) -> None:
        """Raise BenchFailed if it has ended."""
        self.child.check()


def relaying(settings: Settings, taken_at: Any, settled: Any, pipe: Any) -> None:
    """Run a relay, and count."""

    def note(moment: Moment, facts: Facts) -> None:
        if moment is Moment.LANES_TAKEN and not taken_at.value:
            taken_at.value = perf_counter()
        elif moment is Moment.SETTLED:
            settled.value += facts["count"]

    async def publish(messages: list[Message]) -> None:
        """Have it published at once."""

    way_out: dict[str, Any] = {"publish": publish} if settings.broker is None else {}
    Relay(settings, hooks=Hooks(note), **way_out).run_forever()


def drain(place: Place, until: int, work: Callable[..., None] = relaying) -> Drained:
    """Let one relay settle the first `until` events; count since it took its lanes."""
    with closing(place.connect()) as connection, relays(place.settings, 1, work) as [relay]:
        wait(lambda: relay.taken_at > 0, "the relay to take its lanes", [relay])
        before = _spent(place, connection, [relay])
        wait(lambda: relay.settled >= until, "the events to be settled", [relay])
        ended = perf_counter()
        after = _spent(place, connection, [relay])
        return Drained(relay.settled, ended - relay.taken_at, *_between(before, after))


def drain_together(place: Place, count: int, events: int, fill: Callable[[], object]) -> Drained:
    """Let relays that have shared the lanes settle everything that `fill` adds, all of them together."""
    with closing(place.connect()) as connection, relays(place.settings, count) as team:
        wait(lambda: _shares(place.lanes(connection)) == [LANES // count] * count, "the lanes to be shared", team)
        before_lanes = place.lanes(connection)
        for relay in team:
            relay.child.freeze()
        fill()
        before, began = _spent(place, connection, team), perf_counter()
        for relay in team:
            relay.child.thaw()
        wait(lambda: sum(relay.settled for relay in team) >= events, "the events to be settled", team)
        ended = perf_counter()
        after = _spent(place, connection, team)
        if place.lanes(connection) != before_lanes:
            raise BenchFailed("relays waited for longer than their lease, so lanes were lost: take fewer events")
        return Drained(events, ended - began, *_between(before, after))


@contextmanager
def relays(settings: Settings, count: int, work: Callable[..., None] = relaying) -> Iterator[list[CountingRelay]]:
    """Start relays; in the end they hand over."""
    started = [CountingRelay(settings, work) for _ in range(count)]
    with running(*(relay.child for relay in started)):
        yield started


def wait(done: Callable[[], bool], what: str, team: Sequence[CountingRelay], look_every: float = 0.001) -> None:
    """Look until it is done; raise BenchFailed if a relay ends, or nothing is settled for a long time."""
    settled, since = -1, perf_counter()
    while not done():
        for relay in team:
            relay.check()
        if (now := sum(relay.settled for relay in team)) != settled:
            settled, since = now, perf_counter()
        if perf_counter() - since > PATIENCE:
            raise BenchFailed(f"waited {PATIENCE:.0f} s in vain for {what}: {settled:,} are settled")
        sleep(look_every)


_Spent = tuple[float | None, float | None, int | None]


def _spent(place: Place, connection: Any, team: Sequence[CountingRelay]) -> _Spent:
    return used_by([relay.child.pid for relay in team]), place.used(connection), place.written(connection)


def _between(before: _Spent, after: _Spent) -> Any:
    return (None if a is None or b is None else b - a for a, b in zip(before, after, strict=True))


def _shares(lanes: Sequence[Lane]) -> list[int]:
    """Count the lanes of each relay."""
    owners = [lane.owner for lane in lanes if lane.owner is not None]
    return [owners.count(owner) for owner in dict.fromkeys(owners)]
