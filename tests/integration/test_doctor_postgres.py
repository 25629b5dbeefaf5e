"""`pillarbox doctor` on PostgreSQL: each fault is planted in a real server, and found."""

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from pillarbox import ConfigError, Event, Settings
from pillarbox.admin.doctor import Facts, Finding, examine
from pillarbox.errors import StoreError
from pillarbox.facts import PostgresFacts
from pillarbox.psycopg import Outbox
from pillarbox.settings import OutboxSettings
from pillarbox.sqlalchemy import outbox_table
from pillarbox.stores.postgres.facts import Looking
from pillarbox.stores.postgres.schema import Tables
from pillarbox.wiring import Relay, SystemClock, open_admin, open_doctor
from servers.pgbouncer import PgBouncer
from servers.postgres import Postgres, RunningPostgres
from servers.process import free_port
from tests.conftest import EVERY_POSTGRES, FAKETIME, installed, skip_unless_ours
from tests.integration.postgres_shop import made, roles, tables
from tests.integration.postgres_world import soon

Execute = Callable[..., None]
SHARED = {"fsync", "rights"}
"""What the server of the tests itself is found to lack: it keeps nothing through a power cut, and we are superuser."""


async def gather(url: str) -> Facts:
    return await open_doctor(Settings(database=url)).gather()


def troubles(facts: Facts, *, but: set[str] = SHARED) -> list[Finding]:
    """What was found, but for some checks and what was not looked at (these servers have no broker)."""
    found = [finding for finding in examine(facts) if finding.severity != "fine" and finding.check not in but]
    return [finding for finding in found if not finding.line.startswith("not looked at: ")]


async def found(url: str) -> list[tuple[str, str]]:
    return [(finding.severity, finding.check) for finding in troubles(await gather(url))]


@pytest.fixture
def execute(migrated: str) -> Execute:
    def execute(*statements: str) -> None:
        with psycopg.connect(migrated, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    return execute


@pytest.fixture
def user(postgres: RunningPostgres, migrated: str, execute: Execute) -> Iterator[str]:
    """The name of a user with the rights of a relay, in a database with the roles."""
    skip_unless_ours()
    name = f"user_{uuid.uuid4().hex}"
    with psycopg.connect(migrated) as connection:
        connection.execute(roles())
    execute(f"CREATE ROLE {name} LOGIN IN ROLE pillarbox_relay, pg_read_all_stats")
    yield name
    execute(f"DROP OWNED BY {name}")
    postgres.execute(f"DROP ROLE {name}")


@pytest.fixture
def other(user: str, postgres: RunningPostgres, execute: Execute) -> Iterator[str]:
    """The name of another user, who may do nothing yet."""
    name = f"other_{uuid.uuid4().hex}"
    execute(f"CREATE ROLE {name} LOGIN")
    yield name
    execute(f"DROP OWNED BY {name}")
    postgres.execute(f"DROP ROLE {name}")


def as_user(url: str, user: str) -> str:
    return url.replace("postgres@", f"{user}@", 1)


def add(url: str) -> None:
    with psycopg.connect(url) as connection:
        Outbox().add(connection, Event("Placed", {}, aggregate=("order", 1)))


@pytest.fixture(scope="module")
def durable() -> Iterator[Postgres]:
    """A server as one should be."""
    skip_unless_ours()
    with installed(lambda: Postgres("15", fsync=True)) as server:
        yield server


async def switch_off(server: Postgres, name: str) -> None:
    server.execute(f"ALTER SYSTEM SET {name} = off")
    server.execute("SELECT pg_reload_conf()")
    await soon(lambda: server.execute(f"SHOW {name}") == [("off",)], f"{name} is off")


async def mend(server: Postgres, finding: Finding, name: str) -> None:
    for statement in finding.commands[0].split("; "):
        server.execute(statement)
    await soon(lambda: server.execute(f"SHOW {name}") == [("on",)], f"{name} is on")


async def test_a_server_that_is_well_yields_nothing(durable: Postgres) -> None:
    await check_well(durable)


@pytest.mark.soak
@pytest.mark.parametrize("major", ["17", "18"])
async def test_a_newer_server_that_is_well_yields_nothing(major: str) -> None:
    skip_unless_ours()
    with installed(lambda: Postgres(major, fsync=True)) as server:
        await check_well(server)


async def check_well(server: Postgres) -> None:
    url = made(server.create_database("well"))
    with psycopg.connect(url) as connection:
        connection.execute(roles())
        connection.execute("CREATE ROLE carrier LOGIN IN ROLE pillarbox_relay, pg_read_all_stats")
    add(url)
    mine = server.url("well", user="carrier")
    assert await Relay(database=mine, publish=lambda messages: None).run_once() == 1
    assert troubles(await gather(mine), but=set()) == []


async def test_fsync_and_full_page_writes_that_are_off_are_found(durable: Postgres) -> None:
    url = made(durable.create_database("lax"))
    for name in ("fsync", "full_page_writes"):
        await switch_off(durable, name)
        (finding,) = troubles(await gather(url), but={"rights"})
        assert (finding.severity, finding.check) == ("problem", "fsync")
        assert finding.line.startswith(f"{name} is off: ")
        await mend(durable, finding, name)


async def test_a_server_that_is_away_is_found(durable: Postgres) -> None:
    (finding,) = troubles(await gather(durable.url("shop").replace(str(durable.port), str(free_port()))))
    assert (finding.severity, finding.check) == ("problem", "database")
    assert finding.line.startswith("the database cannot be read: PostgreSQL is away: ")


async def test_a_server_that_does_not_let_us_in_is_found(durable: Postgres) -> None:
    made(durable.create_database("guarded"))
    durable.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
    file = Path(durable.execute("SHOW hba_file")[0][0])
    file.write_text(f"host guarded guest 127.0.0.1/32 scram-sha-256\n{file.read_text()}")
    durable.execute("SELECT pg_reload_conf()")
    mine = durable.url("guarded", user="guest:hunter2")
    await soon(lambda: refused(mine), "a password is asked for")
    (finding,) = troubles(await gather(mine))
    assert (finding.severity, finding.check) == ("problem", "database")
    assert 'password authentication failed for user "guest"' in finding.line
    assert "hunter2" not in finding.line
    (finding,) = troubles(await gather(durable.url("nowhere")))
    assert (finding.severity, finding.check) == ("problem", "database")
    assert (
        'database "nowhere" does not exist: make it (`createdb nowhere`, then `pillarbox migrate up`)' in finding.line
    )


def refused(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return True
    return False


async def test_a_database_that_cannot_hold_every_event_is_found(durable: Postgres) -> None:
    durable.execute("CREATE DATABASE narrow ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    tables, kind = sorted(troubles(await gather(durable.url("narrow"))), key=lambda one: one.check, reverse=True)
    assert tables.check == "version of the tables"
    assert (kind.severity, kind.check) == ("problem", "kind of server")
    assert kind.line.startswith("no relay starts on this server: database: its encoding is LATIN1, which cannot hold")


async def test_a_standby_is_found(durable: Postgres) -> None:
    made(durable.create_database("copied"))
    standby = durable.standby()
    try:
        standby.wait_until_replayed(durable)
        assert ("problem", "primary") in await found(standby.url("copied"))
    finally:
        standby.close()


async def test_a_database_without_tables_is_found(database: str) -> None:
    assert await found(database) == [("problem", "version of the tables")]


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("DROP INDEX pillarbox_outbox_xid", "the index public.pillarbox_outbox_xid is missing"),
        ("DROP TABLE pillarbox_keys", "the table public.pillarbox_keys is missing"),
        (
            "ALTER TABLE pillarbox_archive DROP COLUMN attempts CASCADE",
            "the column attempts of public.pillarbox_archive",
        ),
        ("ALTER TABLE pillarbox_parked SET UNLOGGED", "the table public.pillarbox_parked is unlogged: a crash"),
        ("DROP VIEW pillarbox_events_brief", "the view public.pillarbox_events_brief is missing"),
        (
            "ALTER TABLE pillarbox_outbox ADD COLUMN tenant text NOT NULL",
            "the column tenant of public.pillarbox_outbox is not ours, and cannot be empty",
        ),
        (
            "CREATE OR REPLACE FUNCTION pillarbox_now() RETURNS timestamptz LANGUAGE sql AS 'SELECT now()'",
            "the function public.pillarbox_now is another one",
        ),
        ("DROP FUNCTION pillarbox_pending_above()", "the function public.pillarbox_pending_above is missing"),
        (
            "ALTER TABLE pillarbox_inbox_shared DISABLE TRIGGER pillarbox_inbox_shared_open",
            "the trigger pillarbox_inbox_shared_open of public.pillarbox_inbox_shared is disabled",
        ),
    ],
)
async def test_tables_that_somebody_has_changed_are_found(
    migrated: str, execute: Execute, fault: str, what: str
) -> None:
    execute(fault)
    found = [finding for finding in troubles(await gather(migrated)) if finding.check == "tables"]
    assert any(finding.line.startswith(what) for finding in found), found


@pytest.mark.parametrize("database", EVERY_POSTGRES, indirect=True)
async def test_tables_as_the_command_makes_them_are_no_trouble_whatever_they_are_called(database: str) -> None:
    settings = Settings(database=database, outbox=OutboxSettings(schema="acme", prefix="pb_"))
    async with open_admin(settings) as admin:
        await admin.migrate()
    assert troubles(await open_doctor(settings).gather()) == []


async def test_an_outbox_that_the_applications_own_migrations_made_is_no_trouble(database: str) -> None:
    metadata = sa.MetaData()
    outbox_table(metadata, dialect="postgresql")
    engine = sa.create_engine(database.replace("postgresql:", "postgresql+psycopg:", 1))
    metadata.create_all(engine)
    engine.dispose()
    async with open_admin(Settings(database=database)) as admin:
        await admin.migrate()
    assert await found(database) == []


async def test_the_statement_that_is_given_makes_an_index_again(migrated: str, execute: Execute) -> None:
    execute("DROP INDEX pillarbox_parked_line")
    (finding,) = troubles(await gather(migrated))
    execute(*finding.commands)
    assert await found(migrated) == []


async def test_a_column_of_the_applications_own_is_no_trouble(migrated: str, execute: Execute) -> None:
    execute("ALTER TABLE pillarbox_outbox ADD COLUMN tenant text, ADD COLUMN region text NOT NULL DEFAULT 'eu'")
    assert await found(migrated) == []


async def test_who_lacks_a_right_that_a_relay_needs_is_found(migrated: str, execute: Execute, user: str) -> None:
    mine = as_user(migrated, user)
    assert troubles(await gather(mine), but={"fsync"}) == []
    execute("REVOKE DELETE ON pillarbox_outbox FROM pillarbox_relay")
    (finding,) = troubles(await gather(mine), but={"fsync"})
    assert (finding.severity, finding.check) == ("problem", "rights")
    assert f"the user {user} lacks rights that a relay needs (DELETE on public.pillarbox_outbox)" in finding.line


@pytest.mark.parametrize(
    ("revoked", "missing"),
    [
        ("SELECT ON SEQUENCE pillarbox_outbox_id_seq", "SELECT on public.pillarbox_outbox_id_seq"),
        ("UPDATE (count) ON pillarbox_audit", "UPDATE (count) on public.pillarbox_audit"),
        ("UPDATE (failed) ON pillarbox_ticks", "UPDATE (failed) on public.pillarbox_ticks"),
        ("UPDATE ON pillarbox_replays", "UPDATE on public.pillarbox_replays"),
        ("SELECT ON pillarbox_events", "SELECT on public.pillarbox_events"),
    ],
)
async def test_each_kind_of_right_that_is_gone_is_found(
    migrated: str, execute: Execute, user: str, revoked: str, missing: str
) -> None:
    execute(f"REVOKE {revoked} FROM pillarbox_relay")
    found = troubles(await gather(as_user(migrated, user)), but={"fsync"})
    (finding,) = (one for one in found if one.check == "rights")  # others may need that right to look
    assert finding.severity == "problem"
    assert f"({missing})" in finding.line
    assert "which lacks them itself: run the script with the roles again" in finding.line
    (script,) = finding.commands
    assert script.startswith("pillarbox migrate sql --roles ")
    execute(roles().decode())
    assert troubles(await gather(as_user(migrated, user)), but={"fsync"}) == []


def test_everything_that_is_granted_to_relays_is_asked_for() -> None:
    tables = Tables("public", "x_")
    grants = re.findall(r"^GRANT ([^;]+) TO [^;]*x_relay", tables.roles(), re.MULTILINE)
    granted = {
        (right.partition(" ")[0], name)
        for grant in grants
        for right in re.findall(r"[A-Z]+(?= ON |,| \()", grant.partition("public.")[0])
        for name in re.findall(r"public\.x_\w+", grant)
    }
    assert {(one.right, one.name) for one in Looking(tables, SystemClock())._needed()} == granted
    assert len(granted) > 40


async def test_the_grant_that_is_given_is_enough(migrated: str, execute: Execute, user: str) -> None:
    mine = as_user(migrated, user)
    execute(f"REVOKE pillarbox_relay FROM {user}", f"GRANT SELECT ON pillarbox_meta TO {user}")
    facts = await gather(mine)
    missing, *_ = [finding for finding in examine(facts) if finding.check == "rights"]
    assert missing.severity == "problem"
    assert facts.unread is not None  # and the outbox cannot be looked into
    (grant,) = missing.commands
    execute(grant)
    assert troubles(await gather(mine), but={"fsync"}) == []


async def test_who_only_looks_is_told_that_a_viewer_needs_no_more(migrated: str, execute: Execute, user: str) -> None:
    execute(f"REVOKE pillarbox_relay FROM {user}", f"GRANT pillarbox_viewer TO {user}")
    facts = await gather(as_user(migrated, user))
    assert facts.unread is None
    (finding,) = troubles(facts, but={"fsync"})
    assert finding.check == "rights"
    assert finding.line.endswith("Who only looks needs none of them: pillarbox_viewer is enough")


async def test_where_there_are_no_roles_the_script_comes_first(durable: Postgres) -> None:
    url = durable.create_database("roleless")
    durable.execute("CREATE ROLE newcomer LOGIN IN ROLE pg_read_all_stats")
    settings = Settings(database=durable.url("roleless", user="newcomer"), outbox=OutboxSettings(prefix="fresh_"))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(tables(prefix="fresh_"))
        connection.execute("GRANT SELECT ON fresh_meta TO newcomer")
        facts = await open_doctor(settings).gather()
        missing, *_ = [finding for finding in examine(facts) if finding.check == "rights"]
        assert "there is no role fresh_relay yet: run the script that makes it, then GRANT" in missing.line
        (script,) = missing.commands
        assert script.startswith("pillarbox migrate sql --roles ")
        connection.execute(roles(prefix="fresh_"))
        connection.execute('GRANT fresh_relay TO "newcomer"')
    assert troubles(await open_doctor(settings).gather()) == []


@pytest.mark.parametrize(
    ("granted", "wide"),
    [
        ("SELECT, UPDATE, DELETE", "DELETE, SELECT, UPDATE"),
        ("TRUNCATE", "TRUNCATE"),
        ("UPDATE (payload)", "UPDATE"),
    ],
)
async def test_a_writer_that_may_do_more_than_add_is_noted(
    migrated: str, execute: Execute, user: str, other: str, granted: str, wide: str
) -> None:
    mine = as_user(migrated, user)
    execute(f"GRANT pillarbox_writer TO {other}")
    assert troubles(await gather(mine), but={"fsync"}) == []
    execute(f"GRANT {granted} ON pillarbox_outbox TO {other}")
    (finding,) = troubles(await gather(mine), but={"fsync"})
    assert (finding.severity, finding.check) == ("note", "rights")
    assert f"the role {other} may do more with the outbox than its work asks for ({wide})" in finding.line
    execute(*finding.commands)
    assert troubles(await gather(mine), but={"fsync"}) == []


async def test_a_reader_that_is_no_writer_is_left_alone_and_one_that_deletes_is_noted(
    migrated: str, execute: Execute, user: str, other: str
) -> None:
    mine = as_user(migrated, user)
    execute(f"GRANT SELECT ON pillarbox_outbox TO {other}")  # as `connector debezium` has it
    assert troubles(await gather(mine), but={"fsync"}) == []
    execute(f"GRANT DELETE ON pillarbox_outbox TO {other}")
    (finding,) = troubles(await gather(mine), but={"fsync"})
    assert f"the role {other} may do more with the outbox than its work asks for (DELETE)" in finding.line
    execute(f"GRANT pillarbox_relay TO {other}")
    assert troubles(await gather(mine), but={"fsync"}) == []


async def test_who_may_do_more_than_a_relay_is_noted(migrated: str, execute: Execute, user: str) -> None:
    execute(f"GRANT UPDATE, TRUNCATE ON pillarbox_outbox TO {user}")
    (finding,) = troubles(await gather(as_user(migrated, user)), but={"fsync"})
    assert (finding.severity, finding.check) == ("note", "rights")
    assert "may do more with the outbox than a relay does (UPDATE, TRUNCATE)" in finding.line
    superuser, wide = troubles(await gather(migrated), but={"fsync"})
    assert "is a superuser" in superuser.line
    assert f"the role {user} may do more with the outbox" in wide.line


async def test_what_is_granted_to_everybody_is_found(migrated: str, execute: Execute) -> None:
    execute("GRANT SELECT ON pillarbox_outbox TO PUBLIC")
    finding, *_ = troubles(await gather(migrated), but={"fsync"})
    assert (finding.severity, finding.check) == ("problem", "rights")
    execute(*finding.commands)
    assert [finding.severity for finding in troubles(await gather(migrated), but={"fsync"})] == ["note"]


async def test_commits_that_do_not_wait_are_found_wherever_it_is_said(
    migrated: str, execute: Execute, user: str
) -> None:
    name = migrated.rpartition("/")[2]
    execute(
        f"ALTER DATABASE {name} SET synchronous_commit = off",
        f"ALTER ROLE {user} SET synchronous_commit = off",
        f"ALTER ROLE {user} IN DATABASE {name} SET synchronous_commit = off",
    )
    findings = troubles(await gather(migrated))
    assert {(finding.severity, finding.check) for finding in findings} == {("problem", "synchronous_commit")}
    assert len(findings) == 3
    execute(*(finding.commands[0] for finding in findings))
    assert await found(migrated) == []


async def test_a_server_whose_commits_do_not_wait_is_found(durable: Postgres) -> None:
    url = made(durable.create_database("hasty"))
    await switch_off(durable, "synchronous_commit")
    (finding,) = troubles(await gather(url))
    assert (finding.severity, finding.check) == ("problem", "synchronous_commit")
    assert finding.line.startswith("synchronous_commit is off on this server: ")
    await mend(durable, finding, "synchronous_commit")


async def test_an_identity_that_draws_ahead_is_found(migrated: str, execute: Execute) -> None:
    execute("ALTER SEQUENCE pillarbox_outbox_id_seq CACHE 20")
    (finding,) = troubles(await gather(migrated))
    assert (finding.severity, finding.check) == ("problem", "identity cache")
    execute(*finding.commands)
    assert await found(migrated) == []


async def test_a_transaction_that_is_left_open_is_found_with_its_session(migrated: str) -> None:
    with psycopg.connect(migrated, application_name="report") as connection:
        connection.execute("SELECT 1 FROM pillarbox_outbox")
        facts = await gather(migrated)
        assert troubles(facts) == []  # for it has just begun
        (finding,) = troubles(replace(facts, now=facts.now + timedelta(hours=2)))
        assert (finding.severity, finding.check) == ("problem", "open transactions")
        assert f"the session {connection.info.backend_pid} of postgres (report) has had a transaction" in finding.line
        with psycopg.connect(migrated, autocommit=True) as other:
            other.execute(finding.commands[0].encode())
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


async def test_who_does_not_see_the_sessions_of_others_is_told(migrated: str, execute: Execute, user: str) -> None:
    execute(f"REVOKE pg_read_all_stats FROM {user}")
    (finding,) = troubles(await gather(as_user(migrated, user)), but={"fsync"})
    assert (finding.severity, finding.check) == ("note", "open transactions")
    execute(*finding.commands)
    assert troubles(await gather(as_user(migrated, user)), but={"fsync"}) == []


async def test_a_prepared_transaction_is_found_with_its_name(migrated: str, execute: Execute) -> None:
    gid = f"it's {uuid.uuid4().hex}"
    with psycopg.connect(migrated) as connection:
        Outbox().add(connection, Event("Placed", {}, aggregate=("order", 1)))
        connection.execute(b"PREPARE TRANSACTION '" + gid.replace("'", "''").encode() + b"'")
    facts = await gather(migrated)
    (finding,) = troubles(replace(facts, now=facts.now + timedelta(minutes=5)))
    assert (finding.severity, finding.check) == ("problem", "prepared transactions")
    assert f"the transaction {gid} of postgres was prepared 5 min ago" in finding.line
    execute(finding.commands[1])
    facts = await gather(migrated)
    assert troubles(replace(facts, now=facts.now + timedelta(minutes=5))) == []


BURN = "DO $$ BEGIN FOR n IN 1..50 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"


async def test_who_holds_vacuum_back_is_found(migrated: str, execute: Execute, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.admin.doctor.postgres.FAR", 50)
    slot = f"slot_{uuid.uuid4().hex}"
    execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'test_decoding')")
    with psycopg.connect(migrated) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")
        gid = f"left {uuid.uuid4().hex}"
        execute("BEGIN", "SELECT pg_current_xact_id()", f"PREPARE TRANSACTION '{gid}'", BURN)
        pid = connection.info.backend_pid
        lines = {finding.line for finding in troubles(await gather(migrated)) if finding.check == "vacuum held back"}
    execute(f"ROLLBACK PREPARED '{gid}'")
    assert any(line.startswith(f"the session {pid} holds vacuum back by ") for line in lines)
    assert any(line.startswith(f"the replication slot {slot} holds vacuum back by ") for line in lines)
    assert any(line.startswith(f"the prepared transaction {gid} holds vacuum back by ") for line in lines)


async def test_a_standby_that_holds_vacuum_back_is_found(durable: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.admin.doctor.postgres.FAR", 50)
    url = made(durable.create_database("reported"))
    standby = durable.standby()
    try:
        standby.execute("ALTER SYSTEM SET hot_standby_feedback = on")
        standby.execute("ALTER SYSTEM SET wal_receiver_status_interval = '1s'")
        standby.execute("SELECT pg_reload_conf()")
        standby.wait_until_replayed(durable)
        with psycopg.connect(standby.url("reported")) as report:
            report.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            report.execute("SELECT 1")
            durable.execute(BURN, "reported")
            sender = "SELECT pid FROM pg_stat_replication WHERE age(backend_xmin) >= 50"
            await soon(lambda: bool(durable.execute(sender)), "the standby has told what it needs")
            [[pid]] = durable.execute(sender)
            (finding,) = troubles(await gather(url), but={"rights"})
    finally:
        standby.close()
    assert (finding.severity, finding.check) == ("note", "vacuum held back")
    assert finding.line.startswith(f"a standby (walsender {pid}) holds vacuum back by ")


async def test_a_table_that_is_not_vacuumed_is_found(migrated: str, execute: Execute) -> None:
    execute("ALTER TABLE pillarbox_parked SET (autovacuum_enabled = off)")
    (finding,) = troubles(await gather(migrated))
    assert (finding.severity, finding.check) == ("problem", "autovacuum")
    execute(*finding.commands)
    assert await found(migrated) == []


async def test_a_server_that_does_not_vacuum_is_found(durable: Postgres) -> None:
    url = made(durable.create_database("dusty"))
    for name in ("autovacuum", "track_counts"):
        await switch_off(durable, name)
        (finding,) = troubles(await gather(url))
        assert (finding.severity, finding.check, finding.line.startswith(f"{name} is off")) == (
            "problem", "autovacuum", True
        )  # fmt: skip
        await mend(durable, finding, name)


async def test_dead_rows_are_counted(migrated: str, execute: Execute) -> None:
    execute(
        "ALTER TABLE pillarbox_keys SET (autovacuum_enabled = off)",
        "INSERT INTO pillarbox_keys (key, event_id) SELECT n, gen_random_uuid() FROM generate_series(1, 100000) n",
        "DELETE FROM pillarbox_keys",
        "SELECT pg_stat_force_next_flush()",
        "SELECT 1",
    )
    off, dead = troubles(await gather(migrated))
    assert off.line.startswith("autovacuum is off for public.pillarbox_keys")
    assert dead.line.startswith("public.pillarbox_keys has 100,000 dead rows and 0 living ones")
    execute(*off.commands, *dead.commands)
    assert await found(migrated) == []


class Early:
    """The clock of a machine that is ahead."""

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=3)


async def test_a_clock_that_is_ahead_makes_nothing_older_than_it_is(
    migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.wiring.SystemClock", Early)
    with psycopg.connect(migrated) as connection:
        connection.execute("SELECT 1 FROM pillarbox_outbox")
        assert await found(migrated) == [("problem", "clock")]


class Late:
    """The clock of a machine that is behind."""

    def now(self) -> datetime:
        return datetime.now(UTC) - timedelta(minutes=3)


async def test_a_server_whose_clock_is_wrong_is_found() -> None:
    if not FAKETIME.exists():
        pytest.skip("needs faketime: its library lets a server have a wrong clock")
    server = Postgres("15")
    wrong = [f"LD_PRELOAD={FAKETIME}", "FAKETIME=+150m", "FAKETIME_DONT_FAKE_MONOTONIC=1"]
    server.server.argv = ["/usr/bin/env", *wrong, *server.server.argv]  # for the server alone, not for what starts it
    with server:
        url = made(server.create_database("early"))
        (finding,) = troubles(await gather(url))
    assert (finding.severity, finding.check) == ("problem", "clock")
    assert finding.line.startswith("the database's clock is 2 h ahead of")


async def test_a_clock_that_differs_is_found(migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.wiring.SystemClock", Late)
    (finding,) = troubles(await gather(migrated))
    assert (finding.severity, finding.check) == ("problem", "clock")
    # What the answer was on its way for is not counted.
    assert finding.line.startswith(("the database's clock is 2 min ahead of", "the database's clock is 3 min ahead of"))


@pytest.fixture
def pooler(postgres: RunningPostgres) -> Iterator[Callable[..., PgBouncer]]:
    """Starts a PgBouncer in front of `postgres`."""
    skip_unless_ours()
    assert isinstance(postgres, Postgres)
    port = postgres.port
    with ExitStack() as started:
        yield lambda **how: started.enter_context(installed(lambda: PgBouncer(port, **how)))


@contextmanager
def busy(url: str, sessions: int) -> Iterator[None]:
    """Let a pooler have so many sessions at least, all of them free again."""
    with ExitStack() as all_of_them:
        for _ in range(sessions):
            connection = all_of_them.enter_context(psycopg.connect(url, prepare_threshold=None))
            connection.execute("SELECT 1")
    yield


@pytest.mark.parametrize("round_robin", [False, True])
@pytest.mark.parametrize("sessions", [1, 2, 3])
async def test_a_pooler_in_transaction_mode_is_noted_and_relays_work(
    migrated: str, pooler: Callable[..., PgBouncer], sessions: int, round_robin: bool
) -> None:
    url = pooler(round_robin=round_robin).url(migrated.rpartition("/")[2])
    add(url)
    assert await Relay(database=url, publish=lambda messages: None).run_once() == 1
    with busy(url, sessions):
        (finding,) = troubles(await gather(url))
    assert (finding.severity, finding.check) == ("note", "pooler")
    assert finding.line.startswith("a pooler in transaction mode stands between: it works, but ")


async def test_a_pooler_in_session_mode_is_noted_and_relays_work(
    migrated: str, pooler: Callable[..., PgBouncer]
) -> None:
    url = pooler(mode="session").url(migrated.rpartition("/")[2])
    add(url)
    assert await Relay(database=url, publish=lambda messages: None).run_once() == 1
    with busy(url, 3):
        (finding,) = troubles(await gather(url))
    assert (finding.severity, finding.check) == ("note", "pooler")
    assert finding.line.startswith("a pooler in session mode stands between: it works, but ")
    assert "new events do not ring (LISTEN)" in finding.line


async def test_a_pooler_in_statement_mode_is_found_and_refused(migrated: str, pooler: Callable[..., PgBouncer]) -> None:
    url = pooler(mode="statement").url(migrated.rpartition("/")[2])
    (finding,) = troubles(await gather(url))
    assert (finding.severity, finding.check) == ("problem", "pooler")
    assert finding.line.startswith("a pooler in statement mode stands between: it allows no transaction, so no event")
    with pytest.raises(ConfigError, match=r"^database: the pooler allows no transactions, and every event belongs to "):
        await Relay(database=url, publish=lambda messages: None).run_once()
    with pytest.raises(StoreError, match="the pooler allows no transactions"):
        add(url)


async def test_events_that_nobody_relays_are_found(migrated: str) -> None:
    add(migrated)
    (finding,) = troubles(await gather(migrated))
    assert (finding.severity, finding.check) == ("problem", "events are relayed")
    assert finding.line.startswith("no relay has ever run here, and 1 event waits, the oldest for ")


async def test_a_relay_that_died_with_its_lanes_is_found(migrated: str, execute: Execute) -> None:
    execute(
        "INSERT INTO pillarbox_relays (name, seen_at, expires_at)"
        " VALUES ('gone-1', now() - interval '1 h', now() - interval '59 min')",
        "UPDATE pillarbox_lanes SET owner = 'gone-1' WHERE lane < 16",
    )
    (finding,) = troubles(await gather(migrated))
    assert (finding.severity, finding.check) == ("problem", "expired relays")
    assert finding.line.startswith("relay gone-1 was last seen 1 h ago, its lease has run out, and it still holds 16")


async def test_the_version_is_known(postgres: RunningPostgres, migrated: str) -> None:
    facts = (await gather(migrated)).store
    assert isinstance(facts, PostgresFacts)
    assert str(facts.version // 10_000) == postgres.version.partition(".")[0]
