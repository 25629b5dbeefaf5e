"""How long an event takes from the end of its commit: until the broker has acknowledged it, and until a consumer has
applied it, which is the end of its handler's transaction. Writers commit at a steady rate meanwhile.

Beside it stands what the writers wait for their own durable commits in the same seconds.
"""

import json
from array import array
from collections.abc import Callable, Sequence
from contextlib import closing
from math import ceil
from threading import Thread
from time import perf_counter, sleep
from typing import Any, Literal, NamedTuple

from pillarbox import Event
from pillarbox.bench.load import TYPE, Load, number_of
from pillarbox.bench.places import Place
from pillarbox.bench.processes import BenchFailed, Child, running
from pillarbox.core.message import Message
from pillarbox.ports import Outcome, Publisher
from pillarbox.settings import Settings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import Consumer, Relay, open_publisher

PATIENCE = 120.0
SINGLE = 1000
"""Up to so many events a second, each has a transaction of its own."""
TRANSACTIONS = 250
"""Above, so many transactions a second share them out."""
LEAD = 1.0
"""Seconds of writing before anything counts."""
CONSUMER = "pillarbox-bench"
Until = Literal["broker", "applied"]


class Latencies(NamedTuple):
    """In seconds, of each event: from its commit, and how long the commits took. And events a second, as committed."""

    taken: Sequence[float]
    commits: Sequence[float]
    rate: float


def percentile(seconds: Sequence[float], share: float) -> float:
    """Give a percentile in milliseconds."""
    return sorted(seconds)[int(len(seconds) * share)] * 1000


def latencies(place: Place, load: Load, first: int, count: int, rate: float, until: Until) -> Latencies:
    """Let a relay work, and a consumer if need be; wait until one event is through, then write at a steady rate."""
    if until == "broker":
        watcher = Child("relay", _relay, place, first, numbers(count, rate))
        with running(watcher):
            return watched(watcher, place, load, first, count, rate)
    watcher = Child("consumer", _consumer, place, first, numbers(count, rate))
    relay = Child("relay", relay_plainly, place.settings)
    with running(watcher, relay):
        return watched(watcher, place, load, first, count, rate)


def numbers(count: int, rate: float) -> int:
    """Say how many events are added for `count` that are measured: one that shows that all are there, and the lead."""
    return 1 + _lead(count, rate) + count


def _lead(count: int, rate: float) -> int:
    return min(count, ceil(LEAD * rate))


def watched(watcher: Child, place: Place, load: Load, first: int, count: int, rate: float) -> Latencies:
    """Wait until one event is through, then write at a steady rate, while somebody watches all `numbers` with `Seen`.
    What comes first is not measured: relays that have been idle look less often."""
    with closing(place.connect()) as connection:
        place.fill(connection, load, first, 1)
    watcher.receive(PATIENCE)
    lead = _lead(count, rate)
    patience = PATIENCE + (lead + count) / rate
    writer = Child("writer", write_steadily, place, load, first + 1, lead + count, rate)
    with running(writer):
        committed, commits = writer.receive(patience)
    committed, seen = committed[lead:], watcher.receive(patience)[1 + lead :]
    # A writer may hear of its commit after others have seen it.
    taken = [max(0.0, at - since) for since, at in zip(committed, seen, strict=True)]
    return Latencies(taken, commits, count / max(1e-9, max(committed) - min(committed)) if count > 1 else rate)


class Seen:
    """When each event was seen first; tells of the first event of all, and in the end of all of them."""

    def __init__(self, first: int, count: int, tell: Callable[[Any], None]) -> None:
        self._first, self._left, self._tell = first, count, tell
        self._at = array("d", bytes(8 * count))

    def note(self, id: str, now: float) -> None:
        """Note one."""
        n = number_of(id)
        place = -1 if n is None else n - self._first
        if not 0 <= place < len(self._at) or self._at[place]:
            return
        self._at[place] = now
        self._left -= 1
        if place == 0:
            self._tell("the first one is through")
        if self._left == 0:
            self._tell(self._at)


class _Noting:
    """A publisher that notes when the broker acknowledged what."""

    def __init__(self, publisher: Publisher, seen: Seen) -> None:
        self._publisher, self._seen = publisher, seen
        self._flying: dict[int, str] = {}

    @property
    def prefix_safe(self) -> bool:
        return self._publisher.prefix_safe

    def send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._flying[message.ticket] = message.headers["id"]
        self._publisher.send(messages)

    async def outcomes(self) -> Sequence[Outcome]:
        outcomes = await self._publisher.outcomes()
        now = perf_counter()
        for ticket, error in outcomes:
            id = self._flying.pop(ticket)
            if error is None:
                self._seen.note(id, now)
        return outcomes

    async def close(self) -> None:
        await self._publisher.close()


class _Broker:
    """The settings' broker, with a publisher that notes."""

    def __init__(self, settings: Settings, seen: Seen) -> None:
        self._settings, self._seen = settings, seen

    def publisher(self) -> Publisher:
        return _Noting(open_publisher(self._settings), self._seen)


def _relay(place: Place, first: int, count: int, pipe: Any) -> None:
    seen = Seen(first, count, pipe.send)

    async def publish(messages: list[Message]) -> None:
        """Have it published at once, where there is no broker."""
        now = perf_counter()
        for message in messages:
            seen.note(message.headers["id"], now)

    settings = place.settings
    way_out: dict[str, Any] = {"publish": publish} if settings.broker is None else {"broker": _Broker(settings, seen)}
    Relay(settings, hooks=Hooks(), **way_out).run_forever()


def relay_plainly(settings: Settings, pipe: Any) -> None:
    """Relay, and tell nothing."""
    Relay(settings, hooks=Hooks()).run_forever()


def _consumer(place: Place, first: int, count: int, pipe: Any) -> None:
    consume(place, Seen(first, count, pipe.send).note)


def consume(place: Place, note: Callable[[str, float], None]) -> None:
    """Apply events, one per transaction, through the inbox; note each when its transaction has committed."""
    inbox = place.inbox(CONSUMER)

    def apply(connection: Any, event: Event[Any]) -> None:
        place.run(connection, "INSERT INTO {p}applied VALUES (%s)", event.payload["n"])

    def hear(moment: Moment, facts: Facts) -> None:
        if moment is Moment.COMMITTED and "event_id" in facts:
            note(str(facts["event_id"]), perf_counter())

    inbox.handler(TYPE)(apply)
    Consumer(inbox, topics=[place.topic], settings=place.settings, hooks=Hooks(hear)).run_forever()


def apply_rate(place: Place, first: int, count: int) -> float:
    """Let a consumer apply these events, which the broker has; give events a second."""
    consumer = Child("consumer", _consumer, place, first, count)
    with running(consumer):
        while not isinstance(seen := consumer.receive(PATIENCE), array):
            pass  # the first one is through
    seconds: float = max(seen) - min(seen)
    return (count - 1) / max(1e-9, seconds)


def write_steadily(place: Place, load: Load, first: int, count: int, rate: float, pipe: Any) -> None:
    """Commit events at a steady rate on several connections; tell when each one's commit came back, and how long
    commits took. Who is late goes on at once, and does not catch up by writing more at a time."""
    together = 1 if rate <= SINGLE else ceil(rate / TRANSACTIONS)
    committed, commits = array("d", bytes(8 * count)), array("d")
    failed: list[BaseException] = []
    start = perf_counter() + 0.2

    def write(mine: range) -> None:
        try:
            outbox = place.outbox()
            with closing(place.connect()) as connection:
                for begin in mine:
                    events = min(together, count - begin)
                    sleep(max(0.0, start + begin / rate - perf_counter()))
                    place.begin(connection)
                    if together == 1:
                        outbox.add(connection, load.event(first + begin))
                    else:
                        place.fill(connection, load, first + begin, events)
                    asked = perf_counter()
                    connection.execute("COMMIT")
                    now = perf_counter()
                    committed[begin : begin + events] = array("d", [now]) * events
                    commits.append(now - asked)
        except Exception as error:  # noqa: BLE001 - told by the thread that waits
            failed.append(error)

    writers = min(place.writers, count)
    threads = [Thread(target=write, args=(range(one * together, count, writers * together),)) for one in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise BenchFailed(f"writers failed: {json.dumps(str(failed[0]))}") from failed[0]
    pipe.send((committed, commits))
