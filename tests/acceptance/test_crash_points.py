"""kill -9 at every named crash point, in real processes: of the relay and of the consumer, on every database."""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from psycopg import connect

from pillarbox import Event, dbapi, psycopg
from pillarbox.core.message import Message
from pillarbox.stores.postgres.schema import Tables
from pillarbox.telemetry.hooks import CRASH_POINTS, Hooks, Moment
from servers.postgres import RunningPostgres
from tests.acceptance import crashing
from tests.acceptance.crashing import BATCH, ORDERS, relay, tapped
from tests.acceptance.streams import STREAMS, stream_on
from tests.conftest import EVERY_POSTGRES
from tests.integration.postgres_world import EPOCHS_UNCHECKED, Mutant

EACH = 6
DATABASES = ["SQLite", "PostgreSQL"]
OTHERS = [pytest.param(f"PostgreSQL {major}", marks=pytest.mark.soak) for major in ("17", "18")]
WINDOW_AND_CHUNK = 3 * BATCH
"""So many copies one kill or one lost lease may cost."""
LATE = 8
"""By then more is published than one kill may cost: if nothing of that were stored, it would show."""
RELAY_POINTS = {
    Moment.LANES_TAKEN: 1,
    Moment.ENTRIES_READ: LATE,
    Moment.BEFORE_SEND: LATE,
    Moment.SENT: LATE,
    Moment.STORED_BY_BROKER: LATE,
    Moment.ANSWERED: LATE,
    Moment.SETTLING: 2,
    Moment.SETTLED: LATE,
    Moment.LEASE_RENEWED: 1,
    Moment.PRUNED: 1,
    Moment.LANES_RELEASED: 1,
}
CONSUMER_POINTS = {
    Moment.DELIVERED: 1,
    Moment.STORED: 1,
    Moment.MARKED: 7,
    Moment.HANDLED: 7,
    Moment.COMMITTED: 7,
    Moment.PARKED: 1,
    Moment.ACKNOWLEDGED: 1,
}


@pytest.fixture
def empty(postgres_at: Callable[[str], RunningPostgres]) -> Iterator[Callable[[str], str]]:
    """Makes an empty database on "PostgreSQL", which is 15, or on "PostgreSQL 17"; gives its URL."""
    with ExitStack() as made:

        def make(kind: str) -> str:
            server, name = postgres_at(kind.partition(" ")[2] or "15"), f"test_{uuid4().hex}"
            made.callback(server.drop_database, name)
            return server.create_database(name)

        yield make


@pytest.fixture(params=[*DATABASES, *OTHERS])
def shop(request: pytest.FixtureRequest, tmp_path: Path, empty: Callable[[str], str]) -> str:
    """The URL of a shop with events of twenty orders, committed in order, and some that were rolled back."""
    if request.param == "SQLite":
        return sqlite_shop(tmp_path)
    database = empty(request.param)
    migrate(database)
    with connect(database) as connection:
        fill(connection, psycopg.Outbox())
    return database


def sqlite_shop(folder: Path) -> str:
    url = f"sqlite:///{folder / 'shop.db'}"
    migrate(url)
    with closing(sqlite3.connect(folder / "shop.db")) as connection:
        fill(connection, dbapi.Outbox())
    return url


def migrate(database: str) -> None:
    up = [sys.executable, "-m", "pillarbox", "migrate", "up", "--database", database]
    subprocess.run(up, check=True, capture_output=True)


def fill(connection: Any, outbox: Any, numbers: Iterable[int] = range(EACH)) -> None:
    for n in numbers:
        for order in range(ORDERS):
            outbox.add(connection, Event("OrderPlaced", {"order": order, "n": n}, aggregate=("order", order)))
            connection.commit()
            outbox.add(connection, Event("OrderPlaced", {"order": order, "n": 1000 + n}, aggregate=("order", order)))
            connection.rollback()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stream with the events of twenty orders, and an empty billing database; both to be copied."""
    folder = tmp_path_factory.mktemp("published")
    asyncio.run(relay(folder, sqlite_shop(folder), Hooks()).run_once())
    migrate(f"sqlite:///{folder / 'billing.db'}")
    with closing(sqlite3.connect(folder / "billing.db")) as billing:
        billing.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY, order_id INTEGER, n INTEGER)")
    return folder


@pytest.fixture(params=[*DATABASES, *OTHERS])
def billing(request: pytest.FixtureRequest, tmp_path: Path, published: Path, empty: Callable[[str], str]) -> str:
    """The URL of an empty billing database, with a stream of orders to bill beside it."""
    shutil.copy(published / "stream.db", tmp_path)
    if request.param == "SQLite":
        shutil.copy(published / "billing.db", tmp_path)
        return f"sqlite:///{tmp_path / 'billing.db'}"
    database = empty(request.param)
    with connect(database) as connection:
        connection.execute(Tables("public", "pillarbox_").sql().encode())
        connection.execute("CREATE TABLE invoices (id bigserial PRIMARY KEY, order_id integer, n integer)")
    return database


def test_every_crash_point_has_a_test() -> None:
    assert set(RELAY_POINTS) | set(CONSUMER_POINTS) == CRASH_POINTS


def test_every_crash_point_is_struck_on_every_database_outside_the_soak() -> None:
    kills = (
        test_a_relay_killed_at_any_moment_loses_and_invents_nothing,
        test_a_consumer_killed_at_any_moment_applies_each_event_once,
    )
    assert [struck_by(kill) for kill in kills] == [set(RELAY_POINTS), set(CONSUMER_POINTS)]
    assert "PostgreSQL" in DATABASES


def struck_by(test: Any) -> set[Moment]:
    """List the moments that a test is parametrised with, but for those of the soak."""
    [mark] = test.pytestmark
    cases = [case for case in mark.args[1] if not getattr(case, "marks", ())]
    return {getattr(case, "values", (case,))[-1] for case in cases}


@pytest.mark.parametrize("moment", RELAY_POINTS)
def test_a_relay_killed_at_any_moment_loses_and_invents_nothing(tmp_path: Path, shop: str, moment: Moment) -> None:
    die("relay", tmp_path, shop, moment, RELAY_POINTS[moment])
    assert (kept_in(shop) < ORDERS * EACH) == (moment is Moment.PRUNED), "it died without having pruned anything"
    asyncio.run(relay(tmp_path, shop, Hooks()).run_once())
    wire = wire_of(tmp_path)
    assert_all_in_order(list(dict.fromkeys(wire)))
    assert len(wire) - ORDERS * EACH <= WINDOW_AND_CHUNK


def kept_in(shop: str) -> int:
    """Count the events that are still in the outbox."""
    count = "SELECT count(*) FROM pillarbox_outbox"
    if shop.startswith("sqlite"):
        [[kept]] = rows(Path(shop.removeprefix("sqlite:///")), count)
    else:
        with connect(shop) as connection:
            [[kept]] = connection.execute(count).fetchall()
    return int(kept)


ASLEEP = (Moment.ENTRIES_READ, Moment.BEFORE_SEND, Moment.SENT, Moment.ANSWERED)
"""Where a relay is stopped past its lease.

Where what is held need not be held under its epoch, one that had its answer turns the position back over what another
relay has published, and that comes twice. Whether the others settle before their own clocks tell them better is chance,
so for those it is tried where nothing is: "any epoch" in test_postgres_losses_lanes.py.
"""
Until = Callable[[Callable[[], bool]], None]


@pytest.mark.parametrize("database", EVERY_POSTGRES, indirect=True)
@pytest.mark.parametrize("moment", ASLEEP)
def test_a_relay_that_is_stopped_past_its_lease_and_woken_repeats_but_reorders_nothing(
    tmp_path: Path, database: str, moment: Moment, until: Until
) -> None:
    wire = wire_after_a_sleep(tmp_path, database, moment, until)
    assert_all_in_order(list(dict.fromkeys(wire)))
    assert len(wire) - ORDERS * EACH <= WINDOW_AND_CHUNK
    assert repeated_after_a_sleep(wire) == []


def test_without_epochs_one_that_wakes_up_would_repeat_what_another_has_settled(
    tmp_path: Path, database: str, until: Until
) -> None:
    wire = wire_after_a_sleep(tmp_path, database, Moment.ANSWERED, until, EPOCHS_UNCHECKED)
    assert repeated_after_a_sleep(wire) != []


def repeated_after_a_sleep(wire: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Give what went more than once of what only the other relay has had and settled."""
    return [event for event, copies in Counter(wire).items() if event[1] in (3, 4) and copies > 1]


def wire_after_a_sleep(
    folder: Path, database: str, moment: Moment, until: Until, mutant: Mutant | None = None
) -> list[tuple[int, int]]:
    """Stop a relay, let another one take its lanes and carry what is there and more, wake it; give what was sent."""
    migrate(database)
    if mutant is not None:
        mutant.install(database)
    with connect(database) as connection:
        fill(connection, psycopg.Outbox(), range(3))
    sleeper = subprocess.Popen(command("tapped", folder, database, moment, 2, "SIGSTOP"))
    try:
        _, status = os.waitpid(sleeper.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it did not stop at {moment!r}"
        with connect(database) as connection:
            fill(connection, psycopg.Outbox(), range(3, 5))
            asyncio.run(tapped(folder, database, Hooks()).run_once())
            sleeper.send_signal(signal.SIGCONT)
            fill(connection, psycopg.Outbox(), [5])
        until(lambda: len(set(tap_of(folder))) == ORDERS * EACH)
        sleeper.send_signal(signal.SIGTERM)
        assert sleeper.wait(30) == 0
    finally:
        sleeper.kill()
        sleeper.wait()
    return tap_of(folder)


OUTSIDE_A_TRANSACTION = (Moment.DELIVERED, Moment.PARKED, Moment.ACKNOWLEDGED)


@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        # Where several are stored or share a transaction, the moments around that tell most: the others are the soak's.
        pytest.param(
            kind,
            moment,
            marks=[pytest.mark.soak] if kind != "consumer" and moment in OUTSIDE_A_TRANSACTION else [],
        )
        for kind in ("consumer", "storing", "sharing")
        for moment in CONSUMER_POINTS
        if kind == "storing" or moment is not Moment.STORED
    ],
)
def test_a_consumer_killed_at_any_moment_applies_each_event_once(
    tmp_path: Path, billing: str, kind: str, moment: Moment
) -> None:
    together = kind == "sharing" and moment is Moment.COMMITTED
    die(kind, tmp_path, billing, moment, 1 if together else CONSUMER_POINTS[moment])
    assert not together or len(invoices_of(billing)) > 1, "the first transaction was not shared"
    consumer = {"consumer": crashing.consumer, "storing": crashing.storing, "sharing": crashing.sharing}[kind]
    while len(invoices := invoices_of(billing)) < ORDERS * EACH:
        asyncio.run(consumer(tmp_path, billing, Hooks()).run_once(patience=1.5))
    assert max(Counter(invoices).values()) == 1
    assert_all_in_order(invoices)


@pytest.mark.soak
@pytest.mark.parametrize("billing", DATABASES, indirect=True)
@pytest.mark.parametrize("broker", [name for name in STREAMS if name != "embedded"])
@pytest.mark.parametrize("moment", CONSUMER_POINTS)
def test_a_consumer_killed_at_any_moment_applies_each_event_once_on_every_broker(
    tmp_path: Path,
    billing: str,
    broker: str,
    moment: Moment,
    until: Callable[[Callable[[], bool]], None],
    request: pytest.FixtureRequest,
) -> None:
    kind, consumer = ("storing", crashing.storing) if moment is Moment.STORED else ("consumer", crashing.consumer)
    with stream_on(broker, f"orders-{uuid4().hex[:8]}", tmp_path, request) as stream:
        stream.publish(messages_of(tmp_path / "stream.db"))
        (tmp_path / "broker").write_text(f"{stream.url} {stream.topic}")
        die(kind, tmp_path, billing, moment, CONSUMER_POINTS[moment])
        if moment is Moment.COMMITTED:  # what is in the database and will come again
            kept = len(invoices_of(billing)) + parked_of(billing)
            until(lambda: stream.unread() > ORDERS * EACH - kept)
        while len(invoices := invoices_of(billing)) < ORDERS * EACH or stream.unread():
            asyncio.run(consumer(tmp_path, billing, Hooks()).run_once(patience=1.5))
    assert max(Counter(invoices).values()) == 1
    assert_all_in_order(invoices)


def messages_of(stream: Path) -> list[Message]:
    """Read the messages of an embedded broker."""
    with closing(sqlite3.connect(stream)) as file:
        found = file.execute("SELECT topic, key, headers, body FROM messages ORDER BY id").fetchall()
    return [Message(topic, key, json.loads(headers), bytes(body)) for topic, key, headers, body in found]


def invoices_of(billing: str) -> list[tuple[int, int]]:
    return billed(billing, "SELECT order_id, n FROM invoices ORDER BY id")


def parked_of(billing: str) -> int:
    """Count what is acknowledged, or will be, without being billed."""
    parked = billed(billing, "SELECT event_id FROM pillarbox_inbox_parked WHERE state NOT IN ('handled', 'suspect')")
    return len(parked)


def billed(billing: str, sql: str) -> list[Any]:
    if billing.startswith("sqlite"):
        return rows(Path(billing.removeprefix("sqlite:///")), sql)
    with connect(billing) as connection:
        return connection.execute(sql.encode()).fetchall()


def die(kind: str, folder: Path, database: str, moment: Moment, nth: int) -> None:
    done = subprocess.run(command(kind, folder, database, moment, nth), timeout=60, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, f"it did not die at {moment!r}: {done.stderr}"


def command(kind: str, folder: Path, database: str, moment: Moment, nth: int, how: str = "SIGKILL") -> list[str]:
    return [
        sys.executable, "-m", "tests.acceptance.crashing",
        kind, str(folder), database, moment.value, str(nth), how,
    ]  # fmt: skip


def wire_of(folder: Path) -> list[tuple[int, int]]:
    return rows(
        folder / "stream.db",
        "SELECT CAST(body AS TEXT) ->> 'order', CAST(body AS TEXT) ->> 'n' FROM messages ORDER BY id",
    )


def rows(database: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(sql).fetchall()


def tap_of(folder: Path) -> list[tuple[int, int]]:
    """Read what went to a file of lines."""
    lines = [json.loads(line) for line in (folder / "tap").read_bytes().splitlines()]
    return [(line["order"], line["n"]) for line in lines]


def assert_all_in_order(seen: list[tuple[int, int]]) -> None:
    assert sorted(seen) == [(order, n) for order in range(ORDERS) for n in range(EACH)], "lost or invented"
    for order in range(ORDERS):
        numbers = [n for found, n in seen if found == order]
        assert all(a < b for a, b in pairwise(numbers)), f"order {order} came as {numbers}"
