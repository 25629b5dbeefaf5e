"""What is particular to SQLAlchemy: flushing, isolation levels, the async twins, the table for Alembic."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, MetaData, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from pillarbox.core.event import Event
from pillarbox.errors import ConfigError, NoTransaction, SchemaMismatch, StoreError, StoreUnavailable
from pillarbox.ports import Query
from pillarbox.settings import Settings
from pillarbox.sqlalchemy import AsyncInbox, AsyncOutbox, Inbox, Outbox, outbox_table
from pillarbox.testing.contracts.sqlite3_door import SqliteFile
from pillarbox.wiring import open_admin

outbox, async_outbox = Outbox(), AsyncOutbox()
PING: Event[dict[str, str]] = Event("Ping", {})


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


@pytest.fixture
def file() -> Iterator[SqliteFile]:
    file = SqliteFile()
    yield file
    file.close()


@pytest.fixture
def engine(file: SqliteFile) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{file.path}", connect_args={"timeout": 0.05})
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_what_is_pending_is_written_before_the_event(engine: Engine, file: SqliteFile) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *facts: statements.append(facts[2].split()[2]))
    with Session(engine) as session, session.begin():
        session.add(Order(total=42))
        outbox.add(session, PING)
    assert statements == ["orders", "main.pillarbox_outbox"]
    assert len(file.rows("outbox")) == 1


def test_an_order_that_was_not_flushed_is_refused_with_advice(engine: Engine) -> None:
    with Session(engine) as session:
        order = Order(total=42)
        session.add(order)
        with pytest.raises(ValueError, match=r"order\.id is None: flush first"):
            outbox.add(session, Event("OrderPlaced", {}, aggregate=("order", order.id)))
        session.flush()
        outbox.add(session, Event("OrderPlaced", {}, aggregate=("order", order.id)))


def test_a_failed_flush_adds_no_event(engine: Engine, file: SqliteFile) -> None:
    with Session(engine) as session:
        session.add(Order(id=1, total=None))
        with pytest.raises(Exception, match="NOT NULL"):
            outbox.add(session, PING)
        session.rollback()
    assert not file.rows("outbox")


def test_a_nested_block_takes_its_events_along(engine: Engine, file: SqliteFile) -> None:
    with Session(engine) as session, session.begin():
        outbox.add(session, Event("Kept", {}))
        with session.begin_nested() as nested:
            outbox.add(session, Event("Lost", {}))
            nested.rollback()
        with session.begin_nested():
            outbox.add(session, Event("Kept too", {}))
    assert [row["event_type"] for row in file.rows("outbox")] == ["Kept", "Kept too"]


def test_a_scoped_session_is_as_good_as_its_session(engine: Engine, file: SqliteFile) -> None:
    session = scoped_session(sessionmaker(engine))
    outbox.add(session, PING)
    session.commit()
    session.remove()
    assert len(file.rows("outbox")) == 1


@pytest.mark.parametrize("where", ["engine", "engine options", "connection"])
def test_autocommit_is_refused_wherever_it_was_asked_for(where: str, file: SqliteFile) -> None:
    url = f"sqlite:///{file.path}"
    engine = create_engine(url, isolation_level="AUTOCOMMIT") if where == "engine" else create_engine(url)
    if where == "engine options":
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if where == "connection":
            connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(NoTransaction, match="isolation_level"):
            outbox.add(connection, PING)
        with pytest.raises(NoTransaction, match="isolation_level"):
            Inbox("billing", sessionmaker(engine)).first_time(connection, "a")
    engine.dispose()
    assert not file.rows("outbox")


def test_begin_immediate_as_sqlalchemys_own_page_shows_it_works(file: SqliteFile) -> None:
    engine = create_engine(f"sqlite:///{file.path}")
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    with Session(engine) as session:
        session.execute(text("SELECT * FROM effects"))
        outbox.add(session, PING)
        session.rollback()
    assert not file.rows("outbox")
    with engine.connect() as connection:
        outbox.add(connection, PING)
        connection.commit()
    engine.dispose()
    assert len(file.rows("outbox")) == 1


def test_a_transaction_that_read_first_gets_advice(file: SqliteFile) -> None:
    engine = create_engine(f"sqlite:///{file.path}")
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    other = sqlite3.connect(file.path, isolation_level=None)
    with Session(engine) as session:
        session.execute(text("SELECT * FROM effects")).all()
        other.execute("INSERT INTO effects VALUES ('meanwhile')")
        with pytest.raises(StoreUnavailable, match="begin immediately: let the engine's connections begin"):
            outbox.add(session, PING)
    other.close()
    engine.dispose()


def test_a_locked_database_is_worth_another_try(engine: Engine, file: SqliteFile) -> None:
    other = sqlite3.connect(file.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Session(engine) as session:
        with pytest.raises(StoreUnavailable, match="locked"):
            outbox.add(session, PING)
        other.execute("COMMIT")
        outbox.add(session, PING)
        session.commit()
    other.close()


def test_missing_tables_name_the_command(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with Session(engine) as session, pytest.raises(SchemaMismatch) as refused:
        outbox.add(session, PING)
    engine.dispose()
    assert f"pillarbox migrate up --database sqlite:///{tmp_path}/shop.db" in str(refused.value)


def test_another_database_is_refused_by_name() -> None:
    engine = create_engine("sqlite://")
    engine.dialect.name = "oracle"
    with engine.connect() as connection, pytest.raises(ConfigError, match=r"oracle\+pysqlite .* writes to sqlite"):
        outbox.add(connection, PING)
    engine.dispose()


def test_an_engine_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"^an Event is nothing that .* give a Session or a Connection"):
        Outbox().add(Event("Ping", {}), Event("Ping", {}))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give a Session or a Connection"):
        outbox.add(engine, PING)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"opens no sessions for this inbox: give a sessionmaker$"):
        Inbox("billing", engine)  # type: ignore[arg-type]


async def test_sync_and_async_are_not_mixed_up(engine: Engine) -> None:
    async_engine = create_async_engine("sqlite+aiosqlite://")
    with Session(engine) as session, pytest.raises(ConfigError, match="a Session is not async"):
        await async_outbox.add(session, PING)  # type: ignore[arg-type]
    async with AsyncSession(async_engine) as async_session:
        with pytest.raises(ConfigError, match="AsyncOutbox and AsyncInbox take the async ones"):
            outbox.add(async_session, PING)  # type: ignore[arg-type]
    await async_engine.dispose()


async def test_an_async_scoped_session_is_as_good_as_its_session(file: SqliteFile) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file.path}")
    session = async_scoped_session(async_sessionmaker(engine), lambda: 1)
    await async_outbox.add(session, PING)
    assert await AsyncInbox("billing", async_sessionmaker(engine)).first_time(session, "a")
    await session.commit()
    await session.remove()
    await engine.dispose()
    assert len(file.rows("outbox")) == len(file.rows("inbox")) == 1


def described(path: str) -> dict[str, Any]:
    """Read what SQLite knows of the outbox: columns, indexes, and the order of ids."""
    connection = sqlite3.connect(path)
    columns = [row[1:4] + row[5:] for row in connection.execute("PRAGMA table_info(pillarbox_outbox)")]
    indexes = {
        name: [row[2] for row in connection.execute(f"PRAGMA index_info({name})")]
        for _, name, *_ in connection.execute("PRAGMA index_list(pillarbox_outbox)")
    }
    (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'pillarbox_outbox'").fetchone()
    connection.close()
    return {
        "columns": columns,
        "indexes": indexes,
        "autoincrement": "AUTOINCREMENT" in sql,
        "checks": sorted(line.strip(" \t,") for line in sql.splitlines() if "CHECK (" in line),
    }


def test_the_table_on_ones_own_metadata_is_the_migrations_table(file: SqliteFile, tmp_path: Path) -> None:
    metadata = MetaData()
    outbox_table(metadata)
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    metadata.create_all(engine)
    engine.dispose()
    ours, theirs = described(file.path), described(f"{tmp_path}/own.db")
    ours["columns"][0] = theirs["columns"][0]  # SQLAlchemy writes NOT NULL at a primary key, which says nothing new
    assert theirs == ours


async def test_the_migration_takes_a_table_that_the_application_made_as_it_is(tmp_path: Path) -> None:
    metadata = MetaData()
    outbox_table(metadata)
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        outbox.add(session, PING)
    engine.dispose()
    async with open_admin(Settings(database=f"sqlite:///{tmp_path}/own.db")) as admin:
        await admin.migrate()
        assert [record.type for record in await admin.find(Query(status=("pending",)))] == ["Ping"]


def test_an_event_can_be_added_to_the_table_on_ones_own_metadata(tmp_path: Path) -> None:
    metadata = MetaData()
    table = outbox_table(metadata)
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        outbox.add(session, PING)
        session.execute(table.insert().values(event_type="Plain", topic="events", payload="{}"))
    with engine.connect() as connection:
        rows = connection.execute(table.select().order_by(table.c.id)).all()
    engine.dispose()
    assert [row.event_type for row in rows] == ["Ping", "Plain"]
    assert len(rows[1].event_id) == 36
    assert rows[1].created_at > 1_700_000_000_000_000


def test_without_sqlalchemy_the_install_line_is_given() -> None:
    script = """
import sys
sys.modules["sqlalchemy"] = None
from pillarbox.errors import MissingExtra
try:
    import pillarbox.sqlalchemy
except MissingExtra as missing:
    print(missing)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "pip install 'pillarbox[sqlalchemy]'" in done.stdout, done.stderr


def begin_ourselves(engine: Engine) -> None:
    """Do what SQLAlchemy's page on SQLite recommends for savepoints."""

    @event.listens_for(engine, "connect")
    def leave_begin_to_us(connection: Any, record: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def test_a_savepoint_that_would_commit_is_refused(engine: Engine, file: SqliteFile) -> None:
    with Session(engine) as session:
        with session.begin_nested(), pytest.raises(NoTransaction, match=r"write something before begin_nested\(\)"):
            outbox.add(session, PING)
        with session.begin_nested(), session.begin_nested(), pytest.raises(NoTransaction):
            outbox.add(session, PING)
        session.rollback()
    assert file.rows("outbox") == []


def test_after_such_a_savepoint_the_transaction_is_as_any_other(engine: Engine, file: SqliteFile) -> None:
    with Session(engine) as session:
        with session.begin_nested():
            session.execute(text("SELECT 1"))
        outbox.add(session, PING)
        with session.begin_nested():
            outbox.add(session, PING)
        session.rollback()
        assert file.rows("outbox") == []
        outbox.add(session, PING)
        with session.begin_nested():
            outbox.add(session, PING)
        session.commit()
    assert len(file.rows("outbox")) == 2


def test_where_the_engine_begins_a_savepoint_may_come_first(engine: Engine, file: SqliteFile) -> None:
    begin_ourselves(engine)
    engine.dispose()
    for end, rows in (Session.rollback, 0), (Session.commit, 1):
        with Session(engine) as session:
            with session.begin_nested():
                outbox.add(session, PING)
            end(session)
        assert len(file.rows("outbox")) == rows


async def test_an_async_savepoint_that_would_commit_is_refused(file: SqliteFile) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file.path}")
    async with AsyncSession(engine) as session:
        async with session.begin_nested():
            with pytest.raises(NoTransaction, match="its release commits"):
                await async_outbox.add(session, PING)
        await session.rollback()
    assert file.rows("outbox") == []
    await engine.dispose()


async def test_where_an_async_engine_begins_a_savepoint_may_come_first(file: SqliteFile) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{file.path}")
    begin_ourselves(engine.sync_engine)
    for end, rows in (AsyncSession.rollback, 0), (AsyncSession.commit, 1):
        async with AsyncSession(engine) as session:
            async with session.begin_nested():
                await async_outbox.add(session, PING)
            await end(session)
        assert len(file.rows("outbox")) == rows
    await engine.dispose()


def test_an_inbox_refuses_sessions_of_the_other_kind() -> None:
    with pytest.raises(ConfigError, match="give a sessionmaker, or take AsyncInbox"):
        Inbox("billing", async_sessionmaker())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give an async_sessionmaker, or take Inbox"):
        AsyncInbox("billing", sessionmaker())  # type: ignore[arg-type]


def test_an_add_that_the_database_refuses_gives_back_its_key(engine: Engine, file: SqliteFile) -> None:
    paid: Event[Any] = Event("Paid", {}, aggregate=("order", 1), idempotency_key="payment", numbered=True)
    refuses = "BEFORE INSERT ON pillarbox_outbox BEGIN SELECT raise(ABORT, 'not today'); END"
    with Session(engine) as session, session.begin():
        session.connection().exec_driver_sql(f"CREATE TRIGGER refuses {refuses}")
        with pytest.raises(StoreError, match="not today"):
            outbox.add(session, paid)
        session.connection().exec_driver_sql("DROP TRIGGER refuses")
    with Session(engine) as session, session.begin():
        outbox.add(session, paid)
    assert len(file.rows("outbox")) == 1
