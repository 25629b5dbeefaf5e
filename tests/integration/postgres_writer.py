"""A writer of the torture: changes accounts under row locks, adds events about it, and writes down what it does.

python -m tests.integration.postgres_writer URL DIRECTORY WRITER

It goes on until there is a file `stop` in the directory. Before a commit it writes its intent into a file of its own,
after it the outcome: that, not the outbox, is what the checker believes. Where the connection broke at the commit, or
nobody waited for the disk, the journal knows.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import psycopg

from pillarbox import Event
from pillarbox.errors import StoreUnavailable
from pillarbox.psycopg import Outbox

TOPICS = ("savings", "loans", "cards")
"""An account's events go to one of these, by its number."""
SHARED, OWN = 30, 5
"""So many accounts all writers change, and so many each one has to itself, for transactions that stay open."""
ROLLED_BACK, LEFT_OPEN, ASYNCHRONOUS, WITH_SAVEPOINT = 0.15, 0.01, 0.2, 0.3
LONGEST, LONGEST_PAUSE = 3.0, 0.01
"""Seconds that a transaction stays open, at most, and that a writer thinks between two."""

TABLES = """
CREATE TABLE accounts (id int PRIMARY KEY, version int NOT NULL DEFAULT 0);
INSERT INTO accounts SELECT generate_series(0, {accounts} - 1);
-- The row is there if and only if the change committed.
CREATE TABLE journal (change text PRIMARY KEY);
"""


def create_tables(url: str, writers: int) -> None:
    """Make the business's own tables beside those of the outbox."""
    with psycopg.connect(url) as connection:
        connection.execute(TABLES.format(accounts=SHARED + writers * OWN).encode())


class Writer:
    """One writer: a connection that is made anew when it breaks, and a log of what it is about to do."""

    def __init__(self, url: str, directory: Path, name: int) -> None:
        self._url, self._name, self._stop = url, name, directory / "stop"
        self._log = (directory / "intents" / f"writer-{name}.jsonl").open("ab", buffering=0)
        self._chance = Random(name)
        self._count = 0
        self._outboxes = [Outbox(topic=topic) for topic in TOPICS]

    def run(self) -> None:
        while not self._stop.exists():
            try:
                with psycopg.connect(
                    self._url, autocommit=True, connect_timeout=5, prepare_threshold=None
                ) as connection:
                    while not self._stop.exists():
                        self._change(connection)
                        time.sleep(self._chance.uniform(0, LONGEST_PAUSE))
            except (
                StoreUnavailable,
                psycopg.OperationalError,
            ):  # the server is away: what it did not commit is not in the journal
                time.sleep(0.1)

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        """Do one change: the rows, then the events about them, then the commit, or a rollback on purpose."""
        chance = self._chance
        self._count += 1
        change, waits = f"{self._name}-{self._count}", chance.random() >= ASYNCHRONOUS
        left_open, rolled_back = chance.random() < LEFT_OPEN, chance.random() < ROLLED_BACK
        connection.execute("BEGIN")
        if not waits:
            connection.execute("SET LOCAL synchronous_commit = off")
        events = self._touch(connection, self._accounts(left_open))
        if chance.random() < WITH_SAVEPOINT:
            events += self._touch_in_savepoint(connection)
        if left_open:
            time.sleep(chance.uniform(0.5, LONGEST))
        connection.execute("INSERT INTO journal VALUES (%s)", [change])
        self._write(change=change, at=time.time(), events=events)
        connection.execute("ROLLBACK" if rolled_back else "COMMIT")
        if rolled_back or waits:
            self._write(change=change, outcome="rolled back" if rolled_back else "done")

    def _accounts(self, own: bool) -> Sequence[int]:
        """Choose accounts, in the order in which they are locked: nobody waits in a circle."""
        if own:
            return range(SHARED + self._name * OWN, SHARED + (self._name + 1) * OWN)
        return sorted(self._chance.sample(range(SHARED - 1), self._chance.randint(1, 3)))

    def _touch(self, connection: psycopg.Connection[Any], accounts: Sequence[int]) -> list[dict[str, Any]]:
        return [self._touch_one(connection, account) for account in accounts]

    def _touch_in_savepoint(self, connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
        """Change one more account inside a savepoint, which is kept or rolled back. It is locked after all others."""
        connection.execute("SAVEPOINT one")
        touched = self._touch(connection, [SHARED - 1] if self._chance.random() < 0.3 else [])
        if self._chance.random() < 0.5:
            connection.execute("ROLLBACK TO SAVEPOINT one")
            return []
        connection.execute("RELEASE SAVEPOINT one")
        return touched

    def _touch_one(self, connection: psycopg.Connection[Any], account: int) -> dict[str, Any]:
        row = connection.execute(
            "UPDATE accounts SET version = version + 1 WHERE id = %s RETURNING version", [account]
        ).fetchone()
        assert row is not None
        says = {"version": row[0], "amount": self._chance.randint(1, 500)}
        event = Event("AccountChanged", says, aggregate=("account", account))
        self._outboxes[account % len(TOPICS)].add(connection, event)
        return {"id": str(event.id), "aggregate": f"account/{account}", **says}

    def _write(self, **entry: object) -> None:
        self._log.write(json.dumps(entry).encode() + b"\n")


def main(url: str, directory: str, name: str) -> None:
    Writer(url, Path(directory), int(name)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
