"""The PostgreSQL store: an append-only log that is read by stored snapshots."""

from pillarbox.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
