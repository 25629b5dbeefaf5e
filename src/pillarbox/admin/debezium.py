"""Debezium: a Kafka Connect configuration with which its EventRouter carries this outbox as our own relay does.

Key, body and headers are those of the plain format. Two things EventRouter cannot do: it packs an event's own headers
into one, which the inbox unpacks; and it takes one column as the body, so a row that has the other one stops it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from pillarbox.core.message import PACKED_HEADERS
from pillarbox.errors import ConfigError
from pillarbox.settings import Settings
from pillarbox.settings.urls import parse_url

Payload = Literal["json", "body"]

PASSWORD = "${env:OUTBOX_DATABASE_PASSWORD}"
"""What stands in the password's place: a worker with the config provider `env` puts it in."""
HEADERS = {
    "event_type": "type",
    "content_type": "content_type",
    "aggregate_type": "aggregate_type",
    "aggregate_id": "aggregate_id",
    "number": "number",
    "idempotency_key": "idempotency_key",
    "occurred_at": "occurred_at",
    "headers": PACKED_HEADERS,
}
"""The header that a column becomes; EventRouter itself makes `id`."""
_COLUMNS = {"json": ("payload", "body"), "body": ("body", "payload")}
"""What is carried, and what must not be there."""
_TEXT = "org.apache.kafka.connect.storage.StringConverter"
_OURS = re.compile(
    r"transforms.*|predicates.*|(key|value|header)\.converter.*|table\..*|column\..*|schema\..*|errors\.tolerance|message\..*"
    r"|connector\.class|tasks\.max|plugin\.name|skipped\.operations|database\.password|.*\.handling\.mode"
)
"""What others must not set: events would change, or be lost without a word."""
_PLACEHOLDER = re.compile(r"\$\{[\w.-]+:[^{}]+\}")
_NAME = re.compile(r"[a-z0-9_]{1,63}")
_SSL = ("sslmode", "sslrootcert", "sslcert", "sslkey")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the connector finds PostgreSQL."""

    host: str
    port: int
    user: str
    database: str
    password: str | None = field(default=None, repr=False)
    ssl: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Read the database's URL; the connector runs elsewhere, so everything must stand in it."""
        if settings.database is None:
            raise ConfigError("database: is not set: give --database postgresql://user@host:5432/shop")
        url = parse_url("database", settings.database)
        if url.scheme not in ("postgresql", "postgres"):
            raise ConfigError(f"database: Debezium is for an outbox on PostgreSQL, and this one is on {url.scheme}")
        parts = urlsplit(f"postgresql:{url.rest}")
        query = dict(parse_qsl(parts.query))
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        user, database = unquote(parts.username or ""), unquote(parts.path.removeprefix("/"))
        if not (host and user and database) or "," in parts.netloc:
            raise ConfigError(
                "database: the connector runs in another process, so the URL must name the user, one host and the"
                " database: postgresql://user@host:5432/shop"
            )
        password = None if parts.password is None else unquote(parts.password)
        ssl = {name: query[name] for name in _SSL if name in query}
        return cls(host, port or 5432, user, database, password, ssl)


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector's name, which is also that of its slot and of its publication, and its configuration."""

    name: str
    config: Mapping[str, str]

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        payload: Payload = "json",
        name: str | None = None,
        password_from: str | None = None,
        with_password: bool = False,
        heartbeat: int = 0,
        options: Mapping[str, str] | None = None,
    ) -> Self:
        """Make the connector for the outbox that the settings name. The password is left out unless it is asked for."""
        source = Source.of(settings)
        name = _name(name, settings, source)
        _refuse_other_formats(settings)
        config = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": "1",
            "plugin.name": "pgoutput",
            **_database(source, _password(source, password_from, with_password)),
            **_reading(name, _table(settings), payload),
            **_writing(payload),
            **_routing(_table(settings), payload),
            **_beating(heartbeat),
        }
        return cls(name, config | _checked(options or {}))

    @property
    def has_placeholder(self) -> bool:
        """Say whether the worker must put the password in."""
        return _PLACEHOLDER.fullmatch(self.config.get("database.password", "")) is not None


def preparation(settings: Settings, name: str | None = None) -> str:
    """Write the script that the connector's database needs: the publication before the slot, and the user's rights."""
    source = Source.of(settings)
    name, table = _name(name, settings, source), _table(settings)
    user = '"{}"'.format(source.user.replace('"', '""'))
    return f"""\
-- What the connector {name} needs in this database; wal_level must be logical. Run it as a superuser, or
-- as the tables' owner with the right REPLICATION. Debezium carries what is added from the slot on, a relay the rest.
BEGIN;
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = '{name}') THEN
        CREATE PUBLICATION "{name}" FOR TABLE {table} WITH (publish = 'insert');
    END IF;
END $$;
GRANT USAGE ON SCHEMA {settings.outbox.schema} TO {user};
GRANT SELECT ON {table} TO {user};
COMMIT;
SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')
    WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '{name}');
"""


def _table(settings: Settings) -> str:
    return f"{settings.outbox.schema}.{settings.outbox.prefix}outbox"


def _name(name: str | None, settings: Settings, source: Source) -> str:
    """Check a name, or make one; a slot's is known to the whole cluster, so the database's is part of it."""
    schema = "" if settings.outbox.schema == "public" else f"{settings.outbox.schema}_"
    database = re.sub(r"[^a-z0-9_]", "_", source.database.lower())
    name = f"{database}_{schema}{settings.outbox.prefix}outbox" if name is None else name
    if not _NAME.fullmatch(name):
        raise ConfigError(f"--name: {name!r} must be small letters, digits and underscores, at most 63, for a slot")
    return name


def _refuse_other_formats(settings: Settings) -> None:
    for topic, one in settings.topics.items():
        if one.format != "plain":
            raise ConfigError(
                f"topic.{topic}.format: {one.format} is written by a relay; Debezium's EventRouter writes plain only"
            )


def _password(source: Source, password_from: str | None, with_password: bool) -> str | None:
    if with_password and password_from is not None:
        raise ConfigError("--with-password, --password-from: give one of them")
    if with_password and source.password is None:
        raise ConfigError("--with-password: the database's URL holds no password: postgresql://user:password@host/shop")
    if with_password:
        return source.password
    if password_from is not None and not _PLACEHOLDER.fullmatch(password_from):
        raise ConfigError(f"--password-from: what was given is no placeholder such as {PASSWORD}, for the worker")
    return password_from or (None if source.password is None else PASSWORD)


def _database(source: Source, password: str | None) -> dict[str, str]:
    config = {
        "database.hostname": source.host,
        "database.port": str(source.port),
        "database.user": source.user,
        "database.dbname": source.database,
        **{f"database.{name}": value for name, value in source.ssl.items()},
    }
    return config if password is None else config | {"database.password": password}


def _reading(name: str, table: str, payload: Payload) -> dict[str, str]:
    columns = ("id", "event_id", "topic", *HEADERS, _COLUMNS[payload][0])
    return {
        "topic.prefix": name,
        "slot.name": name,
        "publication.name": name,
        # One that Debezium made would have updates and deletes too, of which retention makes many.
        "publication.autocreate.mode": "disabled",
        "table.include.list": table,
        "column.include.list": f"{table}.({'|'.join(columns)})",
        # It begins at the slot: everything since is carried, and nothing that a relay has published long ago.
        "snapshot.mode": "no_data",
        "skipped.operations": "u,d,t",
        "tombstones.on.delete": "false",
        # The default of 500 is what every event would wait for.
        "poll.interval.ms": "10",
        "extended.headers.enabled": "false",
        # What applications write into the WAL by pg_logical_emit_message is no event.
        "message.prefix.exclude.list": ".*",
    }


def _writing(payload: Payload) -> dict[str, str]:
    config = {"key.converter": _TEXT, "header.converter": _TEXT, "errors.tolerance": "none"}
    if payload == "json":
        return config | {"value.converter": _TEXT}
    return config | {
        "value.converter": "io.debezium.converters.BinaryDataConverter",
        # For heartbeats, which are no events.
        "value.converter.delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.delegate.converter.type.schemas.enable": "false",
    }


def _routing(table: str, payload: Payload) -> dict[str, str]:
    carried, other = _COLUMNS[payload]
    router = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "route.by.field": "topic",
        "route.topic.replacement": "${routedByValue}",
        "table.field.event.id": "event_id",
        "table.field.event.key": "aggregate_id",
        "table.field.event.payload": carried,
        "table.fields.additional.placement": ",".join(f"{column}:header:{name}" for column, name in HEADERS.items()),
        "table.op.invalid.behavior": "fatal",
    }
    # EventRouter would publish a row of the other kind as a message without a body. No transformation is made to
    # refuse; this one cannot read its words as the time that the key is, and says both.
    words = f"a row of {table} has no {carried} but a {other}, and this connector carries {carried} alone"
    refusal = {
        "type": "org.apache.kafka.connect.transforms.TimestampConverter$Key",
        "target.type": "unix",
        "format": f"'{words}'",
        "predicate": "empty",
    }
    return {
        "transforms": "outbox,refuse",
        **{f"transforms.outbox.{name}": value for name, value in router.items()},
        **{f"transforms.refuse.{name}": value for name, value in refusal.items()},
        "predicates": "empty",
        "predicates.empty.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
    }


def _beating(seconds: int) -> dict[str, str]:
    """Let the slot move on by itself. PostgreSQL tells of other tables' WAL only together with something of its own,
    and Debezium confirms only together with a record."""
    if not seconds:
        return {}
    return {
        "heartbeat.interval.ms": str(seconds * 1000),
        "heartbeat.action.query": "SELECT pg_logical_emit_message(false, 'pillarbox', '')",
    }


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    for name in options:
        if _OURS.fullmatch(name):
            raise ConfigError(
                f"--option {name}: cannot be set: events would not arrive as a relay brings them, or not at all"
            )
    return dict(options)
