"""`pillarbox doctor` on SQLite: each fault is planted in a real file, and found."""

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pillarbox import Event, Settings
from pillarbox.admin.doctor import Finding, examine
from pillarbox.dbapi import Outbox
from pillarbox.sqlalchemy import outbox_table
from pillarbox.wiring import Relay, open_admin, open_doctor

Execute = Callable[[str], list[tuple[object, ...]]]


@pytest.fixture
async def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    async with open_admin(Settings(database=f"sqlite:///{path}")) as admin:
        await admin.migrate()
    return path


@pytest.fixture
def execute(file: Path) -> Execute:
    def execute(script: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(file, isolation_level=None)
        try:
            return connection.execute(script).fetchall()
        finally:
            connection.close()

    return execute


async def troubles(file: Path) -> list[Finding]:
    """What was found, but for what was not looked at: no broker is set."""
    found = examine(await open_doctor(Settings(database=f"sqlite:///{file}")).gather())
    return [one for one in found if one.severity != "fine" and not one.line.startswith("not looked at: ")]


def add(file: Path) -> None:
    connection = sqlite3.connect(file)
    try:
        with connection:
            Outbox().add(connection, Event("Placed", {}, aggregate=("order", 1)))
    finally:
        connection.close()


async def test_a_file_that_is_well_yields_nothing(file: Path) -> None:
    add(file)
    assert await Relay(database=f"sqlite:///{file}", publish=lambda messages: None).run_once() == 1
    assert await troubles(file) == []


async def test_another_journal_mode_is_found_and_left_as_it_is(file: Path, execute: Execute) -> None:
    assert execute("PRAGMA journal_mode = DELETE") == [("delete",)]
    (finding,) = await troubles(file)
    assert (finding.severity, finding.check) == ("problem", "journal mode")
    assert finding.line.startswith("the journal mode of the file is delete, not wal: ")
    assert execute("PRAGMA journal_mode") == [("delete",)]
    execute(finding.commands[0])
    assert await troubles(file) == []


class Hasty(sqlite3.Connection):
    """A connection of an SQLite that was built with another default (SQLITE_DEFAULT_WAL_SYNCHRONOUS)."""

    level = 2

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute(f"PRAGMA synchronous = {self.level}")


@pytest.mark.parametrize(("level", "name"), [(0, "OFF"), (1, "NORMAL")])
async def test_an_sqlite_that_does_not_wait_for_the_disk_is_found(
    file: Path, monkeypatch: pytest.MonkeyPatch, level: int, name: str
) -> None:
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Hasty))
    assert await troubles(file) == []
    monkeypatch.setattr(Hasty, "level", level)
    (finding,) = await troubles(file)
    assert (finding.severity, finding.check) == ("problem", "synchronous")
    assert f"to open files with synchronous = {name}: " in finding.line


async def test_a_file_of_the_application_without_our_tables_lacks_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    connection.close()
    assert [(one.severity, one.check) for one in await troubles(path)] == [("problem", "version of the tables")]


@pytest.mark.parametrize("place", ["nowhere/shop.db", "."])
async def test_a_file_that_cannot_be_there_is_found(tmp_path: Path, place: str) -> None:
    (finding,) = await troubles(tmp_path / place)
    assert (finding.severity, finding.check) == ("problem", "database")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        ("DROP INDEX pillarbox_outbox_topic", "the index pillarbox_outbox_topic is missing"),
        ("DROP TABLE pillarbox_keys", "the table pillarbox_keys is missing"),
        (
            "ALTER TABLE pillarbox_outbox ADD COLUMN tenant TEXT NOT NULL DEFAULT NULL",
            "the column tenant of pillarbox_outbox is not ours, and cannot be empty",
        ),
        (
            "ALTER TABLE pillarbox_archive RENAME COLUMN status TO state",
            "the column status of pillarbox_archive is missing",
        ),
    ],
)
async def test_tables_that_somebody_has_changed_are_found(file: Path, execute: Execute, fault: str, what: str) -> None:
    execute(fault)
    found = await troubles(file)
    assert {(finding.severity, finding.check) for finding in found} >= {("problem", "tables")}
    assert any(finding.line.startswith(what) for finding in found)


async def test_ids_that_would_be_given_out_again_are_found(file: Path, execute: Execute) -> None:
    ((made,),) = execute("SELECT sql FROM sqlite_schema WHERE name = 'pillarbox_outbox'")
    execute("DROP TABLE pillarbox_outbox")
    execute(str(made).replace(" AUTOINCREMENT", ""))
    assert "the ids of pillarbox_outbox are given out again when the newest rows are deleted" in [
        finding.line.partition(":")[0] for finding in await troubles(file)
    ]


async def test_the_statement_that_is_given_makes_an_index_again(file: Path, execute: Execute) -> None:
    execute("DROP INDEX pillarbox_parked_position")
    execute("CREATE INDEX pillarbox_parked_position ON pillarbox_parked (topic)")
    (finding,) = await troubles(file)
    assert finding.line.startswith("the index pillarbox_parked_position is another one")
    for statement in finding.commands[0].split("; "):
        execute(statement)
    assert await troubles(file) == []


async def test_a_column_of_the_applications_own_is_no_trouble(file: Path, execute: Execute) -> None:
    execute("ALTER TABLE pillarbox_outbox ADD COLUMN tenant TEXT")
    execute("ALTER TABLE pillarbox_outbox ADD COLUMN region TEXT NOT NULL DEFAULT 'eu'")
    assert await troubles(file) == []


async def test_an_outbox_that_the_applications_own_migrations_made_is_no_trouble(tmp_path: Path) -> None:
    path, metadata = tmp_path / "shop.db", sa.MetaData()
    outbox_table(metadata)
    engine = sa.create_engine(f"sqlite:///{path}")
    metadata.create_all(engine)
    engine.dispose()
    async with open_admin(Settings(database=f"sqlite:///{path}")) as admin:
        await admin.migrate()
    assert await troubles(path) == []


async def test_events_that_nobody_relays_are_found(file: Path) -> None:
    add(file)
    (finding,) = await troubles(file)
    assert (finding.severity, finding.check) == ("problem", "events are relayed")
    assert finding.line.startswith("no relay has ever run here, and 1 event waits, the oldest for ")


async def test_a_relay_that_died_with_its_lanes_is_found(file: Path, execute: Execute) -> None:
    execute(
        "INSERT INTO pillarbox_relays (owner, seen_at, lease_until, locked) VALUES ('gone-1', 1000000, 16000000, 0)"
    )
    execute("UPDATE pillarbox_lanes SET owner = 'gone-1'")
    (finding,) = await troubles(file)
    assert (finding.severity, finding.check) == ("problem", "expired relays")
    assert finding.line.startswith("relay gone-1 was last seen ")


async def test_a_file_that_is_no_database_is_found(tmp_path: Path) -> None:
    (tmp_path / "shop.db").write_text("this is a letter, and not a database at all" * 20)
    (finding,) = await troubles(tmp_path / "shop.db")
    assert (finding.severity, finding.check) == ("problem", "database")
    assert "is not an SQLite database" in finding.line


async def test_a_broker_in_a_directory_that_may_not_be_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda place, mode: place != tmp_path)  # root may write anywhere
    facts = await open_doctor(Settings(broker=f"sqlite:///{tmp_path}/stream.db")).gather(["orders"])
    worst, *rest = examine(facts)
    assert (worst.severity, worst.check) == ("problem", "broker")
    assert f"{tmp_path} cannot be written to by this user" in worst.line
    assert "topics" not in [finding.check for finding in rest]
    assert list(tmp_path.iterdir()) == []
