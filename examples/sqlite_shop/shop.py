"""A shop on plain sqlite3. Every change of an order and the event about it are one transaction.

python shop.py place 42
python shop.py pay 1
python shop.py cancel 1
"""

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from pillarbox import Event
from pillarbox.dbapi import Outbox

TABLE = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL, status TEXT NOT NULL)"
outbox = Outbox()


@contextmanager
def transaction() -> Iterator[sqlite3.Connection]:
    """Begin as a writer, commit at the end, roll back if anything is raised."""
    with closing(sqlite3.connect("shop.db", isolation_level=None, timeout=10)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(TABLE)
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise


def place(total: int) -> int:
    """Place an order."""
    with transaction() as connection:
        order = connection.execute("INSERT INTO orders (total, status) VALUES (?, 'placed')", [total]).lastrowid
        assert order is not None
        outbox.add(connection, Event("OrderPlaced", {"order": order, "total": total}, aggregate=("order", order)))
    return order


def pay(order: int) -> None:
    """Pay an order that was placed."""
    _change(order, "placed", "paid", "OrderPaid")


def cancel(order: int) -> None:
    """Cancel an order that was not paid yet."""
    _change(order, "placed", "cancelled", "OrderCancelled")


def _change(order: int, before: str, after: str, type: str) -> None:
    with transaction() as connection:
        changed = connection.execute(
            "UPDATE orders SET status = ? WHERE id = ? AND status = ?", [after, order, before]
        ).rowcount
        # The event is in this transaction, too: if the change is refused, so is the event.
        outbox.add(connection, Event(type, {"order": order}, aggregate=("order", order)))
        if not changed:
            raise SystemExit(f"order {order} is not {before}, so it cannot be {after}")


def main(verb: str, number: str) -> None:
    if verb == "place":
        print("placed order", place(int(number)))
    else:
        {"pay": pay, "cancel": cancel}[verb](int(number))
        print(f"{verb}: order {number}")


if __name__ == "__main__":
    main(*sys.argv[1:])
