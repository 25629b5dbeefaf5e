"""What is particular to sqlite3: its transaction modes, its locks, its errors, and the advice that we give for each."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pillarbox.core.event import Event
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.errors import ConfigError, InvalidEvent, NoTransaction, SchemaMismatch, StoreError, StoreUnavailable
from pillarbox.testing.contracts.sqlite3_door import SqliteFile

ROOT = Path(__file__).parents[2]
outbox = Outbox()
PING: Event[dict[str, str]] = Event("Ping", {})


@pytest.fixture
def file() -> Iterator[SqliteFile]:
    file = SqliteFile()
    yield file
    file.close()


@pytest.fixture
def connection(file: SqliteFile) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(file.path, timeout=0.05)
    yield connection
    connection.close()


@pytest.fixture
def other(file: SqliteFile) -> Iterator[sqlite3.Connection]:
    other = sqlite3.connect(file.path, timeout=0.05, isolation_level=None)
    yield other
    other.close()


def test_autocommit_is_refused_with_the_cure(connection: sqlite3.Connection) -> None:
    connection.isolation_level = None
    with pytest.raises(NoTransaction, match=r"run connection\.execute\('BEGIN IMMEDIATE'\) first") as refused:
        outbox.add(connection, PING)
    assert "isolation_level='IMMEDIATE'" in str(refused.value)
    connection.execute("BEGIN IMMEDIATE")
    outbox.add(connection, PING)
    connection.commit()


def test_a_transaction_that_read_first_gets_advice(
    connection: sqlite3.Connection, other: sqlite3.Connection, file: SqliteFile
) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM effects").fetchall()
    other.execute("INSERT INTO effects VALUES ('meanwhile')")
    with pytest.raises(StoreUnavailable, match=r"begin immediately: run connection\.execute") as refused:
        outbox.add(connection, PING)
    assert "SQLITE_BUSY_SNAPSHOT" in str(refused.value)
    assert file.path in str(refused.value)
    assert isinstance(refused.value.__cause__, sqlite3.OperationalError)


def test_the_advice_works(connection: sqlite3.Connection, other: sqlite3.Connection, file: SqliteFile) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("SELECT * FROM effects").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("INSERT INTO effects VALUES ('meanwhile')")
    outbox.add(connection, PING)
    connection.commit()
    assert len(file.rows("outbox")) == 1


def test_a_locked_database_is_worth_another_try(connection: sqlite3.Connection, other: sqlite3.Connection) -> None:
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by another writer"):
        outbox.add(connection, PING)
    other.execute("COMMIT")
    outbox.add(connection, PING)
    connection.commit()


def test_a_full_database_is_worth_another_try(connection: sqlite3.Connection, file: SqliteFile) -> None:
    connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StoreUnavailable, match="make room"):
        outbox.add(connection, *(Event("Ping", {"text": "x" * 10_000}) for _ in range(50)))
    connection.rollback()
    assert not file.rows("outbox")


def test_missing_tables_name_the_command(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    with pytest.raises(SchemaMismatch) as refused:
        outbox.add(connection, PING)
    assert f"run `pillarbox migrate up --database sqlite:///{tmp_path}/shop.db`" in str(refused.value)
    with pytest.raises(SchemaMismatch, match="pillarbox_inbox"):
        Inbox("billing", lambda: connection).first_time(connection, "a")
    connection.close()


def test_missing_tables_in_memory_name_the_script() -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(SchemaMismatch, match="`pillarbox migrate sql`"):
        outbox.add(connection, PING)
    connection.close()


def test_a_file_that_is_no_database_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_bytes(b"Dear customer, " * 100)
    connection = sqlite3.connect(tmp_path / "letter.db")
    with pytest.raises(StoreError, match="not a database"):
        outbox.add(connection, PING)
    connection.close()


def test_a_closed_connection_stays_the_callers_own_mistake(connection: sqlite3.Connection) -> None:
    connection.close()
    with pytest.raises(sqlite3.ProgrammingError):
        outbox.add(connection, PING)


@pytest.mark.parametrize("thing", [None, "shop.db", object()])
def test_anything_but_a_connection_is_refused(thing: object) -> None:
    with pytest.raises(ConfigError, match=r"sqlite3\.Connection"):
        outbox.add(thing, PING)  # type: ignore[arg-type]


def test_a_cursor_is_refused(connection: sqlite3.Connection) -> None:
    with pytest.raises(ConfigError, match=r"^a sqlite3\.Cursor is no connection"):
        outbox.add(connection.cursor(), PING)  # type: ignore[arg-type]


def test_another_prefix_leads_to_other_tables(connection: sqlite3.Connection) -> None:
    with pytest.raises(SchemaMismatch, match="shop_outbox"):
        Outbox(prefix="shop_").add(connection, PING)


@pytest.mark.parametrize("prefix", ["", "a b", "x;--", "ä_"])
def test_a_prefix_that_is_no_name_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        Outbox(prefix=prefix)
    with pytest.raises(ConfigError, match="prefix"):
        Inbox("billing", lambda: sqlite3.connect(":memory:"), prefix=prefix)


@pytest.mark.parametrize("message_id", ["", None, 7, "a\0b"])
def test_an_id_that_recognises_nothing_is_refused(connection: sqlite3.Connection, message_id: object) -> None:
    with pytest.raises(InvalidEvent, match="message_id"):
        Inbox("billing", lambda: connection).first_time(connection, message_id)  # type: ignore[arg-type]


def test_one_id_has_one_spelling(connection: sqlite3.Connection) -> None:
    inbox = Inbox("billing", lambda: connection)
    assert inbox.first_time(connection, "0190A6A1-0000-7000-8000-0000000000FF")
    assert not inbox.first_time(connection, "0190a6a1-0000-7000-8000-0000000000ff")
    connection.rollback()


def test_consumers_know_nothing_of_one_another(connection: sqlite3.Connection) -> None:
    assert Inbox("billing", lambda: connection).first_time(connection, "a")
    assert Inbox("shipping", lambda: connection).first_time(connection, "a")
    connection.rollback()


@cache
def modern_python() -> str | None:
    """Find a Python that has sqlite3's `autocommit`: this one, or one on the machine."""
    if sys.version_info >= (3, 12):
        return sys.executable
    on_path = (shutil.which(f"python3.{minor}") for minor in range(12, 20))
    versions = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[2-9]*/bin/python"))
    # A name on the path may be a shim with nothing behind it, so each is asked.
    probe = "import sqlite3; sqlite3.connect(':memory:').autocommit"
    for path in (*on_path, *map(str, versions)):
        if path is not None and subprocess.run([path, "-c", probe], capture_output=True).returncode == 0:
            return path
    return None


SCRIPT = """
import sqlite3, sys
from pillarbox.core.event import Event
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.errors import NoTransaction, StoreUnavailable
path, outbox = sys.argv[1], Outbox()
inbox = Inbox("billing", lambda: None)

def refused(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    raise SystemExit(f"{call} was not refused")

def count():
    return sqlite3.connect(path).execute("SELECT count(*) FROM pillarbox_outbox").fetchone()[0]
"""


def run_modern(file: SqliteFile, body: str) -> str:
    python = modern_python()
    if python is None:
        pytest.skip("needs Python 3.12: none was found on this machine")
    done = subprocess.run(
        [python, "-c", SCRIPT + body, file.path],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_with_autocommit_off_an_event_follows_the_transaction(file: SqliteFile) -> None:
    body = """
connection = sqlite3.connect(path, autocommit=False)
outbox.add(connection, Event("Ping", {}))
assert inbox.first_time(connection, "a")
connection.rollback()
print(count())
outbox.add(connection, Event("Ping", {}))
assert inbox.first_time(connection, "a")
connection.commit()
print(count())
"""
    assert run_modern(file, body).split() == ["0", "1"]


def test_with_autocommit_on_only_an_explicit_transaction_is_accepted(file: SqliteFile) -> None:
    body = """
connection = sqlite3.connect(path, autocommit=True)
print(refused(NoTransaction, outbox.add, connection, Event("Ping", {})))
refused(NoTransaction, inbox.first_time, connection, "a")
print(count())
connection.execute("BEGIN IMMEDIATE")
outbox.add(connection, Event("Ping", {}))
connection.execute("COMMIT")
print(count())
"""
    advice, before, after = run_modern(file, body).splitlines()
    assert "connection.execute('BEGIN IMMEDIATE') first, or connect with autocommit=False" in advice
    assert (before, after) == ("0", "1")


def test_with_autocommit_off_reading_first_gets_its_own_advice(file: SqliteFile) -> None:
    body = """
connection = sqlite3.connect(path, autocommit=False)
connection.execute("SELECT * FROM effects").fetchall()
other = sqlite3.connect(path)
other.execute("INSERT INTO effects VALUES ('meanwhile')")
other.commit()
print(refused(StoreUnavailable, outbox.add, connection, Event("Ping", {})))
"""
    answer = run_modern(file, body)
    assert "SQLITE_BUSY_SNAPSHOT" in answer
    assert "with autocommit=False, write before you read" in answer


@pytest.mark.parametrize("autocommit", ["True", "False", "sqlite3.LEGACY_TRANSACTION_CONTROL"])
def test_the_inbox_keeps_its_transaction_in_every_mode(file: SqliteFile, autocommit: str) -> None:
    body = f"""
from datetime import datetime, UTC
from pillarbox.core.message import Delivery, Message
from pillarbox.core.routing import Topics
from pillarbox.inbox import programs, received
inbox = Inbox("billing", lambda: sqlite3.connect(path, autocommit={autocommit}))
fail = True
@inbox.handler("Ping")
def ping(connection, event):
    connection.execute("INSERT INTO effects VALUES ('done')")
    if fail:
        raise RuntimeError
def handle():
    message = Message("events", None, {{"id": "0190a6a1-0000-7000-8000-0000000000ff", "type": "Ping"}}, b"{{}}")
    one = received.receive(Delivery(message), inbox.handlers, Topics())
    tell = lambda *_: None
    means = programs.Means(inbox.handlers, datetime.now(UTC), None, False, tell, tell)
    return inbox.perform(programs.receive(inbox.texts, one, means)).value
refused(Exception, handle)
fail = False
print(handle(), handle(), sqlite3.connect(path).execute("SELECT count(*) FROM effects").fetchone()[0])
"""
    assert run_modern(file, body).split() == ["handled", "copy", "1"]


def test_an_inbox_refuses_a_connection_in_place_of_what_opens_one() -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(ConfigError, match=r"opener: an? [\w.]+ opens nothing: give a function that opens a connection"):
        Inbox("billing", connection)  # type: ignore[arg-type]
    connection.close()


def test_a_temporary_table_of_the_same_name_takes_no_event(connection: sqlite3.Connection, file: SqliteFile) -> None:
    for table in ("outbox", "inbox"):
        connection.execute(f"CREATE TEMP TABLE pillarbox_{table} AS SELECT * FROM pillarbox_{table}")
    connection.execute("BEGIN IMMEDIATE")
    outbox.add(connection, PING)
    assert Inbox("billing", lambda: connection).first_time(connection, "a")
    connection.commit()
    assert (len(file.rows("outbox")), len(file.rows("inbox"))) == (1, 1)


def test_tables_in_an_attached_file_are_refused(file: SqliteFile, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    connection.execute("ATTACH ? AS events", [file.path])
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(SchemaMismatch, match="or they are in an attached file, which SQLite does not commit as one"):
        outbox.add(connection, PING)
    with pytest.raises(SchemaMismatch, match="attached file"):
        Inbox("billing", lambda: connection).first_time(connection, "a")
    connection.close()
    assert file.rows("outbox") == []
