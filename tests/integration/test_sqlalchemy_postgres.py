"""What is particular to SQLAlchemy on PostgreSQL: drivers, isolation levels, the table for Alembic, after_commit."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, MetaData, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from pillarbox.core.event import Event
from pillarbox.errors import ConfigError, DuplicateEvent, NoTransaction, SchemaMismatch, StoreError
from pillarbox.sqlalchemy import AsyncOutbox, Outbox, outbox_table
from tests.integration.postgres_shop import made, read, roles

outbox, async_outbox = Outbox(), AsyncOutbox()
PING: Event[dict[str, str]] = Event("Ping", {})
SYNC, DRIVERS = "postgresql+psycopg", ["postgresql+psycopg", "postgresql+asyncpg"]


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


@pytest.fixture
def url(database: str) -> str:
    return made(database)


def by(driver: str, url: str) -> str:
    return url.replace("postgresql", driver, 1)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(by(SYNC, url))
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_what_is_pending_is_written_before_the_event(engine: Engine, url: str) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *facts: statements.append(facts[2].split()[2]))
    with Session(engine) as session, session.begin():
        order = Order(total=42)
        session.add(order)
        session.flush()
        outbox.add(session, Event("Placed", {}, aggregate=("order", order.id)))
    assert statements == ["orders", "public.pillarbox_outbox"]
    assert read(url, "aggregate_id") == ["1"]


@pytest.mark.parametrize("where", ["engine", "connection", "session", "options"])
def test_autocommit_is_refused_wherever_it_was_asked_for(where: str, url: str) -> None:
    engine = create_engine(by(SYNC, url), **({"isolation_level": "AUTOCOMMIT"} if where == "engine" else {}))
    in_autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    transaction: Any = {
        "engine": lambda: Session(engine),
        "connection": lambda: engine.connect().execution_options(isolation_level="AUTOCOMMIT"),
        "session": lambda: Session(in_autocommit),
        "options": in_autocommit.connect,
    }[where]()
    with pytest.raises(NoTransaction, match="READ COMMITTED"):
        outbox.add(transaction, PING)
    transaction.close()
    engine.dispose()
    assert read(url, "id") == []


@pytest.mark.parametrize("driver", DRIVERS)
async def test_an_async_engine_in_autocommit_is_refused(driver: str, url: str) -> None:
    engine = create_async_engine(by(driver, url), isolation_level="AUTOCOMMIT")
    async with AsyncSession(engine) as session:
        with pytest.raises(NoTransaction):
            await async_outbox.add(session, PING)
    await engine.dispose()
    assert read(url, "id") == []


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_other_isolation_level_is_fine(level: Any, url: str) -> None:
    engine = create_engine(by(SYNC, url), isolation_level=level)
    with Session(engine) as session, session.begin():
        outbox.add(session, PING, Event("Paid", {}, aggregate=("order", 1), numbered=True, idempotency_key="k"))
    engine.dispose()
    assert read(url, "event_type") == ["Ping", "Paid"]


def test_a_nested_block_takes_its_events_and_its_keys_along(engine: Engine, url: str) -> None:
    paid: Event[Any] = Event("Paid", {}, aggregate=("order", 1), numbered=True, idempotency_key="k")
    with Session(engine) as session, session.begin():
        with session.begin_nested() as block:
            outbox.add(session, paid)
            block.rollback()
        outbox.add(session, paid)
        with session.begin_nested(), pytest.raises(DuplicateEvent):
            outbox.add(session, paid)
    assert read(url, "number") == [1]


@pytest.mark.parametrize("driver", DRIVERS)
async def test_errors_of_the_database_are_ours(driver: str, database: str) -> None:
    engine = create_async_engine(by(driver, database))
    async with AsyncSession(engine) as session:
        with pytest.raises(SchemaMismatch, match=r'^relation "public.pillarbox_outbox" does not exist: run `pillarbox'):
            await async_outbox.add(session, PING)
        with pytest.raises(StoreError, match="an earlier statement of this transaction failed"):
            await async_outbox.add(session, PING)
    await engine.dispose()


@pytest.mark.parametrize("driver", DRIVERS)
async def test_thousands_of_events_are_one_statement(driver: str, url: str) -> None:
    engine = create_async_engine(by(driver, url))
    statements: list[str] = []
    event.listen(engine.sync_engine, "before_cursor_execute", lambda *facts: statements.append(facts[2]))
    async with AsyncSession(engine) as session, session.begin():
        await async_outbox.add(session, *(Event("X", {"n": n}, aggregate=("o", n % 7)) for n in range(5_000)))
    await engine.dispose()
    assert len(statements) == 1
    assert read(url, "payload->>'n'") == [str(n) for n in range(5_000)]


def test_notify_is_for_postgres(engine: Engine) -> None:
    ringing = Outbox(notify=True)
    with Session(engine) as session:
        ringing.add(session, PING)
    sqlite = create_engine("sqlite://")
    with Session(sqlite) as session, pytest.raises(ConfigError, match="notify: only PostgreSQL has NOTIFY"):
        ringing.add(session, PING)
    sqlite.dispose()


def test_after_commit_is_called_after_the_commit_and_not_before(engine: Engine, url: str) -> None:
    seen: list[int] = []
    ringing = Outbox(after_commit=lambda: seen.append(len(read(url, "id"))))
    with Session(engine) as session:
        ringing.add(session, PING)
        with session.begin_nested():
            ringing.add(session, PING)
        assert seen == []
        session.commit()
        assert seen == [2]
        ringing.add(session, PING)
        session.rollback()
        assert seen == [2]


async def test_after_commit_is_called_for_an_async_session(url: str) -> None:
    engine, seen = create_async_engine(by(DRIVERS[1], url)), []
    ringing = AsyncOutbox(after_commit=lambda: seen.append("rung"))
    async with AsyncSession(engine) as session, session.begin():
        await ringing.add(session, PING)
        assert seen == []
    await engine.dispose()
    assert seen == ["rung"]


def test_after_commit_knows_scoped_sessions_and_refuses_connections(engine: Engine) -> None:
    seen: list[str] = []
    ringing = Outbox(after_commit=lambda: seen.append("rung"))
    session = scoped_session(sessionmaker(engine))
    ringing.add(session, PING)
    session.commit()
    session.remove()
    assert seen == ["rung"]
    with engine.connect() as connection, pytest.raises(ConfigError, match="after_commit: a Connection does not tell"):
        ringing.add(connection, PING)


def described(url: str) -> dict[str, Any]:
    """Say what the outbox of a database is like."""
    with psycopg.connect(url) as connection:
        of = "= 'pillarbox_outbox'::regclass"
        return {
            name: connection.execute(query.encode()).fetchall()
            for name, query in {
                "columns": "SELECT attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,"
                f" pg_get_expr(adbin, adrelid) FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid"
                f" AND adnum = attnum WHERE attrelid {of} AND attnum > 0 ORDER BY attnum",
                "checks": f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid {of} ORDER BY 1",
                "indexes": "SELECT indexdef FROM pg_indexes WHERE tablename = 'pillarbox_outbox' ORDER BY 1",
                "sequence": "SELECT data_type, start_value, increment_by, cycle, cache_size FROM pg_sequences"
                " WHERE sequencename = 'pillarbox_outbox_id_seq'",
            }.items()
        }


def test_the_table_on_ones_own_metadata_is_the_migrations_table(database: str) -> None:
    metadata = MetaData()
    outbox_table(metadata, dialect="postgresql")
    engine = create_engine(by(SYNC, database))
    metadata.create_all(engine)
    theirs = described(database)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE pillarbox_outbox"))
    engine.dispose()
    assert theirs == described(made(database))


def test_the_migration_takes_a_table_that_the_application_made_as_it_is(database: str) -> None:
    metadata = MetaData()
    table = outbox_table(metadata, dialect="postgresql")
    engine = create_engine(by(SYNC, database))
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        outbox.add(session, PING)
        session.execute(table.insert().values(event_type="Plain", topic="events", payload={"a": 1}))
    made(database)
    with engine.connect() as connection:
        rows = connection.execute(table.select().order_by(table.c.id)).all()
    engine.dispose()
    assert [(row.event_type, row.payload) for row in rows] == [("Ping", {}), ("Plain", {"a": 1})]


def test_the_table_of_another_database_is_not_made(database: str) -> None:
    engine = create_engine(by(SYNC, database))
    metadata = MetaData()
    outbox_table(metadata)
    with pytest.raises(ConfigError, match=r"outbox_table\(metadata, dialect='postgresql'\)"):
        metadata.create_all(engine)
    engine.dispose()
    with pytest.raises(ConfigError, match="dialect: 'oracle' is neither"):
        outbox_table(MetaData(), dialect="oracle")  # type: ignore[arg-type]


def test_the_writers_role_is_enough(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(roles())
    engine = create_engine(by(SYNC, url))
    with Session(engine) as session, session.begin():
        session.execute(text("SET LOCAL ROLE pillarbox_writer"))
        outbox.add(session, PING)
        outbox.add(session, PING, Event("Paid", {}, aggregate=("order", 1), numbered=True, idempotency_key="k"))
    engine.dispose()
    assert len(read(url, "id")) == 3
