"""The store on SQLite: the embedded default. `SqliteStore` is the only name that others need."""

from pillarbox.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
