"""The textbook relay: lock one row, publish it, mark it, commit. Fixed: it is what we compare with.

It loses nothing, on PostgreSQL several may run, and it is what one writes first. Its statements are prepared where they
can be, its index is the right one, its payload is the same as ours.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from time import perf_counter
from typing import Any
from uuid import uuid4

from pillarbox.bench.drain import Drained
from pillarbox.bench.load import Load
from pillarbox.bench.places import Place
from pillarbox.bench.processes import BenchFailed, Child, running
from pillarbox.bench.usage import used_by
from pillarbox.core.message import Message
from pillarbox.wiring import open_publisher

PATIENCE = 600.0
Publish = Callable[[Message], None]
"""Returns when the broker has it."""
Client = Callable[[Place], AbstractContextManager[Publish]]
"""Opens a client of the place's broker; given to another process, so a function of a module."""


def drain(place: Place, connection: Any, publish: Publish) -> int:
    """Publish everything, one by one; give how many that were."""
    (following, mark), published = place.textbook, 0
    while True:
        place.begin(connection)
        rows = place.run(connection, following)
        if not rows:
            connection.execute("COMMIT")
            return published
        publish(_message(place.topic, rows[0]))
        place.run(connection, mark, rows[0][0])
        connection.execute("COMMIT")
        published += 1


def measure(place: Place, load: Load, count: int, client: Client | None = None) -> Drained:
    """Fill the textbook's outbox and let it drain, in a process of its own: with a client of the broker that is given,
    or else with our own publisher."""
    with closing(place.connect()) as connection:
        place.fill_textbook(connection, load, count)
        before = place.used(connection), place.written(connection)
        loop = Child("textbook loop", _loop, place, count, client or our_publisher)
        with running(loop):
            seconds, used = loop.receive(PATIENCE)
        after = place.used(connection), place.written(connection)
    database, written = (None if a is None or b is None else b - a for a, b in zip(before, after, strict=True))
    return Drained(count, seconds, used, database, None if written is None else int(written))


def _loop(place: Place, count: int, client: Client, pipe: Any) -> None:
    with closing(place.connect()) as connection, client(place) as publish:
        publish(_message(place.topic, (0, str(uuid4()), "bench", "0", "Benched", "{}")))  # connected before its time
        began, before = perf_counter(), used_by([os.getpid()])
        published = drain(place, connection, publish)
        seconds, after = perf_counter() - began, used_by([os.getpid()])
    if published != count:
        raise BenchFailed(f"{published} events were published, not {count}")
    pipe.send((seconds, None if before is None or after is None else after - before))


@contextmanager
def our_publisher(place: Place) -> Iterator[Publish]:
    """Publish with what a relay publishes with."""
    with asyncio.Runner() as runner:
        publisher = runner.run(_opened(place))
        yield lambda message: runner.run(_publish(publisher, message))
        runner.run(publisher.close())


async def _opened(place: Place) -> Any:
    return open_publisher(place.settings)


async def _publish(publisher: Any, message: Message) -> None:
    publisher.send([message])
    outcomes: Sequence[Any] = ()
    while not outcomes:
        outcomes = await publisher.outcomes()
    if outcomes[0].error is not None:
        raise outcomes[0].error


def _message(topic: str, row: tuple[Any, ...]) -> Message:
    _, event_id, aggregate_type, aggregate_id, event_type, payload = row
    headers = {"id": event_id, "type": event_type, "aggregate_type": aggregate_type, "aggregate_id": aggregate_id}
    body = payload if isinstance(payload, str) else json.dumps(payload)
    return Message(topic, aggregate_id, headers, body.encode())
