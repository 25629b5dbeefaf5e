"""The shop: writer processes that place, pay and ship orders in SQLite, each change and its events in one transaction.

A writer is run as `python -m pillarbox.demo.shop DIRECTORY EVENTS SEED WRITER`. It works through its part of the plan
in stages and waits before each further one for a byte on stdin. Before a commit it writes its intent into a file of its
own, after it the outcome: that, not the outbox, is what the checker believes.
"""

import json
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from pillarbox import Event
from pillarbox.dbapi import Outbox

WRITERS = 4
STAGES = 5
TOPIC = "shop-events"
PRODUCTS = ("bench", "bookcase", "chair", "desk", "lamp", "mirror", "shelf", "stool", "table", "wardrobe")
ROLLED_BACK = 0.1
"""How many transactions are tried first and rolled back on purpose."""
LONGEST_PAUSE = 0.006
"""Seconds between two transactions of a writer, at most: customers think. (And SQLite has no queue for its lock.)"""
ORDER_EVENTS = {"placed": "OrderPlaced", "paid": "OrderPaid", "shipped": "OrderShipped"}

TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT NOT NULL, total INTEGER NOT NULL, version INTEGER NOT NULL);
CREATE TABLE products (name TEXT PRIMARY KEY, sold INTEGER NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
-- What was done, in the shop's own words: the row is there if and only if the change committed.
CREATE TABLE journal (change TEXT PRIMARY KEY, what TEXT NOT NULL, events INTEGER NOT NULL);
"""


class Change(NamedTuple):
    """One transaction of the plan: what happens to an order, and to the stock of a product if it takes some."""

    id: str
    order: int
    status: str
    amount: int
    product: str | None
    rolled_back: bool = False

    @property
    def events(self) -> int:
        """How many events it leaves behind."""
        return 0 if self.rolled_back else 1 if self.product is None else 2


def plan(events: int, seed: int, writer: int) -> Sequence[Change]:
    """Say what a writer does: always the same for the same arguments. All writers together commit `events` exactly."""
    chance = Random(f"{seed} {writer}")
    share = events // WRITERS + (writer < events % WRITERS)
    return list(_changes(share, writer, chance))


def _changes(share: int, writer: int, chance: Random) -> Iterator[Change]:
    open_orders: list[Change] = []
    count = orders = 0
    while share > 0:
        if open_orders and chance.random() < 0.65:
            before = open_orders.pop(chance.randrange(len(open_orders)))
            change = before._replace(status="paid" if before.status == "placed" else "shipped", product=None)
        else:
            orders += 1
            product = chance.choice(PRODUCTS) if share > 1 else None
            change = Change("", orders * WRITERS + writer, "placed", chance.randint(5, 500), product)
        if chance.random() < ROLLED_BACK:
            count += 1
            yield change._replace(id=f"{writer}-{count}", rolled_back=True)
        count += 1
        yield change._replace(id=f"{writer}-{count}")
        share -= change.events
        if change.status != "shipped":
            open_orders.append(change)


def in_stages(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Part a writer's plan into stages that commit about as many events each, the first one at least one."""
    total = sum(change.events for change in changes)
    done, rest = 0, list(changes)
    for stage in range(1, STAGES + 1):
        part = []
        while rest and (done * STAGES < total * stage or stage == STAGES):
            part.append(rest.pop(0))
            done += part[-1].events
        yield part


def create_tables(database: Path) -> None:
    """Make the shop's own tables beside those of the outbox."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(TABLES)
        connection.executemany("INSERT INTO products VALUES (?, 0, 0)", [[name] for name in PRODUCTS])
        connection.commit()


class Writer:
    """One writer of the shop: a connection, and a log of what it is about to do."""

    def __init__(self, directory: Path, name: int) -> None:
        self._connection = sqlite3.connect(directory / "shop.db", timeout=60, isolation_level=None)
        self._log = (directory / "intents" / f"writer-{name}.jsonl").open("ab", buffering=0)
        self._outbox = Outbox(topic=TOPIC)

    def make(self, change: Change) -> None:
        """Do one change: the rows, then the events about them, then the commit, or a rollback on purpose."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        events = [self._change_order(change)]
        if change.product is not None:
            events.append(self._sell(change.product, change))
        connection.execute("INSERT INTO journal VALUES (?, ?, ?)", [change.id, change.status, len(events)])
        self._outbox.add(connection, *events)
        self._write(change=change.id, events=[_intent(event) for event in events])
        connection.execute("ROLLBACK" if change.rolled_back else "COMMIT")
        self._write(change=change.id, outcome="rolled back" if change.rolled_back else "done")

    def _change_order(self, change: Change) -> Event[dict[str, Any]]:
        [version] = self._connection.execute(
            "INSERT INTO orders (id, status, total, version) VALUES (?, ?, ?, 1)"
            " ON CONFLICT DO UPDATE SET status = excluded.status, version = version + 1 RETURNING version",
            [change.order, change.status, change.amount],
        ).fetchone()
        return _event(ORDER_EVENTS[change.status], ("order", change.order), version, change.amount)

    def _sell(self, product: str, change: Change) -> Event[dict[str, Any]]:
        # All writers sell the same few products, so these aggregates are written by several processes.
        [version] = self._connection.execute(
            "UPDATE products SET sold = sold + 1, version = version + 1 WHERE name = ? RETURNING version", [product]
        ).fetchone()
        return _event("ProductSold", ("product", product), version, change.amount)

    def _write(self, **entry: object) -> None:
        self._log.write(json.dumps(entry).encode() + b"\n")


def _event(type: str, aggregate: tuple[str, str | int], version: int, amount: int) -> Event[dict[str, Any]]:
    return Event(type, {"version": version, "amount": amount}, aggregate=aggregate)


def _intent(event: Event[dict[str, Any]]) -> dict[str, object]:
    assert event.aggregate is not None
    return {"id": str(event.id), "aggregate": "/".join(event.aggregate), **event.payload}


def main(directory: str, events: str, seed: str, name: str) -> int:
    """Work through one writer's plan, stage by stage."""
    writer, chance = Writer(Path(directory), int(name)), Random()
    for stage, changes in enumerate(in_stages(plan(int(events), int(seed), int(name)))):
        if stage > 0 and not sys.stdin.buffer.read(1):
            return 1  # whoever opens the stages is gone
        for change in changes:
            writer.make(change)
            time.sleep(chance.uniform(0, LONGEST_PAUSE))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
