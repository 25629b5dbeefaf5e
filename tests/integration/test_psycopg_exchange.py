"""How psycopg's Inbox speaks with the server: few messages, and all that a cursor would have seen to."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.event import Event
from pillarbox.core.insert import Statement
from pillarbox.core.message import Message
from pillarbox.core.retry import RetryPolicy
from pillarbox.core.routing import Topics
from pillarbox.errors import StoreError, StoreUnavailable
from pillarbox.inbox.consumer import Consumer
from pillarbox.psycopg import AsyncInbox, Inbox
from pillarbox.psycopg.exchange import Exchange
from pillarbox.stores.postgres.connection import failures
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import SystemClock
from servers.postgres import Postgres
from tests.unit.consumer_bench import TOPIC, id_of, message

Connect = Any


@pytest.fixture
def db(migrated: str) -> Iterator["psycopg.Connection[Any]"]:
    with psycopg.connect(migrated, autocommit=True) as db:
        db.execute("CREATE TABLE effects (n int NOT NULL, level text DEFAULT current_setting('transaction_isolation'))")
        yield db


async def consume(connect: Connect, handle: Any, *messages: Message) -> tuple[int, list[tuple[Moment, Facts]]]:
    """Handle messages on a connection; give how many were handled, and what was told."""
    told: list[tuple[Moment, Facts]] = []
    broker = MemoryBroker()
    broker.receive(messages)
    inbox = Inbox("o'reilly", connect)
    inbox.handler("OrderPlaced")(handle)
    consumer = Consumer(
        inbox,
        lambda: broker.subscriber("billing", [TOPIC]),
        RetryPolicy(retries=2, jitter=0),
        1,
        Topics(),
        SystemClock(),
        Hooks(lambda moment, facts: told.append((moment, facts))),
    )
    return await consumer.run_once(patience=0.02), told


def bill(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
    connection.execute("INSERT INTO effects (n) VALUES (%s)", [event.payload["n"]])


def rows(db: "psycopg.Connection[Any]", sql: str) -> list[Any]:
    return db.execute(sql.encode()).fetchall()


@pytest.mark.parametrize("level", [None, *IsolationLevel])
async def test_a_transaction_is_begun_as_the_connection_is_set(
    db: "psycopg.Connection[Any]", migrated: str, level: IsolationLevel | None
) -> None:
    def connect() -> "psycopg.Connection[Any]":
        connection = psycopg.connect(migrated)
        connection.isolation_level, connection.deferrable = level, False
        return connection

    handled, _ = await consume(connect, bill, message(1))
    name = "read committed" if level is None else level.name.replace("_", " ").lower()
    assert (handled, rows(db, "SELECT n, level FROM effects")) == (1, [(1, name)])


async def test_a_connection_that_may_only_read_is_told_of_as_away(db: "psycopg.Connection[Any]", migrated: str) -> None:
    def connect() -> "psycopg.Connection[Any]":
        connection = psycopg.connect(migrated)
        connection.read_only = True
        return connection

    with pytest.raises(Exception, match="read-only transaction"):
        await consume(connect, bill, message(1))


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SJIS", "GBK"])
async def test_texts_arrive_as_they_are_whatever_the_client_encodes_in(
    db: "psycopg.Connection[Any]", migrated: str, encoding: str
) -> None:
    odd = {"UTF8": "é表'", "LATIN1": "é'", "SJIS": "表'", "GBK": "中'"}[encoding]
    id = f"a'b\\c{odd};--\n%s {{x}} $1"
    one = message(1, f"7'\\{odd}")
    given = one._replace(headers={**one.headers, "id": id})
    handled, _ = await consume(lambda: psycopg.connect(migrated, client_encoding=encoding), bill, given, given)
    assert (handled, rows(db, "SELECT n FROM effects")) == (1, [(1,)])
    assert rows(db, "SELECT consumer, event_id FROM pillarbox_inbox") == [
        ("o'reilly", f"{TOPIC}/{id.replace('%', '%25')}")
    ]


async def test_a_connection_in_autocommit_has_transactions_all_the_same(
    db: "psycopg.Connection[Any]", migrated: str
) -> None:
    def fails(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
        bill(connection, event)
        if event.payload["n"] == 1:
            raise RuntimeError("no")

    handled, _ = await consume(lambda: psycopg.connect(migrated, autocommit=True), fails, message(1), message(2, "8"))
    assert (handled, rows(db, "SELECT n FROM effects")) == (1, [(2,)])


async def test_one_that_commits_and_goes_on_is_told_of_and_loses_nothing(
    db: "psycopg.Connection[Any]", migrated: str
) -> None:
    def commits(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
        bill(connection, event)
        connection.commit()
        connection.execute("INSERT INTO effects (n) VALUES (10)")

    def connect() -> "psycopg.Connection[Any]":
        return psycopg.connect(migrated, options="-c client_min_messages=error")

    handled, told = await consume(connect, commits, message(1))
    assert (handled, rows(db, "SELECT n FROM effects ORDER BY n")) == (1, [(1,), (10,)])
    assert [moment for moment, _ in told if moment is Moment.HANDLER_COMMITTED] == [Moment.HANDLER_COMMITTED]


async def test_one_that_rolls_back_and_goes_on_keeps_nothing(db: "psycopg.Connection[Any]", migrated: str) -> None:
    def undoes(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
        connection.rollback()
        bill(connection, event)

    handled, _ = await consume(lambda: psycopg.connect(migrated), undoes, message(1))
    assert (handled, rows(db, "SELECT n FROM effects")) == (0, [])
    [(state, error)] = rows(db, "SELECT state, last_error FROM pillarbox_inbox_parked")
    assert state == "retrying"
    assert "rolled back the transaction" in error


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_server_that_ends_the_session_is_away_and_nothing_is_lost(
    db: "psycopg.Connection[Any]", migrated: str, when: str
) -> None:
    tries: list[int] = []

    def ended(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
        tries.append(event.payload["n"])
        for step in ("before", "after"):
            if when == step and len(tries) == 1:
                db.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
            if step == "before" and not (when == "before" and len(tries) == 1):
                bill(connection, event)

    with pytest.raises(StoreUnavailable, match="PostgreSQL is away"):
        await consume(lambda: psycopg.connect(migrated), ended, message(1))
    assert rows(db, "SELECT n FROM effects") == []
    assert (await consume(lambda: psycopg.connect(migrated), ended, message(1)))[0] == 1
    assert rows(db, "SELECT n FROM effects") == [(1,)]
    assert rows(db, "SELECT state FROM pillarbox_inbox_parked") == []


async def test_one_event_takes_one_message_beside_its_handlers(
    db: "psycopg.Connection[Any]", migrated: str, tmp_path: Path
) -> None:
    """Our row, then what the handler does, then the check with COMMIT, and BEGIN with the next one's row."""
    path = tmp_path / "trace"
    with path.open("w") as traced:

        def connect() -> "psycopg.Connection[Any]":
            connection = psycopg.connect(migrated)
            connection.pgconn.trace(traced.fileno())
            return connection

        await consume(connect, bill, *(message(n, str(n)) for n in range(10)))
    sent = [line for line in path.read_text().splitlines() if "\tF\t" in line and "Query" in line]
    ours = [line for line in sent if "pillarbox_receive(" in line or "pillarbox_keep_received(" in line]
    assert len(ours) == 11
    assert len([line for line in ours if "COMMIT" in line and "BEGIN" in line]) == 9
    assert ("COMMIT" in ours[0], "BEGIN" in ours[-1]) == (False, False)


async def test_what_fails_at_its_end_leaves_what_was_to_follow_alone(
    db: "psycopg.Connection[Any]", migrated: str
) -> None:
    """By its row, by an error that it swallowed, and by a constraint that waits for the commit."""
    db.execute("CREATE TABLE parents (n int PRIMARY KEY)")
    db.execute("CREATE TABLE children (n int REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
    tries: list[int] = []

    def ends(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
        tries.append(event.payload["n"])
        if event.payload["n"] == 2:
            connection.rollback()
        if event.payload["n"] == 4:
            with suppress(psycopg.Error):
                connection.execute("SELECT 1 / 0")
            return
        if event.payload["n"] == 6:
            connection.execute("INSERT INTO children VALUES (1)")
        bill(connection, event)

    handled, _ = await consume(lambda: psycopg.connect(migrated), ends, *(message(n, str(n)) for n in range(1, 8)))
    assert (handled, rows(db, "SELECT n FROM effects ORDER BY n")) == (4, [(1,), (3,), (5,), (7,)])
    assert sorted(tries) == [1, 2, 3, 4, 5, 6, 7]
    parked = rows(db, "SELECT event_id, attempts, last_error FROM pillarbox_inbox_parked ORDER BY event_id")
    assert [(id, attempts) for id, attempts, _ in parked] == [(id_of(n), 1) for n in (2, 4, 6)]
    for (_, _, error), words in zip(parked, ("rolled back", "swallowed", "refused at the commit"), strict=True):
        assert words in error


async def test_what_cannot_begin_does_not_undo_the_one_before_it(db: "psycopg.Connection[Any]", migrated: str) -> None:
    """Somebody has the second one's row for a while: whether the first one was committed is found out by its copy."""
    with psycopg.connect(migrated) as other:
        other.execute("INSERT INTO pillarbox_inbox (consumer, event_id) VALUES ('o''reilly', %s)", [id_of(2)])
        tries: list[int] = []

        def counts(connection: "psycopg.Connection[Any]", event: Event[Any]) -> None:
            tries.append(event.payload["n"])
            bill(connection, event)

        with pytest.raises(StoreUnavailable):
            await consume(
                lambda: psycopg.connect(migrated, options="-c lock_timeout=50ms"), counts, message(1), message(2, "8")
            )
        assert (tries, rows(db, "SELECT n FROM effects")) == ([1], [(1,)])
    await consume(lambda: psycopg.connect(migrated), counts, message(1), message(2, "8"))
    assert (tries, rows(db, "SELECT n FROM effects")) == ([1], [(1,)])
    assert rows(db, "SELECT event_id FROM pillarbox_inbox ORDER BY event_id") == [(id_of(1),), (id_of(2),)]
    assert rows(db, "SELECT * FROM pillarbox_inbox_parked") == []


def test_a_server_that_went_down_at_once_is_away(own_postgres: Callable[[str], Postgres]) -> None:
    """Over a Unix socket libpq cannot send any more, and says so before it knows that the connection is gone."""
    server = own_postgres("15")
    with psycopg.connect(server.url(), host=str(server.directory), autocommit=True) as connection:
        pid = connection.info.backend_pid
        os.kill(pid, signal.SIGQUIT)  # as an immediate shutdown does to each backend
        deadline = time.monotonic() + 30
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pytest.raises(StoreUnavailable):
            Exchange(connection).run(Statement("SELECT 1"))


class EndedAtCommit(psycopg.AsyncConnection[Any]):
    """A session that is ended between the answer to its COMMIT and the server's being ready: two answers come. When
    that happens is chance; this is what psycopg makes of it."""

    def _exec_command(self, command: Any, *more: Any) -> Any:
        result = yield from super()._exec_command(command, *more)
        if command == b"COMMIT":
            raise psycopg.InternalError("received 2 results from command 'COMMIT'")
        return result


async def test_a_session_that_is_ended_in_the_middle_of_its_commit_is_an_outage(
    db: "psycopg.Connection[Any]", migrated: str
) -> None:
    inbox = AsyncInbox("billing", lambda: EndedAtCommit.connect(migrated))

    def program() -> Iterator[Any]:
        yield Statement("INSERT INTO effects (n) VALUES (1)")

    with pytest.raises(StoreUnavailable, match="PostgreSQL is away: received 2 results"):
        await inbox.perform(cast(Any, program()))
    await inbox.close()
    assert rows(db, "SELECT n FROM effects") == [(1,)], "so whoever tries again has to find out"


@pytest.mark.parametrize(
    ("error", "ours"),
    [(psycopg.InternalError("received 2 results"), StoreUnavailable), (errors.InternalError_("a page is"), StoreError)],
)
def test_only_an_error_of_psycopgs_own_is_an_outage_to_a_relay(error: psycopg.Error, ours: type[StoreError]) -> None:
    with pytest.raises(StoreError) as raised, failures():
        raise error
    assert type(raised.value) is ours
