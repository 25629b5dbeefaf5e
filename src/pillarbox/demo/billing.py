"""Billing: the demo's consumer. Each event becomes one row of a ledger, through the inbox, in one transaction.

`pillarbox consume pillarbox.demo.billing:inbox` runs it; BILLING_DATABASE names its database file.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from pillarbox import Event
from pillarbox.dbapi import Inbox

TABLES = """
-- No unique index on event_id: if an event were applied twice, it would show.
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL, aggregate TEXT NOT NULL, version INTEGER NOT NULL, amount INTEGER NOT NULL
);
"""


def create_tables(database: Path) -> None:
    """Make the ledger beside the tables of the inbox."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(TABLES)


def connect() -> sqlite3.Connection:
    """Open the billing database."""
    return sqlite3.connect(os.environ["BILLING_DATABASE"], timeout=60)


inbox = Inbox("billing", connect)


@inbox.handler("OrderPlaced")
@inbox.handler("OrderPaid")
@inbox.handler("OrderShipped")
@inbox.handler("ProductSold")
def book(connection: sqlite3.Connection, event: Event[dict[str, Any]]) -> None:
    """Book an event's amount: not idempotent, so only the inbox stands between a copy and a wrong bill."""
    assert event.aggregate is not None
    connection.execute(
        "INSERT INTO ledger (event_id, aggregate, version, amount) VALUES (?, ?, ?, ?)",
        [str(event.id), "/".join(event.aggregate), event.payload["version"], event.payload["amount"]],
    )
