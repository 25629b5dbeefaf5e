"""The door for SQLAlchemy: Outbox and Inbox on the caller's Session or Connection, and their async twins.

Statements run at once, on the session's own connection, inside its transaction: a savepoint takes its events along.
"""

from pillarbox.errors import MissingExtra

try:
    import sqlalchemy as _sqlalchemy  # noqa: F401 - what follows needs it
except ImportError as error:
    raise MissingExtra("sqlalchemy", "pillarbox.sqlalchemy") from error

from pillarbox.sqlalchemy.inbox import AsyncInbox, Inbox
from pillarbox.sqlalchemy.outbox import AsyncOutbox, Outbox
from pillarbox.sqlalchemy.table import outbox_table

__all__ = ["AsyncInbox", "AsyncOutbox", "Inbox", "Outbox", "outbox_table"]
