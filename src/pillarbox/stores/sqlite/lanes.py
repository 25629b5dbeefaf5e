"""Lanes on SQLite: one group, all 64 or none. The holder has a lease, a random epoch, and the kernel's lock.

The epoch fences: it is checked in every transaction of the holder. The lease lets others in when the holder hangs.
The lock, on a file `<database>-relay`, lets them in at once when the holder is dead: the kernel frees it.

    the holder's row    the lock    what a second relay does
    none, released      any         takes
    locked              free        takes: the holder is dead
    any                 any         takes, if the lease has run out: the holder hangs
    not locked          free        waits: the holder took over from one that hangs with the lock, and lives
    any                 not free    waits
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from secrets import token_hex
from typing import Any

from pillarbox.core.insert import microseconds
from pillarbox.core.routing import LANES
from pillarbox.errors import LaneLost, SchemaMismatch
from pillarbox.kernel_lock import KernelLock
from pillarbox.ports import Away, Clock, Holding
from pillarbox.stores.sqlite.connection import writing

ALL = Holding(frozenset(range(LANES)), LANES)
NONE = Holding(frozenset(), LANES)
PREFIX = "pillarbox_"
"""The prefix unless set otherwise; tables with another one have a lock of their own."""


def lock_file(path: str, prefix: str) -> str:
    """Name the file beside a database whose lock the holder of its lanes keeps: one, by whatever name it is opened."""
    return f"{os.path.realpath(path)}-{'' if prefix == PREFIX else prefix}relay"


class LaneGroup:
    """Whether this relay holds the lanes."""

    def __init__(self, path: str, owner: str, prefix: str, lease: timedelta, clock: Clock) -> None:
        self._path, self._owner, self._p, self._clock = path, owner, prefix, clock
        self._lease = lease // timedelta(microseconds=1)
        self._lock = KernelLock(lock_file(path, prefix))
        self._epoch: str | None = None
        self._away: Away | None = None

    @property
    def holding(self) -> Holding:
        return NONE if self._epoch is None else ALL

    def fence(self, db: sqlite3.Connection) -> None:
        """Raise LaneLost unless the lanes are ours; inside the transaction that relies on it."""
        if self._epoch is None:
            raise LaneLost(f"the relay {self._owner} holds no lanes")
        row = db.execute(f"SELECT owner, epoch FROM {self._p}lanes WHERE lane = 0").fetchone()
        holder, epoch = self._checked(row)
        if epoch != self._epoch:
            raise LaneLost(f"the lanes of the relay {self._owner} are with {holder or 'nobody'} now")

    @contextmanager
    def taking(self, db: sqlite3.Connection) -> Iterator[bool]:
        """Take the lanes if they are free; yields, before the commit, whether they are ours now and were not before."""
        if self._epoch is not None:
            self.renew(db, self._away)
            yield False
        elif not self._may_take(db):
            self._lock.release()
            self._join(db)
            yield False
        else:
            with self._taken(db) as taken:
                yield taken

    @contextmanager
    def _taken(self, db: sqlite3.Connection) -> Iterator[bool]:
        epoch = token_hex(8)
        try:
            with writing(db):
                taken = self._may_take(db)  # again: another may have been faster
                if taken:
                    self._forget_the_gone(db)
                    db.execute(f"UPDATE {self._p}lanes SET owner = ?, epoch = ? WHERE lane = 0", (self._owner, epoch))
                    self._write_row(db, None)
                yield taken
            if taken:
                self._epoch = epoch
        finally:
            if self._epoch is None:
                self._lock.release()

    def _may_take(self, db: sqlite3.Connection) -> bool:
        if not self._lock.held:  # a link may lead elsewhere by now
            self._lock = KernelLock(lock_file(self._path, self._p))
        has_lock = self._lock.take()
        row = db.execute(
            f"SELECT l.owner, r.lease_until, r.locked FROM {self._p}lanes l"
            f" LEFT JOIN {self._p}relays r ON r.owner = l.owner WHERE l.lane = 0"
        ).fetchone()
        holder, lease_until, locked = self._checked(row)
        if holder is None or holder == self._owner or lease_until is None:
            return True
        return bool(has_lock and locked) or lease_until <= microseconds(self._clock.now())

    def _checked(self, row: tuple[Any, ...] | None) -> tuple[Any, ...]:
        if row is None:
            raise SchemaMismatch(
                f"{self._path}: {self._p}lanes has no row any more: somebody has removed it; put it back with this SQL:"
                f" INSERT INTO {self._p}lanes (lane, owner, epoch) VALUES (0, NULL, '')"
            )
        return row

    def _forget_the_gone(self, db: sqlite3.Connection) -> None:
        """Remove the rows of the former holder and of every relay whose lease has run out."""
        db.execute(
            f"DELETE FROM {self._p}relays WHERE owner <> ? AND (lease_until <= ? OR owner ="
            f" (SELECT owner FROM {self._p}lanes WHERE lane = 0))",
            (self._owner, microseconds(self._clock.now())),
        )

    def renew(self, db: sqlite3.Connection, away: Away | None) -> None:
        """Prolong the lease; raises LaneLost if the lanes were ours and are not any more."""
        self._away = away
        with writing(db):
            if self._epoch is not None:
                self.fence(db)
                self._lock.take()
            self._write_row(db, away)

    def _join(self, db: sqlite3.Connection) -> None:
        """Be seen waiting; the row is written now and then only, since looking for free lanes goes on all the time."""
        row = db.execute(f"SELECT seen_at FROM {self._p}relays WHERE owner = ?", (self._owner,)).fetchone()
        if row is None or row[0] + self._lease // 3 <= microseconds(self._clock.now()):
            with writing(db):
                self._write_row(db, None)

    def _write_row(self, db: sqlite3.Connection, away: Away | None) -> None:
        now = microseconds(self._clock.now())
        since, error = (None, None) if away is None else (microseconds(away.since), away.error)
        db.execute(
            f"INSERT INTO {self._p}relays (owner, seen_at, lease_until, locked, away_since, away_error)"
            " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (owner) DO UPDATE SET seen_at = excluded.seen_at,"
            " lease_until = excluded.lease_until, locked = excluded.locked, away_since = excluded.away_since,"
            " away_error = excluded.away_error",
            (self._owner, now, now + self._lease, self._lock.held, since, error),
        )

    def release(self, db: sqlite3.Connection) -> None:
        """Give the lanes back; the row stays, ended, so that people see when a relay was here last."""
        now = microseconds(self._clock.now())
        with writing(db):
            db.execute(
                f"UPDATE {self._p}lanes SET owner = NULL, epoch = '' WHERE lane = 0 AND epoch = ?", (self._epoch,)
            )
            db.execute(
                f"UPDATE {self._p}relays SET seen_at = ?, lease_until = ?, locked = 0 WHERE owner = ?",
                (now, now, self._owner),
            )
        self.forget()

    def forget(self) -> None:
        """Hold nothing any more, in memory and at the kernel."""
        self._epoch = None
        self._lock.release()
