"""How a PostgreSQL server is, and our tables in it: asked of the catalogue, which everybody may read."""

import re
from datetime import timedelta
from importlib.resources import files
from typing import NamedTuple

from pillarbox.errors import ConfigError, StoreError, StoreUnavailable
from pillarbox.facts import (
    Lax,
    OpenTransaction,
    PostgresFacts,
    PreparedTransaction,
    Rights,
    VacuumedTable,
    WideRole,
    XminHolder,
)
from pillarbox.ports import Clock
from pillarbox.stores.postgres.checks import check_server
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.drift import drift_of, names_of
from pillarbox.stores.postgres.pooling import pooling
from pillarbox.stores.postgres.schema import NEEDED, Tables

TOLD = 5
"""So many of the oldest transactions are given."""
_GRANTS = re.compile(
    r"^GRANT ([A-Z, ]+?)(?: \(([a-z_, ]+)\))? ON (SEQUENCE )?((?:\{p\}\w+,?\s+)+)TO [^;]*?\{prefix\}relay\b",
    re.MULTILINE,
)
_SWITCHES = ("fsync", "full_page_writes", "autovacuum", "track_counts")
_BEYOND = ("INSERT", "UPDATE", "TRUNCATE", "TRIGGER")
"""What no relay needs of the outbox."""


class Looking:
    """Looks, and changes nothing."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables, self._clock = tables, clock

    async def facts(self, connection: Connection, other: Connection) -> PostgresFacts:
        """Ask for everything; the other connection is for what takes two."""
        await connection.open()
        schema = await self._tables.status(connection)
        [[version, standby]] = await connection.run(
            "SELECT current_setting('server_version_num')::int, pg_is_in_recovery()"
        )
        settings: dict[str, bool] = dict(
            await connection.run(
                "SELECT name, setting = 'on' FROM pg_settings WHERE name = ANY (%s)", [list(_SWITCHES)]
            )
        )
        made = schema.version == NEEDED
        pooler = await pooling(connection, other)
        return PostgresFacts(
            schema=schema,
            version=version,
            standby=standby,
            skew=await self._skew(connection),
            pooler=pooler,
            refusal=None if standby or pooler == "statement" else await self._refusal(connection),
            rights=await self._rights(connection, made=made),
            drift=await drift_of(connection, self._tables) if made else (),
            **settings,
            lax=await self._lax(connection),
            identity_cache=await self._identity_cache(connection),
            transactions=await self._transactions(connection),
            prepared=await self._prepared(connection),
            xmin=await self._xmin(connection),
            tables=await self._vacuumed(connection),
        )

    async def _refusal(self, connection: Connection) -> str | None:
        """Ask as a relay does that starts."""
        try:
            await check_server(connection, self._tables.place)
        except StoreUnavailable:
            raise
        except (ConfigError, StoreError) as error:
            return str(error)
        return None

    async def _skew(self, connection: Connection) -> timedelta:
        """Compare the clocks; what the way there and back may have taken is not counted."""
        before = self._clock.now()
        [[there]] = await connection.run("SELECT clock_timestamp()")
        after = self._clock.now()
        if before <= there <= after:
            return timedelta(0)
        ahead: timedelta = there - (after if there > after else before)
        return ahead

    async def _lax(self, connection: Connection) -> list[Lax]:
        """Look where commits do not wait for the disk by default: the server, databases, roles."""
        [[everywhere]] = await connection.run(
            "SELECT setting = 'off' AND source NOT IN ('database', 'user', 'database user', 'client', 'session')"
            " FROM pg_settings WHERE name = 'synchronous_commit'"
        )
        rows = await connection.run(
            "SELECT r.rolname, d.datname FROM pg_db_role_setting s LEFT JOIN pg_roles r ON r.oid = s.setrole"
            " LEFT JOIN pg_database d ON d.oid = s.setdatabase"
            " WHERE 'synchronous_commit=off' = ANY (s.setconfig)"
            " AND (s.setdatabase = 0 OR d.datname = current_database()) ORDER BY 1, 2"
        )
        return [*([Lax()] if everywhere else []), *(Lax(role, database) for role, database in rows)]

    async def _identity_cache(self, connection: Connection) -> int:
        rows = await connection.run(
            "SELECT seqcache FROM pg_sequence WHERE seqrelid = to_regclass(%s)", [f"{self._tables.place}outbox_id_seq"]
        )
        return int(rows[0][0]) if rows else 1

    async def _transactions(self, connection: Connection) -> list[OpenTransaction]:
        rows = await connection.run(
            "SELECT pid, usename::text, application_name, state, xact_start FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
            " AND backend_type = 'client backend' ORDER BY xact_start LIMIT %s",
            [TOLD],
        )
        return [OpenTransaction(*row) for row in rows]

    async def _prepared(self, connection: Connection) -> list[PreparedTransaction]:
        rows = await connection.run(
            "SELECT gid, owner::text, prepared FROM pg_prepared_xacts WHERE database = current_database()"
            " ORDER BY prepared LIMIT %s",
            [TOLD],
        )
        return [PreparedTransaction(*row) for row in rows]

    async def _xmin(self, connection: Connection) -> list[XminHolder]:
        rows = await connection.run(
            "SELECT * FROM ("
            "SELECT CASE WHEN backend_type = 'walsender' THEN 'standby' ELSE 'transaction' END AS kind,"
            " pid::text AS name, age(backend_xmin) AS behind FROM pg_stat_activity WHERE backend_xmin IS NOT NULL"
            " AND pid <> pg_backend_pid() AND (datname = current_database() OR backend_type = 'walsender')"
            " UNION ALL SELECT 'prepared transaction', gid, age(transaction) FROM pg_prepared_xacts"
            " WHERE database = current_database()"
            " UNION ALL SELECT 'slot', slot_name::text, greatest(age(xmin), age(catalog_xmin))"
            " FROM pg_replication_slots WHERE xmin IS NOT NULL OR catalog_xmin IS NOT NULL"
            ") held ORDER BY behind DESC LIMIT %s",
            [TOLD],
        )
        return [XminHolder(*row) for row in rows]

    async def _vacuumed(self, connection: Connection) -> list[VacuumedTable]:
        rows = await connection.run(
            "SELECT c.relname::text, coalesce((SELECT option_value::boolean FROM pg_options_to_table(c.reloptions)"
            " WHERE option_name = 'autovacuum_enabled'), true),"
            " coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0)"
            " FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid"
            " WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' AND c.relname = ANY (%s) ORDER BY 1",
            [self._tables.schema, names_of(self._tables)],
        )
        return [VacuumedTable(*row) for row in rows]

    async def _rights(self, connection: Connection, *, made: bool) -> Rights:
        outbox = f"{self._tables.place}outbox"
        [[user, superuser, owner, has_role, sees]] = await connection.run(
            "SELECT current_user::text, r.rolsuper,"
            " coalesce(pg_has_role(c.relowner, 'USAGE'), false),"
            " (SELECT pg_has_role(oid, 'USAGE') FROM pg_roles WHERE rolname = %s),"
            " pg_has_role('pg_read_all_stats', 'USAGE')"
            " FROM pg_roles r LEFT JOIN pg_class c ON c.oid = to_regclass(%s) WHERE r.rolname = current_user",
            [self._role("relay"), outbox],
        )
        if not made:
            return Rights(user, superuser, owner, has_role=has_role, sees_others=sees)
        refused = await self._refused(connection, [_Grant(right, "", "", outbox) for right in _BEYOND])
        public = await connection.run(
            "SELECT DISTINCT c.oid::regclass::text FROM pg_class c, aclexplode(c.relacl) a"
            " WHERE a.grantee = 0 AND c.relnamespace = to_regnamespace(%s) AND c.relname = ANY (%s) ORDER BY 1",
            [self._tables.schema, names_of(self._tables)],
        )
        return Rights(
            user,
            superuser,
            owner,
            tuple(map(str, await self._refused(connection, self._needed()))),
            tuple(right for right in _BEYOND if right not in {grant.right for grant in refused}),
            tuple(row[0] for row in public),
            await self._wide(connection, outbox),
            has_role,
            sees,
        )

    def _role(self, name: str) -> str:
        return f"{self._tables.prefix}{name}"

    def _needed(self) -> "list[_Grant]":
        """Read what a relay needs from the script that grants it."""
        script = files("pillarbox.stores.postgres").joinpath("roles.sql").read_text()
        return [
            _Grant(right.strip(), column.strip(), kind.strip(), f"{self._tables.place}{name}")
            for rights, columns, kind, names in _GRANTS.findall(script)
            for name in re.findall(r"\{p\}(\w+)", names)
            for right in rights.split(",")
            for column in columns.split(",")
        ]

    async def _refused(self, connection: Connection, asked: "list[_Grant]") -> "list[_Grant]":
        """Choose the rights that the user does not have."""
        rows = await connection.run(
            "SELECT a.wanted, a.part, a.kind, a.name"
            " FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[]) a(wanted, part, kind, name)"
            " CROSS JOIN LATERAL (SELECT to_regclass(a.name)::oid AS oid) c WHERE c.oid IS NOT NULL AND NOT CASE"
            " WHEN a.kind = 'SEQUENCE' THEN has_sequence_privilege(c.oid, a.wanted)"
            " WHEN a.part <> '' THEN has_column_privilege(c.oid, a.part, a.wanted)"
            " ELSE has_table_privilege(c.oid, a.wanted) END",
            [list(column) for column in zip(*asked, strict=True)],
        )
        return [_Grant(*row) for row in rows]

    async def _wide(self, connection: Connection, outbox: str) -> tuple[WideRole, ...]:
        """Look to whom the outbox was granted for more than their work. Writers only add. Relays read and delete.
        Others may read it (Debezium does), and no more."""
        rows = await connection.run(
            "WITH grants AS (SELECT c.relowner, a.grantee, a.privilege_type AS granted FROM pg_class c,"
            " aclexplode(c.relacl) a WHERE c.oid = to_regclass(%s)"
            " UNION SELECT c.relowner, a.grantee, a.privilege_type FROM pg_class c JOIN pg_attribute t"
            " ON t.attrelid = c.oid, aclexplode(t.attacl) a"
            " WHERE c.oid = to_regclass(%s) AND a.privilege_type = 'UPDATE'),"
            " known AS (SELECT (SELECT oid FROM pg_roles WHERE rolname = %s) AS relay,"
            " (SELECT oid FROM pg_roles WHERE rolname = %s) AS writer)"
            " SELECT r.rolname::text, array_agg(g.granted::text ORDER BY g.granted)"
            " FROM grants g JOIN pg_roles r ON r.oid = g.grantee CROSS JOIN known k"
            " CROSS JOIN LATERAL (SELECT coalesce(pg_has_role(r.oid, k.relay, 'MEMBER'), false) AS relays,"
            " coalesce(pg_has_role(r.oid, k.writer, 'MEMBER'), false) AS writes) does"
            " WHERE NOT r.rolsuper AND NOT pg_has_role(r.oid, g.relowner, 'USAGE') AND r.rolname <> current_user"
            " AND NOT (g.granted = 'INSERT' OR (g.granted = 'DELETE' AND relays)"
            " OR (g.granted = 'SELECT' AND (relays OR NOT writes))) GROUP BY r.rolname ORDER BY r.rolname",
            [outbox, outbox, self._role("relay"), self._role("writer")],
        )
        return tuple(WideRole(name, tuple(granted)) for name, granted in rows)


class _Grant(NamedTuple):
    right: str
    column: str
    """Empty: all of it."""
    kind: str
    """SEQUENCE, or empty for a table or view."""
    name: str

    def __str__(self) -> str:
        return f"{self.right}{f' ({self.column})' if self.column else ''} on {self.name}"
