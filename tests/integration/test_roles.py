"""The four roles: each can do its work, and nothing else."""

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors

from pillarbox import Relay, Settings
from pillarbox.core.event import Event
from pillarbox.core.message import Message
from pillarbox.errors import DuplicateEvent, PublishRejected, StoreError
from pillarbox.ports import Query, Retention, Side
from pillarbox.psycopg import Inbox, Outbox
from pillarbox.wiring import open_admin
from servers.postgres import RunningPostgres
from tests.integration.postgres_shop import made, roles

outbox = Outbox()
EVENTS: list[Event[Any]] = [
    Event("Placed", {}, aggregate=("order", 1)),
    Event("Placed", {}, aggregate=("order", 1), numbered=True, idempotency_key="k", headers={"a": "b"}),
    Event("Label", b"%PDF", content_type="application/pdf"),
]
RIGHTS = {
    "writer": {"outbox": "i"},
    "consumer": {"inbox": "SID", "inbox_shared": "SID", "inbox_parked": "SIUD", "inbox_numbers": "SIU"},
    "relay": {
        "outbox": "SD", "ticks": "SIuD", "lanes": "SU", "relays": "SIUD", "parked": "SIUD", "numbers": "S",
        "keys": "SD", "pauses": "SID", "archive": "SID", "audit": "SIu", "meta": "SIU", "replays": "SIU",
        "slot": "SIUD", "notes": "SID", "inbox": "SD", "inbox_parked": "SUD", "inbox_numbers": "S", "events": "S",
        "events_brief": "S",
    },
    "viewer": {
        "outbox": "s", "parked": "s", "archive": "s", "inbox_parked": "s", "ticks": "S", "lanes": "S", "relays": "S",
        "pauses": "S", "audit": "S", "meta": "S", "replays": "S", "slot": "S", "notes": "S", "inbox": "S",
        "inbox_numbers": "S", "events_brief": "S",
    },
}  # fmt: skip
"""What each role may do to which table or view, by initials of SELECT, INSERT, UPDATE, DELETE and the rest; in small
letters to some of its columns only. What is not here, nobody may."""
SIDES: tuple[Side, ...] = ("outbox", "inbox")
PARK = (
    "SELECT pillarbox_park_received('billing', '{}', 'dead', NULL, NULL, 1, 'no', NULL, now(), 't', NULL, '{{}}',"
    " '', '', '', 'Placed', NULL, NULL)"
)
As = Callable[[str], psycopg.Connection]


@pytest.fixture(scope="module")
def url(postgres: RunningPostgres) -> Iterator[str]:
    name = f"roles_{uuid.uuid4().hex}"
    url = made(postgres.create_database(name))
    with psycopg.connect(url) as connection:
        connection.execute(roles())
    yield url
    postgres.drop_database(name)


@pytest.fixture
def become(url: str) -> Iterator[As]:
    """Gives a connection with the rights of one role, in autocommit."""
    opened = []

    def become(role: str) -> psycopg.Connection:
        opened.append(psycopg.connect(url, autocommit=True))
        opened[-1].execute(f"SET ROLE pillarbox_{role}".encode())
        return opened[-1]

    yield become
    for connection in opened:
        connection.close()


def refused(connection: psycopg.Connection, statement: str) -> bool:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement.encode())
    except errors.InsufficientPrivilege:
        return True
    return False


@pytest.fixture(scope="module")
def tables(url: str) -> dict[str, str]:
    """Each of our tables, with one of its columns that could be updated."""
    with psycopg.connect(url) as connection:
        found = connection.execute(
            r"SELECT substr(relname, 11), min(attname) FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid"
            r" WHERE relkind IN ('r', 'p') AND relname LIKE 'pillarbox\_%' AND relnamespace = 'public'::regnamespace"
            r" AND attnum > 0 AND attgenerated = '' GROUP BY 1"
        ).fetchall()
    return {str(table): str(column) for table, column in found}


@pytest.mark.parametrize("role", RIGHTS)
def test_a_role_has_these_rights_and_no_others(url: str, role: str) -> None:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            r"SELECT substr(relname, 11), string_agg("
            r" CASE WHEN has_table_privilege(%(role)s, c.oid, verb) THEN left(verb, 1)"
            r" WHEN verb NOT IN ('DELETE', 'TRUNCATE', 'TRIGGER')"
            r" AND has_any_column_privilege(%(role)s, c.oid, verb) THEN lower(left(verb, 1)) ELSE '' END,"
            r" '' ORDER BY n)"
            r" FROM pg_class c, unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES',"
            r" 'TRIGGER']) WITH ORDINALITY verbs (verb, n)"
            r" WHERE relkind IN ('r', 'p', 'v', 'm', 'f') AND relname LIKE 'pillarbox\_%%'"
            r" AND relnamespace = 'public'::regnamespace GROUP BY 1",
            {"role": f"pillarbox_{role}"},
        ).fetchall()
    assert {table: rights for table, rights in found if rights} == RIGHTS[role]
    assert {table for table, _ in found} >= {"outbox", "replays", "inbox_shared", "events"}


@pytest.mark.parametrize("role", RIGHTS)
def test_no_role_moves_a_sequence(url: str, become: As, role: str) -> None:
    with psycopg.connect(url) as connection:
        sequences = [name for (name,) in connection.execute(
            r"SELECT relname FROM pg_class WHERE relkind = 'S' AND relname LIKE 'pillarbox\_%'"
            r" AND relnamespace = 'public'::regnamespace"
        )]  # fmt: skip
    assert len(sequences) >= 4
    person = become(role)
    for sequence in sequences:
        assert refused(person, f"SELECT nextval('{sequence}')"), sequence
        assert refused(person, f"SELECT setval('{sequence}', 1)"), sequence
        may_look = role in ("relay", "viewer") and sequence == "pillarbox_outbox_id_seq"
        assert refused(person, f"SELECT last_value FROM {sequence}") != may_look, sequence


@pytest.mark.parametrize("role", RIGHTS)
def test_only_a_writer_calls_what_runs_with_the_owners_rights(url: str, role: str) -> None:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            r"SELECT substr(proname, 11) FROM pg_proc WHERE prosecdef AND proname LIKE 'pillarbox\_%%'"
            r" AND has_function_privilege(%s, oid, 'EXECUTE') ORDER BY 1",
            [f"pillarbox_{role}"],
        ).fetchall()
    assert [name for (name,) in found] == (["draw_numbers", "take_keys"] if role == "writer" else [])


@pytest.mark.parametrize("role", ["writer", "consumer", "viewer"])
def test_what_a_relay_calls_does_nothing_for_others(become: As, role: str) -> None:
    """Functions run with the rights of who calls them: what they do is refused there."""
    person = become(role)
    for call in (
        "take('x', '{}', '15 s', NULL, NULL)",
        "prune('0', '0', '0', 10, 10)",
        "adopt('me')",
        "begin_whole('x', 't')",
        "thin_ticks(now(), 10)",
    ):
        assert refused(person, f"SELECT pillarbox_{call}"), call


def test_the_script_can_be_run_again_and_changes_nothing(url: str) -> None:
    rights = (
        "SELECT grantee, table_name, privilege_type FROM information_schema.role_table_grants"
        " WHERE grantee LIKE 'pillarbox_%' ORDER BY 1, 2, 3"
    )
    with psycopg.connect(url) as connection:
        before = connection.execute(rights.encode()).fetchall()
        connection.execute(roles())
        assert before
        assert connection.execute(rights.encode()).fetchall() == before


def test_a_writer_adds_every_kind_of_event(become: As, url: str) -> None:
    writer = become("writer")
    with writer.transaction():
        outbox.add(writer, EVENTS[0])
        outbox.add(writer, EVENTS[0], EVENTS[0])
        outbox.add(writer, *EVENTS)
        with pytest.raises(DuplicateEvent):
            outbox.add(writer, EVENTS[1])
        Outbox(notify=True).add(writer, EVENTS[0])
        writer.execute(
            "INSERT INTO pillarbox_outbox (topic, aggregate_type, aggregate_id, event_type, payload)"
            " VALUES ('order-events', 'order', '1', 'Placed', '{}')"
        )
        writer.execute("SELECT pillarbox_add('order', '1', 'P', '{}', numbered => true, idempotency_key => 'q')")
        writer.execute("SELECT pillarbox_add('order', 1, 'P', '{}'::jsonb, numbered => true, idempotency_key => 'r')")
        with writer.cursor().copy("COPY pillarbox_outbox (event_type, topic, payload) FROM STDIN") as copy:
            copy.write_row(("Copied", "events", "{}"))
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT count(*), max(number) FROM pillarbox_outbox").fetchone()
        connection.execute("DELETE FROM pillarbox_outbox; DELETE FROM pillarbox_keys")
    assert found == (11, 3)


def test_a_writer_reads_and_changes_nothing(become: As, tables: dict[str, str]) -> None:
    writer = become("writer")
    for table, column in tables.items():
        name = f"pillarbox_{table}"
        assert refused(writer, f"SELECT 1 FROM {name}"), table
        assert refused(writer, f"SELECT {column} FROM {name}"), table
        assert refused(writer, f"UPDATE {name} SET {column} = DEFAULT"), table
        assert refused(writer, f"DELETE FROM {name}"), table
        assert refused(writer, f"TRUNCATE {name}"), table
        assert refused(writer, f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE"), table
        assert table == "outbox" or refused(writer, f"INSERT INTO {name} DEFAULT VALUES"), table


@pytest.mark.parametrize("column", ["xid", "id", "lane"])
def test_a_writer_cannot_forge_a_place_in_the_log(become: As, column: str) -> None:
    writer = become("writer")
    insert = "INSERT INTO pillarbox_outbox ({}, event_type, topic, payload) {} VALUES ({}, 'X', 't', '{{}}')"
    override = "OVERRIDING SYSTEM VALUE" if column == "id" else ""
    with pytest.raises((errors.InsufficientPrivilege, errors.GeneratedAlways)):
        writer.execute(insert.format(column, override, "'5'").encode())
    with (
        pytest.raises((errors.InsufficientPrivilege, errors.InvalidColumnReference)),
        writer.cursor().copy(
            f"COPY pillarbox_outbox ({column}, event_type, topic, payload) FROM STDIN".encode()
        ) as copy,
    ):
        copy.write_row(("5", "X", "t", "{}"))


def test_a_writer_cannot_get_rows_back(become: As) -> None:
    writer = become("writer")
    insert = "INSERT INTO pillarbox_outbox (event_type, topic, payload) VALUES ('X', 't', '{}')"
    assert refused(writer, f"{insert} RETURNING id")
    assert refused(writer, f"{insert} ON CONFLICT (id) DO UPDATE SET topic = 'mine'")


@pytest.mark.parametrize("role", ["viewer", "relay"])
def test_nobody_else_adds_events(become: As, role: str) -> None:
    other = become(role)
    with other.transaction(force_rollback=True), pytest.raises(StoreError, match="the writer's role"):
        outbox.add(other, EVENTS[0])
    assert refused(other, "SELECT pillarbox_add('order', '1', 'Placed', '{}')")
    assert refused(other, "SELECT pillarbox_add('order', 1, 'Placed', '{}'::jsonb)")
    assert refused(other, "SELECT pillarbox_draw_numbers('{order}', '{1}')")
    assert refused(other, "SELECT pillarbox_take_keys('{k}', ARRAY[gen_random_uuid()])")


@pytest.mark.parametrize("table", ["outbox", "parked", "archive"])
@pytest.mark.parametrize("column", ["payload", "body", "headers"])
def test_a_viewer_sees_no_contents(become: As, table: str, column: str) -> None:
    viewer = become("viewer")
    assert refused(viewer, f"SELECT {column} FROM pillarbox_{table}")
    assert refused(viewer, f"SELECT * FROM pillarbox_{table}")
    assert not refused(viewer, f"SELECT event_id, topic, event_type FROM pillarbox_{table}")


def test_a_viewer_sees_every_other_column_of_the_log(become: As, url: str) -> None:
    with psycopg.connect(url) as connection:
        columns = connection.execute(
            "SELECT string_agg(attname, ', ') FROM pg_attribute WHERE attrelid = 'pillarbox_outbox'::regclass"
            " AND attnum > 0 AND attname NOT IN ('payload', 'body', 'headers')"
        ).fetchone()
    assert columns is not None
    assert not refused(become("viewer"), f"SELECT {columns[0]} FROM pillarbox_outbox")


@pytest.mark.parametrize("column", ["body", "headers", "traceback"])
def test_a_viewer_sees_no_contents_of_what_was_received(become: As, column: str) -> None:
    viewer = become("viewer")
    assert refused(viewer, f"SELECT {column} FROM pillarbox_inbox_parked")
    assert refused(viewer, "SELECT * FROM pillarbox_inbox_parked")
    assert not refused(viewer, "SELECT event_id, state, last_error FROM pillarbox_inbox_parked")


def test_a_viewer_looks_through_the_view_without_contents(become: As) -> None:
    viewer = become("viewer")
    assert refused(viewer, "SELECT event_id FROM pillarbox_events")
    assert not refused(viewer, "SELECT * FROM pillarbox_events_brief")


def test_a_viewer_changes_nothing(become: As, tables: dict[str, str]) -> None:
    viewer = become("viewer")
    for table, column in tables.items():
        name = f"pillarbox_{table}"
        assert refused(viewer, f"INSERT INTO {name} DEFAULT VALUES"), table
        assert refused(viewer, f"UPDATE {name} SET {column} = DEFAULT"), table
        assert refused(viewer, f"DELETE FROM {name}"), table
        assert refused(viewer, f"TRUNCATE {name}"), table


def test_a_consumer_keeps_its_inbox_and_nothing_else(become: As, tables: dict[str, str]) -> None:
    consumer = become("consumer")
    inbox = Inbox("billing", lambda: consumer)
    with consumer.transaction(force_rollback=True):
        assert inbox.first_time(consumer, "1")
    with consumer.transaction(force_rollback=True):
        consumer.execute("SELECT pillarbox_receive('billing', '1', NULL, 'order', '7', NULL, false)")
        consumer.execute(PARK.format(2).encode())
    for table in tables:
        assert refused(consumer, f"SELECT * FROM pillarbox_{table}") == (table not in RIGHTS["consumer"]), table
        assert refused(consumer, f"DELETE FROM pillarbox_{table}") == ("D" not in RIGHTS["consumer"].get(table, ""))


def test_a_consumer_that_adds_events_needs_the_writers_role_too(become: As) -> None:
    consumer = become("consumer")
    inbox, both = Inbox("billing", lambda: consumer), f"both_{uuid.uuid4().hex}"
    with consumer.transaction(force_rollback=True), pytest.raises(StoreError, match="the writer's role"):
        outbox.add(consumer, *EVENTS)
    consumer.execute(f"RESET ROLE; CREATE ROLE {both}; GRANT pillarbox_consumer, pillarbox_writer TO {both}".encode())
    consumer.execute(f"SET ROLE {both}".encode())
    with consumer.transaction(force_rollback=True):
        assert inbox.first_time(consumer, "1")
        outbox.add(consumer, *EVENTS)
    consumer.execute(f"RESET ROLE; DROP ROLE {both}".encode())


def test_a_relay_reads_the_log_and_deletes_what_is_settled_but_never_changes_it(become: As) -> None:
    relay = become("relay")
    assert not refused(relay, "SELECT * FROM pillarbox_outbox")
    assert not refused(relay, "DELETE FROM pillarbox_outbox")
    assert not refused(relay, "SELECT last_value FROM pillarbox_outbox_id_seq")
    assert not refused(relay, "SELECT pillarbox_cluster(), pillarbox_now()")
    assert refused(relay, "UPDATE pillarbox_outbox SET topic = topic")
    assert refused(relay, "INSERT INTO pillarbox_outbox (event_type, topic, payload) VALUES ('X', 't', '{}')")
    assert refused(relay, "TRUNCATE pillarbox_outbox")


def test_a_function_that_runs_with_its_owners_rights_cannot_be_led_astray(become: As, url: str) -> None:
    """A table of the writer's own stands in front of ours in his search_path, with a trap behind it."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE SCHEMA trap; GRANT ALL ON SCHEMA trap TO pillarbox_writer")
    writer = become("writer")
    writer.execute("CREATE TABLE trap.pillarbox_keys (key text)")
    writer.execute("CREATE FUNCTION trap.unnest(text[], uuid[]) RETURNS int LANGUAGE sql AS 'SELECT 1 / 0'")
    writer.execute("SET search_path = trap, public")
    with writer.transaction():
        outbox.add(writer, EVENTS[1])
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT key FROM public.pillarbox_keys").fetchall() == [("k",)]
        fixed = connection.execute(
            "SELECT count(*) FROM pg_proc WHERE proname LIKE 'pillarbox%' AND prosecdef"
            " AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)"
        ).fetchone()
    assert fixed == (0,)


@pytest.fixture
def logged_in(postgres: RunningPostgres, database: str) -> Iterator[Callable[[str], str]]:
    """Gives the URL of a migrated database for a user with one of the roles."""
    users = []
    pillarbox("migrate", "up", "--database", database)
    with psycopg.connect(database) as connection:
        connection.execute(roles())

    def log_in(role: str) -> str:
        users.append(f"{role}_{uuid.uuid4().hex}")
        with psycopg.connect(database) as connection:
            connection.execute(f"CREATE ROLE {users[-1]} LOGIN IN ROLE pillarbox_{role}".encode())
        return postgres.url(database.rpartition("/")[2], user=users[-1])

    yield log_in
    for user in users:
        postgres.execute(f"DROP ROLE {user}")


def pillarbox(*arguments: str) -> str:
    command = [sys.executable, "-m", "pillarbox", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_role_is_enough_for_its_program(logged_in: Callable[[str], str]) -> None:
    with psycopg.connect(logged_in("writer")) as connection:
        outbox.add(connection, *EVENTS)
    relayed = pillarbox("relay", "once", "--database", logged_in("relay"), "--broker", "stdout:")
    assert relayed.count("topic") == len(EVENTS)
    seen = pillarbox("events", "list", "--database", logged_in("viewer"))
    assert seen.count("published") == len(EVENTS)


async def test_the_relays_role_is_enough_for_an_operator(logged_in: Callable[[str], str]) -> None:
    def refuse(messages: list[Message]) -> None:
        raise PublishRejected("no")

    with psycopg.connect(logged_in("writer")) as connection:
        outbox.add(connection, *(Event("Placed", {}, aggregate=("order", n)) for n in (1, 2)))
    with psycopg.connect(logged_in("consumer")) as connection:
        assert Inbox("billing", lambda: connection).first_time(connection, "1")
        for id in "23":
            connection.execute(PARK.format(id).encode())
    settings = Settings(database=logged_in("relay"))
    async with open_admin(settings) as admin:
        assert await admin.pause("order-events", "stock-taking") is None
        assert await admin.resume("order-events")
        await Relay(settings, publish=refuse).run_once()
        for side in SIDES:
            first, second = await admin.find(Query(side=side, status=("dead",)))
            assert await admin.retry(Query(side=side, ids=(first.event_id,))) == 1
            assert await admin.drop(Query(side=side, ids=(second.event_id,))) == 1
        await Relay(settings, publish=lambda messages: None).run_once()
        assert (await admin.replay(Query(topic="order-events"))).events == 1
        await Relay(settings, publish=lambda messages: None).run_once()
        assert await admin.prune(Retention(timedelta(0), timedelta(days=1), timedelta(0))) > 0
        assert await admin.prune(Retention(timedelta(0), timedelta(0), timedelta(0))) > 0
        assert {deed.what.split()[0] for deed in await admin.deeds()} >= {"pause", "resume", "retry", "drop", "replay"}
