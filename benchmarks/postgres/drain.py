"""How fast relays drain an outbox on PostgreSQL without a broker: one, several, at depth, under a held snapshot."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import psycopg

from benchmarks.measure import Goal, Progress, Row, compared, in_turn
from benchmarks.postgres import relays, shop
from pillarbox.bench import textbook
from pillarbox.bench.load import Load
from pillarbox.bench.places import Place
from servers.postgres import RunningPostgres

BIG = os.environ.get("BIG") == "1"


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    """Compare one relay with the textbook, and several with one."""
    count, few = (20_000, 200) if quick else (200_000, 3_000)
    book, one, two, four = "the textbook", "1 relay", "2 relays", "4 relays"
    ways: dict[str, Callable[[], float]] = {
        book: lambda: _textbook(server, few),
        one: lambda: relays.drain_together(server, 1, count),
        two: lambda: relays.drain_together(server, 2, count),
        four: lambda: relays.drain_together(server, 4, count),
    }
    found = in_turn("drain PostgreSQL, no broker", ways, tell)
    return [
        compared(f"drain PostgreSQL, no broker, {ours}, beside {reference}", "events/s", found[ours], found[reference])
        for ours, reference in ((one, book), (two, one), (four, one))
    ]


def _textbook(server: RunningPostgres, count: int) -> float:
    with shop.database(server) as url:
        place = shop.place_at(url)
        with closing(place.connect()) as connection:
            place.make_tables(connection)
        return textbook.measure(place, Load(), count, _nowhere).rate


@contextmanager
def _nowhere(place: Place) -> Iterator[textbook.Publish]:
    yield lambda message: None


def deep_rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    """Drain the beginning of a deep outbox: beside a shallow one, and while somebody holds a snapshot."""
    deep, first, held, shallow = (60_000, 20_000, 40_000, 20_000) if quick else (3_000_000, 300_000, 1_000_000, 100_000)
    deep, between = 10_000_000 if BIG and not quick else deep, deep // 3
    tell(f"filling outboxes with {deep + between + shallow:,} events")
    with (
        shop.database(server, deep) as url,
        shop.database(server, between) as third,
        shop.database(server, shallow) as other,
    ):

        def under_snapshot() -> float:
            with _snapshot(url):
                return _drain(url, held)

        ways = {
            "deep": lambda: _drain(url, first),
            "between": lambda: _drain(third, first),
            "shallow": lambda: _drain(other, shallow),
            "under a snapshot": under_snapshot,
            "without a snapshot": lambda: _drain(url, held),
        }
        found = in_turn(f"drain at a depth of {deep:,}", ways, tell)
    return [
        compared(
            f"drain at a depth of {deep:,}, beside {shallow:,}", "events/s",
            found["deep"], found["shallow"], Goal(">=", 0.8),
        ),
        compared(
            f"drain at a depth of {between:,}, beside {shallow:,}", "events/s", found["between"], found["shallow"]
        ),
        compared(
            f"drain of {held:,} under a held snapshot, beside none", "events/s",
            found["under a snapshot"], found["without a snapshot"], Goal(">=", 0.8),
        ),
    ]  # fmt: skip


def _drain(url: str, until: int) -> float:
    rate = relays.drain(url, until)
    shop.rewind(url)
    return rate


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    """Keep a snapshot as a report or a backup would: nothing that dies meanwhile can be cleaned up."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pillarbox_lanes")
        yield
