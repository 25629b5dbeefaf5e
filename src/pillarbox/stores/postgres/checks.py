"""What a server must be like for the log to be safe on it; refused otherwise, with advice."""

from pillarbox.errors import ConfigError, StoreError, StoreUnavailable
from pillarbox.stores.postgres.connection import Connection
from pillarbox.stores.postgres.pooling import check_transactions

_IMITATIONS = ("CockroachDB", "-YB-", "Yugabyte", "Redshift")


async def check_server(connection: Connection, place: str) -> None:
    """Refuse a standby, an encoding other than UTF-8, no real snapshots, a log fed by logical replication, and a pooler
    that allows no transactions."""
    await check_transactions(connection)
    [[version, recovering, outbox, encoding]] = await connection.run(
        "SELECT version(), pg_is_in_recovery(), to_regclass(%s)::oid, current_setting('server_encoding')",
        [f"{place}outbox"],
    )
    if encoding != "UTF8":
        raise ConfigError(
            f"database: its encoding is {encoding}, which cannot hold every event: create it with ENCODING 'UTF8'"
            " TEMPLATE template0"
        )
    if imitation := next((name for name in _IMITATIONS if name in version), None):
        raise ConfigError(
            f"database: {imitation} has no snapshots as PostgreSQL has them: the log cannot be read there"
        )
    if recovering:
        raise StoreUnavailable("this server is a standby: the relay needs the primary, for it stores what it has read")
    if outbox is None:
        return
    [[subscribed]] = await connection.run(
        "SELECT EXISTS (SELECT 1 FROM pg_subscription_rel WHERE srrelid = %s)", [outbox]
    )
    if subscribed:
        raise StoreError(
            f"{place}outbox is fed by logical replication: its transaction ids are those of this server and mean"
            " nothing; let the relay run on the publishing server"
        )
