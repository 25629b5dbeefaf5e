"""Billing: receives the shop's events and keeps a balance per order, in a database of its own.

pillarbox consume billing:inbox --topic order-events
python billing.py           prints the balances
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass

from pillarbox import Event
from pillarbox.dbapi import Inbox


@dataclass
class OrderPlaced:
    """What the shop says when an order is placed, as far as billing cares."""

    order: int
    total: int


@dataclass
class OrderChanged:
    """What the shop says when it is paid or cancelled."""

    order: int


def connect() -> sqlite3.Connection:
    """Open the billing database."""
    connection = sqlite3.connect("billing.db", timeout=10)
    connection.execute("CREATE TABLE IF NOT EXISTS accounts (order_id INTEGER PRIMARY KEY, due INTEGER, state TEXT)")
    return connection


inbox = Inbox("billing", connect)


@inbox.handler("OrderPlaced", payload=OrderPlaced)
def open_account(connection: sqlite3.Connection, event: Event[OrderPlaced]) -> None:
    """Demand the total."""
    connection.execute("INSERT INTO accounts VALUES (?, ?, 'open')", [event.payload.order, event.payload.total])
    print("order", event.payload.order, "is due", flush=True)


@inbox.handler("OrderPaid", payload=OrderChanged)
def settle(connection: sqlite3.Connection, event: Event[OrderChanged]) -> None:
    """Close the account; it was opened before, since the events of an order come in order."""
    changed = connection.execute(
        "UPDATE accounts SET due = 0, state = 'paid' WHERE order_id = ?", [event.payload.order]
    )
    assert changed.rowcount == 1
    print("order", event.payload.order, "is paid", flush=True)


@inbox.handler("OrderCancelled", payload=OrderChanged)
def waive(connection: sqlite3.Connection, event: Event[OrderChanged]) -> None:
    """Demand nothing any more."""
    connection.execute("UPDATE accounts SET due = 0, state = 'cancelled' WHERE order_id = ?", [event.payload.order])
    print("order", event.payload.order, "is cancelled", flush=True)


if __name__ == "__main__":
    with closing(connect()) as database:
        for order, due, state in database.execute("SELECT * FROM accounts ORDER BY order_id"):
            print(f"order {order}: {state}, {due} due")
