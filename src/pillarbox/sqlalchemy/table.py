"""The outbox as a table on the application's own MetaData, for Alembic and for queries."""

from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.types import UserDefinedType

from pillarbox.errors import ConfigError

_TIMES = "BETWEEN -62135596800000000 AND 253402300799999999"
_SQLITE_CHECKS = (
    "id > 0",
    "(payload IS NULL) <> (body IS NULL)",
    "event_type <> '' AND topic <> '' AND instr(topic, char(0)) = 0",
    "typeof(event_id) = 'text' AND typeof(aggregate_type) = 'text' AND typeof(aggregate_id) = 'text'",
    "typeof(event_type) = 'text' AND typeof(topic) = 'text'",
    "typeof(payload) IN ('text', 'null') AND typeof(body) IN ('blob', 'null')",
    "typeof(content_type) IN ('text', 'null') AND typeof(headers) IN ('text', 'null')",
    "typeof(idempotency_key) IN ('text', 'null')",
    "typeof(number) IN ('integer', 'null') AND number >= 0",
    f"typeof(available_at) IN ('integer', 'null') AND available_at {_TIMES}",
    f"typeof(occurred_at) IN ('integer', 'null') AND occurred_at {_TIMES}",
    "typeof(created_at) = 'integer' AND created_at BETWEEN 0 AND 253402300799999999",
)


_POSTGRES_CHECKS = {
    "payload_or_body": "num_nonnulls(payload, body) = 1",
    "type_and_topic": "event_type <> '' AND length(topic) BETWEEN 1 AND 255",
    "number": "number >= 0",
    "instants": (
        "least(available_at, occurred_at, created_at) >= '0001-01-01 00:00:00+00'"
        " AND greatest(available_at, occurred_at, created_at) <= '9999-12-31 23:59:59.999999+00'"
    ),
}
_LANE = (
    "get_byte(sha256(replace(CASE WHEN aggregate_id = '' THEN event_id::text"
    r" ELSE aggregate_type || ':' || aggregate_id END, '\', '\\')::bytea), 0) & 63"
)


def outbox_table(
    metadata: sa.MetaData,
    prefix: str = "pillarbox_",
    *,
    dialect: Literal["sqlite", "postgresql"] = "sqlite",
    schema: str | None = None,
) -> sa.Table:
    """Put the outbox on the application's own MetaData, so that its migrations (Alembic) know the table.

    The columns are those of one database, so `dialect` names it, as SQLAlchemy does.
    """
    name = f"{prefix}outbox"
    if dialect == "sqlite":
        table = _sqlite(name, metadata)
    elif dialect == "postgresql":
        table = _postgres(name, metadata, schema)
    else:
        raise ConfigError(f"dialect: {dialect!r} is neither 'sqlite' nor 'postgresql'")

    @sa.event.listens_for(table, "before_create")
    def refuse_another(target: sa.Table, connection: sa.Connection, **_: Any) -> None:
        if connection.dialect.name != dialect:
            raise ConfigError(
                f"{name}: this is the table for {dialect}: for {connection.dialect.name} make it with"
                f" outbox_table(metadata, dialect={connection.dialect.name!r})"
            )

    return table


class _Xid8(UserDefinedType[int]):
    """PostgreSQL's 64-bit transaction ids, for which SQLAlchemy has no type."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


def _postgres(name: str, metadata: sa.MetaData, schema: str | None) -> sa.Table:
    instant = sa.TIMESTAMP(timezone=True)
    return sa.Table(
        name,
        metadata,
        # Before id, because defaults are evaluated in this order.
        sa.Column("xid", _Xid8, nullable=False, server_default=sa.text("pg_current_xact_id()")),
        sa.Column("id", sa.BigInteger, sa.Identity(always=True, cache=1), primary_key=True),
        sa.Column("event_id", sa.Uuid, nullable=False, server_default=sa.text("gen_random_uuid()")),
        sa.Column("aggregate_type", sa.Text, nullable=False, server_default=""),
        sa.Column("aggregate_id", sa.Text, nullable=False, server_default=""),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("payload", pg.JSON(none_as_null=True)),
        sa.Column("body", sa.LargeBinary),
        sa.Column("content_type", sa.Text),
        sa.Column("headers", pg.JSON(none_as_null=True)),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("number", sa.BigInteger),
        sa.Column("available_at", instant),
        sa.Column("occurred_at", instant),
        sa.Column("created_at", instant, nullable=False, server_default=sa.text("clock_timestamp()")),
        sa.Column("lane", sa.SmallInteger, sa.Computed(_LANE, persisted=True), nullable=False),
        *(sa.CheckConstraint(check, name=f"{name}_{of}") for of, check in _POSTGRES_CHECKS.items()),
        sa.Index(f"{name}_xid", "xid", "id"),
        sa.Index(f"{name}_aggregate", "aggregate_type", "aggregate_id", "id"),
        sa.Index(f"{name}_created", "created_at", postgresql_using="brin", postgresql_with={"autosummarize": "on"}),
        schema=schema,
    )


def _sqlite(name: str, metadata: sa.MetaData) -> sa.Table:
    now = sa.text("(CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER))")
    uuid = sa.text(
        "(lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'"
        " || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(hex(randomblob(2)), 2) || '-'"
        " || hex(randomblob(6))))"
    )
    return sa.Table(
        name,
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        sa.Column("event_id", sa.Text, nullable=False, server_default=uuid),
        sa.Column("aggregate_type", sa.Text, nullable=False, server_default=""),
        sa.Column("aggregate_id", sa.Text, nullable=False, server_default=""),
        sa.Column("event_type", sa.Text, nullable=False),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("payload", sa.Text),
        sa.Column("body", sa.LargeBinary),
        sa.Column("content_type", sa.Text),
        sa.Column("headers", sa.Text),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("number", sa.Integer),
        sa.Column("available_at", sa.Integer),
        sa.Column("occurred_at", sa.Integer),
        sa.Column("created_at", sa.Integer, nullable=False, server_default=now),
        *map(sa.CheckConstraint, _SQLITE_CHECKS),
        sa.Index(f"{name}_event", "event_id"),
        sa.Index(f"{name}_aggregate", "aggregate_type", "aggregate_id", "id"),
        sa.Index(f"{name}_topic", "topic", "id"),
        sqlite_autoincrement=True,
    )
