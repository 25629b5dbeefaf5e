"""The memory store's server: the reference, the simulator's database, and a fast one for users' tests.

`MemoryDatabase` is the server: transactions with ids and late commits, snapshots, lanes, leases on a clock.
`MemoryStore` (memory_source.py, memory_records.py) is one relay's access to it. Nothing is shared by accident:
what is committed is immutable, and what a store has in memory is gone with `crash()`.

A position is, as on PostgreSQL, a pair of snapshots and a place between them: everything visible in `before` is
settled, and of what is visible in `upto` everything up to `last`. So a late commit is never missed.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.insert import EPOCH, OnDuplicate, Place, Rows, Statement, full_row, insertion
from pillarbox.core.routing import LANES, Line, lane_of
from pillarbox.errors import NoTransaction
from pillarbox.ports import Away, Clock, Deed, Pause, Replay
from pillarbox.testing.clock import ManualClock


class Snapshot(NamedTuple):
    """What one statement sees: every transaction below `xmax` that was not in progress."""

    xmax: int
    in_progress: frozenset[int]

    def sees(self, xid: int) -> bool:
        return xid < self.xmax and xid not in self.in_progress


class Position(NamedTuple):
    """A lane's place: everything visible in `before`, and of what is visible in `upto` everything up to `last`."""

    before: Snapshot
    upto: Snapshot
    last: int

    def covers(self, row: "Row") -> bool:
        return self.before.sees(row.xid) or (self.upto.sees(row.xid) and row.entry.position <= self.last)

    def shows(self, row: "Row") -> bool:
        """It is between the two snapshots, and behind the place that is reached."""
        return row.entry.position > self.last and self.upto.sees(row.xid) and not self.before.sees(row.xid)


NOTHING = Snapshot(0, frozenset())
UNSETTLED = ("retrying", "blocked", "dead", "delayed")
START = Position(NOTHING, NOTHING, 0)


class Row(NamedTuple):
    """A row of the log: the transaction that wrote it, its lane and the entry."""

    xid: int
    lane: int
    entry: Entry


class Tick(NamedTuple):
    """A settlement as history: when, by whom, the entries of the log that it covered, how many were published."""

    at: datetime
    owner: str
    covered: frozenset[int]
    published: int


@dataclass(slots=True)
class Parked:
    """A row of the parking lot."""

    id: int
    entry: Entry
    lane: int
    state: str
    line: Line | None
    due_at: datetime | None
    attempts: int
    last_error: str | None
    settled_at: datetime | None = None
    replay: str | None = None
    """Not None: it was published before; the id of the replay, or ''."""
    parked_at: datetime = EPOCH

    @property
    def active(self) -> bool:
        return self.state in ("retrying", "blocked", "dead")


@dataclass(slots=True)
class Member:
    """A relay's row."""

    seen_at: datetime
    lease_until: datetime
    alive: bool = True
    away: Away | None = None


@dataclass(slots=True)
class Replaying:
    """A replay's row: how far it is, when the next one is due, and which line of the audit counts."""

    replay: Replay
    due_at: datetime
    deed: int


@dataclass(slots=True)
class Lane:
    """A lane's row: who holds it, under which epoch; how many holders died with it in a row, and which event was about
    to be given out, how often in a row."""

    owner: str | None = None
    epoch: int = 0
    crashes: int = 0
    suspect: int | None = None
    suspected: int = 0


class MemoryDatabase:
    """The server side: tables, transactions and snapshots."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or ManualClock()
        self.rows: list[Row] = []
        self.positions: dict[tuple[int, str | None], Position] = {(lane, None): START for lane in range(LANES)}
        self.lanes = [Lane() for _ in range(LANES)]
        self.members: dict[str, Member] = {}
        self.parked: list[Parked] = []
        self.pauses: dict[str, Pause] = {}
        self.ticks: list[Tick] = []
        self.archive: list[Row] = []
        self.pruned: set[int] = set()
        self.audit: list[Deed] = []
        self.replays: dict[str, Replaying] = {}
        self.canary: tuple[str, datetime] | None = None
        self._keys: dict[str, str] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._next_xid = 1
        self._next_id = 1
        self._next_epoch = 1
        self.commits = 0
        self._open: dict[int, Transaction] = {}

    def begin(self) -> "Transaction":
        """Open a transaction; what it adds is seen by nobody until it commits."""
        transaction = Transaction(self, self._next_xid)
        self._open[self._next_xid] = transaction
        self._next_xid += 1
        return transaction

    @contextmanager
    def transaction(self) -> "Iterator[Transaction]":
        """Commit at the end of the block, roll back if it raises."""
        transaction = self.begin()
        try:
            yield transaction
        except BaseException:
            transaction.rollback()
            raise
        transaction.commit()

    def snapshot(self) -> Snapshot:
        return Snapshot(self._next_xid, frozenset(self._open))

    def crash(self) -> None:
        """The server dies and comes back: what was not committed is gone."""
        for transaction in list(self._open.values()):
            transaction.rollback()

    def next_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def next_epoch(self) -> int:
        self._next_epoch += 1
        return self._next_epoch

    def epochs(self, lanes: Iterable[int]) -> dict[int, int]:
        return {lane: self.lanes[lane].epoch for lane in lanes}


class Transaction:
    """An application's transaction. Rows get their ids when they are added, and appear when it commits."""

    def __init__(self, database: MemoryDatabase, xid: int) -> None:
        self.database, self.xid = database, xid
        self._rows: list[Row] = []
        self._undo: list[Callable[[], object]] = []
        self.open = True

    def run(self, statement: Statement, place: Place) -> Rows:
        """Do what a statement of `insertion` says."""
        if not self.open:
            raise NoTransaction("this transaction is over: begin another one and add the event there")
        if statement.rows is not None:
            self._rows.extend(self._row(full_row(values)) for values in statement.rows)
            return []
        wanted = json.loads(statement.parameters[0])
        if statement.sql == place.sql["keys"]:
            return [[key] for key, event_id in wanted if self._take_key(key, event_id)]
        if statement.sql == place.sql["numbers"]:
            return [[kind, id, self._draw(kind, id, count)] for kind, id, count in wanted]
        for key in wanted:
            del self.database._keys[key]
        return []

    def _row(self, values: Sequence[Any]) -> Row:
        event_id, kind, id, event_type, topic, payload, body, content_type, headers, key, number, due, occurred = values
        entry = Entry(
            self.database.next_id(), event_id, kind, id, event_type, topic,
            body if payload is None else payload, content_type, headers, key, number,
            None if due is None else EPOCH + timedelta(microseconds=due),
            None if occurred is None else EPOCH + timedelta(microseconds=occurred),
            self.database.clock.now(),
        )  # fmt: skip
        return Row(self.xid, lane_of(kind, id, event_id), entry)

    def _take_key(self, key: str, event_id: str) -> bool:
        if key in self.database._keys:
            return False
        self.database._keys[key] = event_id
        self._undo.append(lambda: self.database._keys.pop(key, None))
        return True

    def _draw(self, kind: str, id: str, count: int) -> int:
        last = self.database._numbers.get((kind, id), 0)
        self.database._numbers[kind, id] = last + count
        self._undo.append(lambda: self.database._numbers.__setitem__((kind, id), last))
        return last + count

    def commit(self) -> None:
        self._end()
        self.database.commits += 1
        self.database.rows.extend(self._rows)
        self.database.rows.sort(key=lambda row: row.entry.position)

    def rollback(self) -> None:
        if self.open:
            self._end()
            for undo in reversed(self._undo):
                undo()

    def _end(self) -> None:
        if not self.open:
            raise NoTransaction("this transaction is over already")
        self.open = False
        del self.database._open[self.xid]


class MemoryOutbox:
    """The memory store's door: `add` in one of its transactions."""

    def __init__(self, **place: Any) -> None:
        self._place = Place(**place)

    def add(self, transaction: Transaction, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        program = insertion(events, self._place, on_duplicate)
        try:
            statement = next(program)
            while True:
                statement = program.send(transaction.run(statement, self._place))
        except StopIteration:
            return
