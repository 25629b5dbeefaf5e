"""A writer of the torture: changes accounts under a lock, adds events about it, and writes down what it does.

`python -m pillarbox.torture.writer URL DIRECTORY WRITER SEED [POISON …]` goes on until there is a file `stop` in the
directory. Before a commit it writes its intent into a file of its own, after it the outcome: that, not the outbox, is
what the checker believes. Where the connection broke at the commit, or nobody waited for the disk, the journal knows.
"""

import json
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import Any

from pillarbox import Event
from pillarbox.errors import StoreUnavailable
from pillarbox.torture.bank import OWN, SHARED, Bank, bank_at
from pillarbox.torture.evidence import DEAD_LETTER, REFUSED
from pillarbox.torture.faults import DEADLY, TOO_LARGE, UNROUTABLE

TOPICS = ("torture-accounts", "torture-others", "torture-more")
"""An account's events go to one of these, by its number."""
NOWHERE = "torture-nowhere"
"""What is unroutable goes here; the stage has seen to it that no broker takes it."""
ROLLED_BACK, LEFT_OPEN, ASYNCHRONOUS, WITH_SAVEPOINT = 0.15, 0.01, 0.2, 0.3
POISONED = {TOO_LARGE: 0.001, UNROUTABLE: 0.001, DEADLY: 0.0003}
"""How often a change adds one. A deadly one kills six consumers, and somebody must take over from each of them."""
TOO_MUCH = 1_200_000
"""Bytes: above what every broker of a stage takes."""
NOTES = (None, "", "Zürich → 東京 🚀", 'two\nlines, "quoted" \\ escaped', [1, 2.5, {"deep": True}])
REMARK = 'a "quoted", half=whole; 100 % {plain}'
"""What must come through as it is."""
LONGEST, LONGEST_PAUSE = 3.0, 0.02
"""Seconds that a transaction stays open, at most, and that a writer thinks between two."""


class Writer:
    """One writer: a connection that is made anew when it breaks, and a log of what it is about to do."""

    def __init__(self, bank: Bank, directory: Path, name: int, seed: int, poisons: Collection[str] = ()) -> None:
        self._bank, self._name, self._stop, self._poisons = bank, name, directory / "stop", sorted(poisons)
        self._log = (directory / "intents" / f"writer-{name}.jsonl").open("ab", buffering=0)
        self._chance = Random(f"writer {name} {seed}")
        self._count = 0
        self._away: tuple[type[Exception], ...] = (StoreUnavailable, *bank.away)
        self._outboxes = {topic: bank.outbox(topic, 2 * TOO_MUCH) for topic in (*TOPICS, NOWHERE)}

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
        events += [self._poison(connection, change, one) for one in self._poisons if chance.random() < POISONED[one]]
        if left_open:
            time.sleep(chance.uniform(0.5, LONGEST))
        self._bank.run(connection, "INSERT INTO {p}journal (change) VALUES (%s)", change)
        self._write(change=change, at=time.time(), events=events)
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
        return self._add(connection, "Changed", account, version, TOPICS[account % len(TOPICS)])

    def _poison(self, connection: Any, change: str, kind: str) -> dict[str, Any]:
        """Add an event that kills whoever handles it, or that no broker takes; of an aggregate of its own."""
        deadly = kind == DEADLY
        topic = NOWHERE if kind == UNROUTABLE else TOPICS[0]
        more = {"padding": "x" * TOO_MUCH} if kind == TOO_LARGE else {}
        name = f"{kind.replace(' ', '-')}-{change}"
        added = self._add(connection, "Deadly" if deadly else "Changed", name, 1, topic, **more)
        return {**added, "fate": DEAD_LETTER if deadly else REFUSED, "poison": kind}

    def _add(
        self, connection: Any, type: str, account: int | str, version: int, topic: str, **more: str
    ) -> dict[str, Any]:
        says = {"version": version, "amount": self._chance.randint(1, 500), "note": self._chance.choice(NOTES)}
        own = {"writer": str(self._name), "remark": REMARK}
        event = Event(type, {**says, **more}, aggregate=("account", account), headers=own)
        self._outboxes[topic].add(connection, event)
        return {
            "id": str(event.id), "type": type, "aggregate": f"account/{account}", "topic": topic,
            "version": version, "amount": says["amount"], "payload": says, "headers": own,
        }  # fmt: skip

    def _write(self, **entry: object) -> None:
        self._log.write(json.dumps(entry).encode() + b"\n")


def main(url: str, directory: str, name: str, seed: str, *poisons: str) -> None:
    Writer(bank_at(url), Path(directory), int(name), int(seed), poisons).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
