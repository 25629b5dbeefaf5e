"""What an event costs a writer: transactions a second with an event beside those without, durable commits.

The transaction is tiny, an UPDATE and an INSERT, near the worst case: in a larger one an event counts for less.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from random import randrange
from time import perf_counter
from typing import Any, NamedTuple

from pillarbox import Event
from pillarbox.bench.places import ACCOUNTS, Place
from pillarbox.bench.processes import Child

PATIENCE = 120.0
Write = Callable[[Place, Any], None]
"""Does an application's part of one transaction."""
MakeEvent = Callable[[int], Event[Any]]
"""Gives the n-th event of a writer."""


def tiny(place: Place, connection: Any) -> None:
    """Change one row and add another."""
    account = randrange(ACCOUNTS)
    place.run(connection, "UPDATE {p}accounts SET balance = balance - 1 WHERE id = %s", account)
    place.run(connection, "INSERT INTO {p}history VALUES (%s, -1, CURRENT_TIMESTAMP)", account)


class Written(NamedTuple):
    """Transactions a second, and how many there were."""

    rate: float
    transactions: int


class Writers:
    """Processes with one connection each, as an application's workers have. Both ways are measured with the same."""

    def __init__(self, place: Place, event: MakeEvent, write: Write, count: int) -> None:
        self._children = [Child("writer", _work, place, event, write) for _ in range(count)]

    def rate(self, seconds: float, most: int, *, with_event: bool) -> Written:
        """Let them work for so long, or for so many transactions; give transactions a second, and how many."""
        for child in self._children:
            child.send((seconds, most // len(self._children), with_event))
        found = [child.receive(PATIENCE + seconds) for child in self._children]
        return Written(sum(count / took for count, took in found), sum(count for count, _ in found))

    def kill(self) -> None:
        for child in self._children:
            child.kill()


@contextmanager
def writers(place: Place, event: MakeEvent, write: Write, count: int) -> Iterator[Writers]:
    """Start writers, and kill them in the end."""
    started = Writers(place, event, write, count)
    try:
        yield started
    finally:
        started.kill()


def _work(place: Place, event: MakeEvent, write: Write, pipe: Any) -> None:
    outbox = place.outbox()
    with closing(place.connect()) as connection:
        while True:
            seconds, most, with_event = pipe.recv()
            began, count = perf_counter(), 0
            while count < max(1, most) and perf_counter() < began + seconds:
                place.begin(connection)
                write(place, connection)
                if with_event:
                    outbox.add(connection, event(count))
                connection.execute("COMMIT")
                count += 1
            pipe.send((count, perf_counter() - began))
