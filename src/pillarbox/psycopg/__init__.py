"""The door for psycopg 3: Outbox and Inbox on the caller's own connection, inside its transaction; each also async.

Nothing is committed here but what a Consumer asks an Inbox to do, and no second connection is opened.
"""

from pillarbox.errors import MissingExtra

try:
    import psycopg as _psycopg  # noqa: F401 - what follows needs it
except ImportError as error:
    raise MissingExtra("postgres", "pillarbox.psycopg") from error

from pillarbox.psycopg.inbox import AsyncInbox, Inbox
from pillarbox.psycopg.outbox import AsyncOutbox, Outbox

__all__ = ["AsyncInbox", "AsyncOutbox", "Inbox", "Outbox"]
