"""While writers are at work: how fast one relay is beside writers who add as fast as they can."""

from contextlib import closing
from time import perf_counter
from typing import Any, NamedTuple

from pillarbox.bench.drain import relays, wait
from pillarbox.bench.load import Load
from pillarbox.bench.places import Place
from pillarbox.bench.processes import Child

TOGETHER = 100
"""Events of one transaction."""
PATIENCE = 60.0


class Sustained(NamedTuple):
    """Events a second while the writers wrote, of the relay and of the writers; and what was left in the end."""

    published: float
    added: float
    left: int


def sustained(place: Place, load: Load, first: int, most: int, seconds: float) -> Sustained:
    """Let a relay work beside writers, for so long, or for so many events."""
    with relays(place.settings, 1) as [relay]:
        wait(lambda: relay.taken_at > 0, "the relay to take its lanes", [relay])
        writer = Child("writer", _work, place, load, first, most, seconds)
        try:
            writer.receive(PATIENCE)
            began, before = perf_counter(), relay.settled
            added = writer.receive(PATIENCE + seconds)
            took, settled = perf_counter() - began, relay.settled - before
        finally:
            writer.kill()
        wait(lambda: relay.settled >= added, "the rest to be settled", [relay])
    return Sustained(settled / took, added / took, added - settled)


def _work(place: Place, load: Load, first: int, most: int, seconds: float, pipe: Any) -> None:
    """Add transaction after transaction on one connection: the server makes the events itself where it can."""
    with closing(place.connect()) as connection:
        pipe.send("ready")
        began, added = perf_counter(), 0
        while added < most and perf_counter() < began + seconds:
            place.fill(connection, load, first + added, min(TOGETHER, most - added))
            added += min(TOGETHER, most - added)
        pipe.send(added)
