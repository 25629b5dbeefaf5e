"""What is particular to psycopg, and to writing to PostgreSQL through any door: modes, plans, numbers, keys, NOTIFY."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from pillarbox import dbapi
from pillarbox.core.event import Event
from pillarbox.errors import ConfigError, DuplicateEvent, NoTransaction, SchemaMismatch, StoreError, StoreUnavailable
from pillarbox.psycopg import AsyncOutbox, Outbox
from tests.contracts.postgres_doors import Wire
from tests.integration.postgres_shop import made, read, tables
from tests.unit.test_routing import LANE_VECTORS

outbox, async_outbox = Outbox(), AsyncOutbox()
PING: Event[dict[str, str]] = Event("Ping", {})


@pytest.fixture
def url(database: str) -> str:
    return made(database)


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url) as connection:
        yield connection


def numbered(id: int | str, n: int = 0) -> Event[dict[str, int]]:
    return Event("Changed", {"n": n}, aggregate=("order", id), numbered=True)


def keyed(key: str) -> Event[dict[str, str]]:
    return Event("Paid", {}, idempotency_key=key)


def test_ten_thousand_events_go_in_one_round_trip(url: str) -> None:
    events = [Event("X", {"n": n}, aggregate=("order", n % 7)) for n in range(10_000)]
    full = [numbered(n % 7, n) for n in range(5_000)] + [keyed(str(n)) for n in range(5_000)]
    wire = Wire()
    with psycopg.connect(url) as connection:
        wire.trace(connection)
        connection.execute("SELECT 1")
        before = wire.round_trips()
        outbox.add(connection, *events)
        between = wire.round_trips()
        outbox.add(connection, *full)
        assert (between - before, wire.round_trips() - between) == (1, 1)
        wire.close()
    assert read(url, "event_id") == [event.id for event in [*events, *full]]


def test_a_transaction_block_in_autocommit_is_a_transaction(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.transaction():
            outbox.add(connection, PING)
        with pytest.raises(NoTransaction, match=r"with connection.transaction\(\)"):
            outbox.add(connection, PING)
    assert len(read(url, "id")) == 1


def test_a_pipeline_does_not_hide_whether_there_is_a_transaction(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection, connection.pipeline():
        with pytest.raises(NoTransaction):
            outbox.add(connection, PING)
        with connection.transaction():
            outbox.add(connection, PING, keyed("a"))
            with pytest.raises(DuplicateEvent):
                outbox.add(connection, keyed("a"))
            outbox.add(connection, PING)
    assert read(url, "event_type") == ["Ping", "Paid", "Ping"]


async def test_an_async_pipeline_does_not_either(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection, connection.pipeline():
        with pytest.raises(NoTransaction):
            await async_outbox.add(connection, PING)
        async with connection.transaction():
            await async_outbox.add(connection, PING, keyed("a"))
    assert read(url, "event_type") == ["Ping", "Paid"]


@pytest.mark.parametrize("options", [{"row_factory": dict_row}, {"cursor_factory": psycopg.RawCursor}])
def test_the_connections_own_cursors_do_not_matter(url: str, options: Any) -> None:
    with psycopg.connect(url, **options) as connection:
        outbox.add(connection, keyed("a"))
        with pytest.raises(DuplicateEvent):
            outbox.add(connection, keyed("a"))
    assert len(read(url, "id")) == 1


def test_a_transaction_that_has_failed_takes_no_event(connection: psycopg.Connection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT 1 / 0")
    with pytest.raises(StoreError, match=r"an earlier statement of this transaction failed .* roll back"):
        outbox.add(connection, PING)


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_closed_connection_is_worth_another_try(url: str, autocommit: bool) -> None:
    connection = psycopg.connect(url, autocommit=autocommit)
    connection.close()
    with pytest.raises(StoreUnavailable, match="connect and try again"):
        outbox.add(connection, PING)


def test_missing_tables_name_the_command(database: str) -> None:
    with psycopg.connect(database) as connection, pytest.raises(SchemaMismatch, match="pillarbox migrate up"):
        outbox.add(connection, PING)


async def test_sync_and_async_are_not_mixed_up(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        with pytest.raises(ConfigError, match="AsyncInbox an AsyncConnection"):
            outbox.add(connection, PING)  # type: ignore[arg-type]
    with psycopg.connect(url) as sync, pytest.raises(ConfigError, match="AsyncInbox an AsyncConnection"):
        await async_outbox.add(sync, PING)  # type: ignore[arg-type]


def test_the_door_for_sqlite3_names_this_one(connection: psycopg.Connection) -> None:
    with pytest.raises(ConfigError, match=r"for psycopg take pillarbox\.psycopg"):
        dbapi.Outbox().add(connection, PING)  # type: ignore[arg-type]


def test_the_outbox_may_be_in_any_schema_under_any_prefix(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE SCHEMA shop")
        connection.execute(tables("shop", "events_"))
        Outbox(schema="shop", prefix="events_").add(connection, PING, numbered(1), keyed("a"))
        assert connection.execute("SELECT count(*) FROM shop.events_outbox").fetchone() == (3,)


def test_without_psycopg_the_install_line_is_given() -> None:
    script = """
import sys
sys.modules["psycopg"] = None
from pillarbox.errors import MissingExtra
try:
    import pillarbox.psycopg
except MissingExtra as missing:
    print(missing)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "pip install 'pillarbox[postgres]'" in done.stdout, done.stderr


@pytest.mark.parametrize(("kind", "id", "event_id", "lane"), LANE_VECTORS)
def test_the_lane_in_sql_is_the_lane_in_python(
    connection: psycopg.Connection, kind: str, id: str, event_id: str, lane: int
) -> None:
    connection.execute(
        "INSERT INTO pillarbox_outbox (event_id, aggregate_type, aggregate_id, event_type, topic, payload)"
        " VALUES (coalesce(nullif(%s, '')::uuid, gen_random_uuid()), %s, %s, 'X', 't', '{}')",
        [event_id, kind, id],
    )
    assert connection.execute("SELECT lane FROM pillarbox_outbox").fetchall() == [(lane,)]


def test_copy_and_plain_inserts_get_their_defaults(url: str) -> None:
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        with cursor.copy("COPY pillarbox_outbox (event_type, topic, payload) FROM STDIN") as copy:
            copy.write_row(("Copied", "events", '{"a": 1}'))
            copy.write_row(("Copied", "events", '{"a": 2}'))
        cursor.execute(
            "INSERT INTO pillarbox_outbox (topic, aggregate_type, aggregate_id, event_type, payload) VALUES"
            " ('order-events', 'order', '1', 'Placed', '{}'), ('order-events', 'order', '2', 'Placed', '{}')"
        )
        cursor.execute("SELECT pg_current_xact_id()::text")
        assert (own := cursor.fetchone()) is not None
    rows = read(url, "id, xid::text, event_type, event_id IS NOT NULL, created_at <= clock_timestamp(), lane >= 0")
    assert [row[1:] for row in rows] == [(own[0], kind, True, True, True) for kind in ["Copied"] * 2 + ["Placed"] * 2]
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)


@contextmanager
def listening(url: str) -> Iterator[Callable[[], int]]:
    """Listen to the bell; the function tells how often it has rung since the last call."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("LISTEN pillarbox_outbox")

        def rung() -> int:
            connection.execute("NOTIFY pillarbox_outbox, 'the last one so far'")
            heard = connection.notifies(timeout=20)
            return sum(1 for _ in takewhile(lambda notify: not notify.payload, heard))

        yield rung


@pytest.mark.parametrize("events", [[PING], [PING, PING], [Event("X", {}, headers={"a": "b"})], [numbered(1)]])
def test_notify_rings_once_a_commit(url: str, events: list[Event[Any]]) -> None:
    ringing = Outbox(notify=True)
    with listening(url) as rung, psycopg.connect(url) as connection:
        ringing.add(connection, *events)
        ringing.add(connection, *events)
        connection.commit()
        assert rung() == 1
        ringing.add(connection, *events)
        connection.rollback()
        outbox.add(connection, *events)
        connection.commit()
        assert rung() == 0
    assert len(read(url, "id")) == 3 * len(events)


def until_it_waits(url: str, connection: psycopg.Connection) -> None:
    """Wait until the connection waits for a lock."""
    deadline = time.monotonic() + 20
    with psycopg.connect(url, autocommit=True) as other:
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        while other.execute(query, [connection.info.backend_pid]).fetchone() is None:
            assert time.monotonic() < deadline, "it does not wait for any lock"
            time.sleep(0.002)


@contextmanager
def meanwhile(
    url: str, work: Callable[[psycopg.Connection], None]
) -> Iterator[tuple[psycopg.Connection, "Future[None]"]]:
    """Let another connection work in a thread, and go on when it waits for one of our locks."""
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as thread:
        future = thread.submit(work, other)
        until_it_waits(url, other)
        yield other, future
        future.result(20)
        other.commit()


def by_the_door(connection: psycopg.Connection) -> None:
    outbox.add(connection, numbered(1))


def by_the_door_in_bulk(connection: psycopg.Connection) -> None:
    outbox.add(connection, numbered(1), numbered(2))


def by_pillarbox_add(connection: psycopg.Connection) -> None:
    connection.execute("SELECT pillarbox_add('order', '1', 'Changed', '{}', numbered => true)")


def by_the_target_list(connection: psycopg.Connection) -> None:
    """Make the mistake: the row has its id before its number is drawn."""
    connection.execute(
        "INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload, number) VALUES"
        " ('order', '1', 'Changed', 't', '{}', (SELECT last FROM pillarbox_draw_numbers('{order}', '{1}')))"
    )


def by_a_trigger(connection: psycopg.Connection) -> None:
    """Make the same mistake in a trigger."""
    connection.execute("""
        CREATE OR REPLACE FUNCTION draw() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            SELECT last INTO NEW.number FROM pillarbox_draw_numbers('{order}', '{1}'); RETURN NEW; END $$;
        CREATE OR REPLACE TRIGGER draw BEFORE INSERT ON pillarbox_outbox FOR EACH ROW WHEN (NEW.number IS NULL)
            EXECUTE FUNCTION draw();
        INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload)
            VALUES ('order', '1', 'Changed', 't', '{}')""")


@pytest.mark.parametrize(
    ("how", "numbers"),
    [
        (by_the_door, [1, 2, 3]),
        (by_the_door_in_bulk, [1, 2, 3]),
        (by_pillarbox_add, [1, 2, 3]),
        (by_the_target_list, [1, 3, 2]),
    ],
)
def test_numbers_follow_the_ids_however_transactions_wait_for_one_another(
    url: str, how: Callable[[psycopg.Connection], None], numbers: list[int]
) -> None:
    """The last one shows what would happen if a number were drawn where the row is made, and that this test sees it."""
    with psycopg.connect(url) as connection:
        by_the_door(connection)
        with meanwhile(url, how):
            by_the_door(connection)
            connection.commit()
    assert [number for id, number in read(url, "aggregate_id, number") if id == "1"] == numbers


def test_a_trigger_that_draws_numbers_would_break_their_order(url: str) -> None:
    with psycopg.connect(url) as connection:
        by_a_trigger(connection)
        connection.execute("DELETE FROM pillarbox_outbox")
        connection.execute("DELETE FROM pillarbox_numbers")
        connection.commit()
        insert = b"INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload)"
        values = b" VALUES ('order', '1', 'Changed', 't', '{}')"
        connection.execute(insert + values)
        with meanwhile(url, lambda other: (other.execute(insert + values), None)[1]):
            connection.execute(insert + values)
            connection.commit()
    assert read(url, "number") == [1, 3, 2]


def b_then_a_by_the_door(connection: psycopg.Connection) -> None:
    outbox.add(connection, numbered("b"), numbered("a"))


def b_then_a_by_the_function(connection: psycopg.Connection) -> None:
    connection.execute("SELECT pillarbox_draw_numbers('{order,order}', '{b,a}')")


@pytest.mark.parametrize("how", [b_then_a_by_the_door, b_then_a_by_the_function])
def test_aggregates_are_locked_in_one_order_whatever_the_order_of_the_events(
    url: str, how: Callable[[psycopg.Connection], None]
) -> None:
    """Were b locked before a, the two would wait for each other."""
    with psycopg.connect(url) as connection:
        outbox.add(connection, numbered("a"))
        with meanwhile(url, how):
            outbox.add(connection, numbered("b"))
            connection.commit()
    assert read(url, "last", "numbers", "aggregate_id") == [2, 2]


def test_keys_are_taken_in_one_order_whatever_the_order_of_the_events(url: str) -> None:
    with psycopg.connect(url) as connection:
        outbox.add(connection, keyed("a"))
        ignoring = {"on_duplicate": "ignore"}
        with meanwhile(url, lambda other: outbox.add(other, keyed("b"), keyed("a"), **ignoring)):  # type: ignore[arg-type]
            outbox.add(connection, keyed("b"))
            connection.commit()
    assert read(url, "idempotency_key") == ["a", "b"]


TRANSACTIONS, THREADS, AGGREGATES = 10_000, 8, 25


def test_many_transactions_over_many_aggregates_never_deadlock_and_number_without_gaps(url: str) -> None:
    def write(seed: int) -> None:
        chance = random.Random(seed)
        with psycopg.connect(url) as connection:
            for _ in range(TRANSACTIONS // THREADS):
                outbox.add(connection, *(numbered(id) for id in chance.sample(range(AGGREGATES), 3)))
                (connection.rollback if chance.random() < 0.05 else connection.commit)()

    with ThreadPoolExecutor(THREADS) as threads:
        for written in [threads.submit(write, seed) for seed in range(THREADS)]:
            written.result()
    numbers: dict[str, list[int]] = {}
    for id, number in read(url, "aggregate_id, number"):
        numbers.setdefault(id, []).append(number)
    assert sum(map(len, numbers.values())) > 3 * TRANSACTIONS * 0.9
    assert all(found == list(range(1, len(found) + 1)) for found in numbers.values())


def test_a_key_that_somebody_holds_is_waited_for_and_refused_after_his_commit(url: str) -> None:
    def try_it(other: psycopg.Connection) -> None:
        with pytest.raises(DuplicateEvent):
            outbox.add(other, keyed("a"))
        outbox.add(other, PING)  # the transaction is usable

    with psycopg.connect(url) as connection:
        outbox.add(connection, keyed("a"))
        with meanwhile(url, try_it):
            connection.commit()
    assert read(url, "event_type") == ["Paid", "Ping"]


def test_a_key_that_somebody_gives_up_is_free_for_the_one_who_waits(url: str) -> None:
    with psycopg.connect(url) as connection:
        outbox.add(connection, keyed("a"))
        with meanwhile(url, lambda other: outbox.add(other, keyed("a"))):
            connection.rollback()
    assert read(url, "event_type") == ["Paid"]


def test_of_many_who_want_a_key_one_gets_it(url: str) -> None:
    def write(seed: int) -> int:
        chance, refused = random.Random(seed), 0
        with psycopg.connect(url) as connection:
            for key in range(100):
                try:
                    outbox.add(connection, *(keyed(f"{key}-{n}") for n in chance.sample(range(3), 3)))
                except DuplicateEvent:
                    refused += 1
                connection.commit()
        return refused

    with ThreadPoolExecutor(THREADS) as threads:
        refused = sum(threads.map(write, range(THREADS)))
    assert refused == 100 * (THREADS - 1)
    assert len(read(url, "id")) == 300
    assert read(url, "key", "keys", "key") == sorted(read(url, "idempotency_key"))
