"""A writer of the torture: changes accounts under a lock, adds events about it, and writes down what it does.

`python -m pillarbox.torture.writer URL DIRECTORY WRITER SEED` goes on until there is a file `stop` in the directory.
Before a commit it writes its intent into a file of its own, after it the outcome: that, not the outbox, is what the
checker believes. Where the connection broke at the commit, or nobody waited for the disk, the journal knows.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from pillarbox import Event
from pillarbox.errors import StoreUnavailable
from pillarbox.torture.bank import OWN, SHARED, Bank, bank_at

TOPICS = ("torture-accounts", "torture-others")
"""An account's events go to one of these, by its number."""
ROLLED_BACK, LEFT_OPEN, ASYNCHRONOUS, WITH_SAVEPOINT, DEADLY = 0.15, 0.01, 0.2, 0.3, 0.001
LONGEST, LONGEST_PAUSE = 3.0, 0.02
"""Seconds that a transaction stays open, at most, and that a writer thinks between two."""


class Writer:
    """One writer: a connection that is made anew when it breaks, and a log of what it is about to do."""

    def __init__(self, bank: Bank, directory: Path, name: int, seed: int) -> None:
        self._bank, self._name, self._stop = bank, name, directory / "stop"
        self._log = (directory / "intents" / f"writer-{name}.jsonl").open("ab", buffering=0)
        self._chance = Random(f"writer {name} {seed}")
        self._count = 0
        self._away: tuple[type[Exception], ...] = (StoreUnavailable, *bank.away)
        self._outboxes = [bank.outbox(topic) for topic in TOPICS]

    def run(self) -> None:
        """Make changes until told to stop."""
        while not self._stop.exists():
            connection = None
            try:
                connection = self._bank.connect()
                while not self._stop.exists():
                    self._change(connection)
                    time.sleep(self._chance.uniform(0, LONGEST_PAUSE))
            except self._away:  # what it did not commit is not in the journal
                time.sleep(0.1)
            finally:
                if connection is not None:
                    connection.close()
        self._write(end=self._count)

    def _change(self, connection: Any) -> None:
        """Do one change: the rows, then the events about them, then the commit, or a rollback on purpose."""
        chance = self._chance
        self._count += 1
        change, waits = f"{self._name}-{self._count}", chance.random() >= ASYNCHRONOUS
        left_open, rolled_back = chance.random() < LEFT_OPEN, chance.random() < ROLLED_BACK
        self._bank.begin(connection, durable=waits)
        events = self._touch(connection, self._accounts(left_open))
        if chance.random() < WITH_SAVEPOINT:
            events += self._touch_in_savepoint(connection)
        if chance.random() < DEADLY:
            events.append(self._deadly(connection, change))
        if left_open:
            time.sleep(chance.uniform(0.5, LONGEST))
        self._bank.run(connection, "INSERT INTO {p}journal (change) VALUES (%s)", change)
        self._write(change=change, events=events)
        connection.execute("ROLLBACK" if rolled_back else "COMMIT")
        if rolled_back or waits:
            self._write(change=change, outcome="rolled back" if rolled_back else "done", at=time.time())

    def _accounts(self, own: bool) -> Sequence[int]:
        """Choose accounts, in the order in which they are locked: nobody waits in a circle."""
        if own:
            return range(SHARED + self._name * OWN, SHARED + (self._name + 1) * OWN)
        return sorted(self._chance.sample(range(SHARED - 1), self._chance.randint(1, 3)))

    def _touch(self, connection: Any, accounts: Sequence[int]) -> list[dict[str, Any]]:
        return [self._touch_one(connection, account) for account in accounts]

    def _touch_in_savepoint(self, connection: Any) -> list[dict[str, Any]]:
        """Change one more account inside a savepoint, which is kept or rolled back. It is locked after all others."""
        connection.execute("SAVEPOINT one")
        touched = self._touch(connection, [SHARED - 1] if self._chance.random() < 0.3 else [])
        if self._chance.random() < 0.5:
            connection.execute("ROLLBACK TO SAVEPOINT one")
            connection.execute("RELEASE SAVEPOINT one")
            return []
        connection.execute("RELEASE SAVEPOINT one")
        return touched

    def _touch_one(self, connection: Any, account: int) -> dict[str, Any]:
        [[version]] = self._bank.run(
            connection, "UPDATE {p}accounts SET version = version + 1 WHERE id = %s RETURNING version", account
        )
        return self._add(connection, "Changed", account, version)

    def _deadly(self, connection: Any, change: str) -> dict[str, Any]:
        """Add an event whose handler kills its process, of an aggregate that nobody else needs."""
        return {**self._add(connection, "Deadly", f"deadly-{change}", 1), "fate": "dead letter"}

    def _add(self, connection: Any, type: str, account: int | str, version: int) -> dict[str, Any]:
        says = {"version": version, "amount": self._chance.randint(1, 500)}
        event = Event(type, says, aggregate=("account", account), headers={"writer": str(self._name)})
        place = topic_number(account)
        self._outboxes[place].add(connection, event)
        return {
            "id": str(event.id), "type": type, "aggregate": f"account/{account}", "topic": TOPICS[place], **says,
            "headers": {"writer": str(self._name)},
        }  # fmt: skip

    def _write(self, **entry: object) -> None:
        self._log.write(json.dumps(entry).encode() + b"\n")


def topic_number(account: int | str) -> int:
    """Say which of the topics an account's events go to: always the same one."""
    return (account if isinstance(account, int) else 0) % len(TOPICS)


def main(url: str, directory: str, name: str, seed: str) -> None:
    Writer(bank_at(url), Path(directory), int(name), int(seed)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
