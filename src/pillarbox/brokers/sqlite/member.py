"""One member of a consumer group on the embedded broker. Synchronous: it lives in its subscriber's worker thread.

A member has a row, renewed by its own polls, and the kernel's lock on the byte of its slot. It is dead when the lock is
free (its process died: noticed at once), or when the row was not renewed for a lease (it hangs).

    free ──take (new epoch)──▶ held ──more than the fair share──▶ leaving ──all acknowledged──▶ free
                                 └──the member is dead: taken by another, what was in flight is suspect──▶ held
                                    (nothing was, if all of the partition was acknowledged)

Every change of hands and of a position is one transaction, fenced by the epoch.
"""

import json
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pillarbox.brokers.partitions import PARTITIONS, Held, Partition, Place, read_fairly, settle_share, share_of
from pillarbox.brokers.sqlite.file import broker_errors, check_still_there, connect, identity, transaction
from pillarbox.core.message import Delivery, Message
from pillarbox.errors import BrokerUnavailable, ConfigError
from pillarbox.kernel_lock import KernelLock, is_free
from pillarbox.ports import Clock

LEASE = timedelta(seconds=15)
RENEW_EVERY = timedelta(seconds=3)
TEND_EVERY = 0.1
PATIENCE = 5.0
MOMENT = 5.0
"""How long the others have to lock their slots again after somebody deleted the file of the locks, in seconds."""
MOST_IN_FLIGHT = 1000
"""Given out of one partition and not acknowledged: so many are suspect when its holder dies."""
MOST_BYTES = 16 << 20
"""Read at one go, or one message that is larger."""
NAMED = 5
"""So many topics are named that are there, of those whose names are near first."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# As blobs: whatever type and bytes somebody else has put there, it is the fault of that message alone.
_READ = """
    SELECT id, CAST(key AS BLOB), CAST(headers AS BLOB), CAST(body AS BLOB) FROM messages
    WHERE topic = ? AND partition = ? AND id > ? ORDER BY id LIMIT ?
"""
_IN_FLIGHT = (
    "SELECT max(id) FROM (SELECT id FROM messages WHERE topic = ? AND partition = ? AND id > ? ORDER BY id LIMIT ?)"
)
_HAND_OUT = "UPDATE positions SET busy = 1 WHERE consumer = ? AND topic = ? AND partition = ? AND epoch = ?"
_MOVE = "UPDATE positions SET position = ?, busy = ? WHERE consumer = ? AND topic = ? AND partition = ? AND epoch = ?"
_RELEASE = """
    UPDATE positions SET position = ?, suspect_to = ?, owner = NULL, busy = 0
    WHERE consumer = ? AND topic = ? AND partition = ? AND epoch = ?
"""
# Every topic with a message, by the index: one step for each of them.
_KNOWN = """
    WITH RECURSIVE known (topic) AS (
        SELECT min(topic) FROM messages UNION ALL
        SELECT (SELECT min(topic) FROM messages WHERE topic > known.topic) FROM known WHERE known.topic IS NOT NULL)
    SELECT CAST(topic AS BLOB) FROM known WHERE topic IS NOT NULL
"""
_TAKE = """
    UPDATE positions SET owner = ?, epoch = ?, suspect_to = ?, busy = 0
    WHERE consumer = ? AND topic = ? AND partition = ?
"""

_logger = logging.getLogger("pillarbox.brokers.sqlite")
_Stored = tuple[int, bytes | None, bytes, bytes]
"""A message as it is read: id, key, headers, body."""


class _Row(NamedTuple):
    """A partition as the table has it."""

    position: int
    owner: str | None
    epoch: str
    suspect_to: int
    busy: int


class _Peer(NamedTuple):
    """A member as the table has it; ourselves included."""

    slot: int
    name: str
    topics: tuple[str, ...]
    seen_at: int


class Member:
    """Holds a fair share of the partitions of its topics, gives out what is in them, keeps the positions."""

    def __init__(self, path: Path, consumer: str, topics: tuple[str, ...], clock: Clock) -> None:
        self._path, self._consumer, self._topics, self._clock = path, consumer, topics, clock
        self._locks = path.with_name(path.name + "-consumers")
        self._name = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._lock: KernelLock | None = None
        self._slot = -1
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._held: dict[Partition, Held] = {}
        self._moved: set[Partition] = set()
        self._busy: set[Partition] = set()
        """Where the file says that we have something in flight."""
        self._dry: set[Partition] = set()
        self._data_version = -1
        self._turn = 0
        self._bytes_left = MOST_BYTES
        self._tend_at = self._trust_locks_at = 0.0
        self._looked = False

    def poll(self, room: int) -> list[Delivery]:
        """Keep the membership up, and give at most `room` further deliveries."""
        with broker_errors(self._path):
            connection = self._connect()
            if not self._looked:
                self._miss(connection)
                self._looked = True
            if time.monotonic() >= self._tend_at:
                self._tend()
                self._tend_at = time.monotonic() + TEND_EVERY
            return self._read_on(room)

    def acknowledge(self, places: Iterable[Place]) -> None:
        """Move the positions over what is acknowledged, in one transaction; release what was only waiting for that."""
        for partition, id, epoch in places:
            held = self._held.get(partition)
            if held is not None and held.epoch == epoch:
                before = held.position
                held.acknowledge(id)
                if held.position != before:
                    self._moved.add(partition)
        if self._moved:
            with broker_errors(self._path):
                connection = self._connect()
                with transaction(connection):
                    released = [p for p, held in self._held.items() if held.leaving and not len(held)]
                    self._save(connection, released)
                    self._renew(connection)
                self._let_rest()
                self._forget(released)

    def leave(self) -> None:
        """Give everything back, so that others take over at once; what is not acknowledged comes again."""
        try:
            if self._lock is not None:
                with broker_errors(self._path):
                    connection = self._connect()
                    with transaction(connection):
                        self._save(connection, list(self._held))
                        connection.execute("DELETE FROM members WHERE name = ?", (self._name,))
        except (BrokerUnavailable, ConfigError):
            # The lock is freed below: to the others we are dead, which is as good. A position that was not saved
            # means copies, never a loss.
            pass
        finally:
            self.vanish()

    def vanish(self) -> None:
        """Let go of the file and of the lock without a word."""
        self._held.clear()
        self._moved.clear()
        self._busy.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._file is not None:
                check_still_there(self._path)
            # Not durable: a position that a power cut forgets means copies, never a loss.
            self._connection = connect(self._path, durable=False, timeout=PATIENCE)
            self._file = identity(self._path)
            self._data_version = -1
        return self._connection

    # reading

    def _read_on(self, room: int) -> list[Delivery]:
        connection = self._connect()
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version != self._data_version:
            self._data_version = version
            self._dry.clear()
        open = [p for p, held in self._held.items() if not held.leaving and p not in self._dry]
        self._turn = (self._turn + 1) % max(1, len(open))
        fresh: dict[Partition, list[int]] = {}
        self._bytes_left = MOST_BYTES
        found, dry = read_fairly(open[self._turn :] + open[: self._turn], room, partial(self._read, fresh))
        self._say_busy([partition for partition, ids in fresh.items() if ids and partition not in self._busy])
        for partition, ids in fresh.items():  # only now: had a read failed, nothing would have been given out
            self._held[partition].give(ids)
        if self._bytes_left > 0:  # otherwise nobody knows whether there is more
            self._dry.update(p for p in dry if len(self._held[p]) < MOST_IN_FLIGHT)
        found.sort(key=lambda delivery: delivery.place.id)
        return found

    def _say_busy(self, partitions: Sequence[Partition]) -> None:
        """Say, before anything is given out of them, that partitions are busy: only then a death makes suspects. Those
        that are busy already stay so until all is acknowledged, so under load this writes nothing."""
        if partitions:
            connection = self._connect()
            with transaction(connection):
                connection.executemany(_HAND_OUT, [self._place(partition) for partition in partitions])
            self._busy.update(partitions)

    def _read(self, fresh: dict[Partition, list[int]], partition: Partition, limit: int) -> Sequence[Delivery]:
        held, ids = self._held[partition], fresh.setdefault(partition, [])
        limit = min(limit, MOST_IN_FLIGHT - len(held) - len(ids))
        after = ids[-1] if ids else held.cursor
        rows = self._rows_after(partition, after, limit)
        ids += [row[0] for row in rows]
        topic = partition.topic
        return [
            Delivery(
                Message(topic, None if key is None else key.decode(errors="backslashreplace"), _headers(headers), body),
                Place(partition, id, held.epoch),
                redelivered=id <= held.suspect_to,
            )
            for id, key, headers, body in rows
        ]

    def _rows_after(self, partition: Partition, after: int, limit: int) -> list[_Stored]:
        """Fetch what comes next, until this reading holds MOST_BYTES."""
        rows: list[_Stored] = []
        if self._bytes_left <= 0:
            return rows
        with closing(self._connect().execute(_READ, (*partition, after, limit))) as cursor:
            for row in cursor:
                rows.append(row)
                self._bytes_left -= len(row[3])
                if self._bytes_left <= 0:
                    break
        return rows

    def _miss(self, connection: sqlite3.Connection) -> None:
        """Tell of topics to which nobody has published: a name that is misspelt would be waited for in silence. A file
        without any message tells nothing."""
        known = [topic.decode(errors="backslashreplace") for (topic,) in connection.execute(_KNOWN)]
        if not known:
            return
        for topic in self._topics:
            read = "SELECT 1 FROM positions WHERE topic = ? AND position > 0"  # retention may have deleted all that was
            if topic not in known and connection.execute(read, [topic]).fetchone() is None:
                near = get_close_matches(topic, known, NAMED) or known[:NAMED]
                words = (
                    "nothing was published to the topic %r in %s yet; mend its name, or it is waited for. There is: %s"
                )
                _logger.warning(words, topic, self._path, ", ".join(near))

    # membership

    def _tend(self) -> None:
        """Look at the group; write only if there is something to write."""
        if identity(self._path) != self._file:
            self.vanish()  # deleted or replaced: begin anew with the file that is there
        connection = self._connect()
        if self._lock is not None and self._lock.astray:
            self._lock_again(connection)
        now = self._now()
        peers, rows = self._peers(connection), self._rows(connection)
        self._forget(self._lost(rows))
        alive = self._alive(peers, now)
        me = next((peer for peer in peers if peer.name == self._name), None)
        if (
            me is None
            or now - me.seen_at >= RENEW_EVERY // _MICROSECOND
            or len(alive) < len(peers)
            or self._moved
            or any(self._wants(topic, alive, rows) for topic in self._topics)
        ):
            self._balance(connection)

    def _lock_again(self, connection: sqlite3.Connection) -> None:
        """Lock our slot in the file that is there now; the others need a moment to do so too."""
        assert self._lock is not None
        self._lock.release()
        self._lock = KernelLock(self._locks, self._slot)
        self._trust_locks_at = time.monotonic() + MOMENT
        if not self._lock.take():  # a newcomer was faster: we keep what we hold, and join under another slot
            self._lock = None
            with transaction(connection):
                connection.execute("DELETE FROM members WHERE name = ?", (self._name,))

    def _wants(self, topic: str, alive: list[_Peer], rows: dict[Partition, _Row]) -> bool:
        """Say whether a partition of the topic is to be taken or released now."""
        share = self._share(topic, alive)
        names = {peer.name for peer in alive}
        holding = sum(p.topic == topic for p in self._held)
        free = any(p.topic == topic and row.owner not in names for p, row in rows.items())
        return bool(settle_share(self._held, topic, share)) or (holding < share and free)

    def _balance(self, connection: sqlite3.Connection) -> None:
        """Join or renew, bury the dead, release what is above the fair share and take what is below it."""
        taken: dict[Partition, Held] = {}
        with transaction(connection):
            self._join(connection)
            alive = self._bury(connection)
            rows = self._rows(connection)
            self._forget(self._lost(rows))
            released = [p for topic in self._topics for p in settle_share(self._held, topic, self._share(topic, alive))]
            self._save(connection, released)
            for topic in self._topics:
                taken |= self._take(connection, topic, alive, rows)
        self._let_rest()
        self._forget(released)
        self._held |= taken
        self._dry.clear()

    def _join(self, connection: sqlite3.Connection) -> None:
        if self._renew(connection):
            return
        taken_slots = {slot for (slot,) in connection.execute("SELECT slot FROM members")}
        if self._lock is None or self._slot in taken_slots:
            self._lock, self._slot = self._take_slot(taken_slots)
        connection.execute(
            "INSERT INTO members (slot, consumer, name, topics, seen_at) VALUES (?, ?, ?, ?, ?)",
            (self._slot, self._consumer, self._name, json.dumps(self._topics), self._now()),
        )
        connection.executemany(
            "INSERT OR IGNORE INTO positions (consumer, topic, partition) VALUES (?, ?, ?)",
            [(self._consumer, topic, number) for topic in self._topics for number in range(PARTITIONS)],
        )

    def _renew(self, connection: sqlite3.Connection) -> bool:
        """Show that we and our group are alive; False if we have no row, because we are new or were taken for dead."""
        now = self._now()
        connection.execute(
            "INSERT INTO consumers VALUES (?, ?) ON CONFLICT DO UPDATE SET seen_at = excluded.seen_at",
            (self._consumer, now),
        )
        return connection.execute("UPDATE members SET seen_at = ? WHERE name = ?", (now, self._name)).rowcount > 0

    def _take_slot(self, taken: set[int]) -> tuple[KernelLock, int]:
        """Lock the first free slot; one without a row may still be locked, by a member that was taken for dead."""
        if self._lock is not None:
            self._lock.release()
        slot = 0
        while True:
            if slot not in taken and (lock := KernelLock(self._locks, slot)).take():
                return lock, slot
            slot += 1

    def _bury(self, connection: sqlite3.Connection) -> list[_Peer]:
        """Delete the rows of the dead and give the living."""
        peers = self._peers(connection)
        alive = self._alive(peers, self._now())
        connection.executemany("DELETE FROM members WHERE name = ?", [(p.name,) for p in peers if p not in alive])
        return alive

    def _take(
        self, connection: sqlite3.Connection, topic: str, alive: list[_Peer], rows: dict[Partition, _Row]
    ) -> dict[Partition, Held]:
        names = {peer.name for peer in alive}
        free = [p for p, row in rows.items() if p.topic == topic and row.owner not in names]
        room = max(0, self._share(topic, alive) - sum(p.topic == topic for p in self._held))
        taken = {}
        for partition in free[:room]:
            row, epoch = rows[partition], secrets.token_hex(8)
            suspect_to = self._suspect_to(connection, partition, row) if row.busy else row.suspect_to
            connection.execute(_TAKE, (self._name, epoch, suspect_to, self._consumer, *partition))
            taken[partition] = Held(row.position, epoch, suspect_to)
        return taken

    def _suspect_to(self, connection: sqlite3.Connection, partition: Partition, row: _Row) -> int:
        """Say how far the dead owner may have come without telling."""
        (newest,) = connection.execute(_IN_FLIGHT, (*partition, row.position, MOST_IN_FLIGHT)).fetchone()
        return max(row.suspect_to, newest or 0)

    def _save(self, connection: sqlite3.Connection, released: Sequence[Partition]) -> None:
        """Write the positions that moved, and give partitions back; what another has taken is passed over."""
        moved = [(self._held[p].position, len(self._held[p]) > 0, *self._place(p)) for p in self._moved]
        connection.executemany(_MOVE, moved)
        connection.executemany(_RELEASE, [self._release_row(p) for p in released])

    def _release_row(self, partition: Partition) -> tuple[object, ...]:
        held = self._held[partition]
        suspect_to = max(held.suspect_to, held.cursor) if len(held) else held.suspect_to
        return held.position, suspect_to, *self._place(partition)

    def _place(self, partition: Partition) -> tuple[object, ...]:
        return self._consumer, *partition, self._held[partition].epoch

    def _let_rest(self) -> None:
        """Note that what moved is written, and which partitions have nothing in flight any more."""
        self._busy -= {partition for partition in self._moved if not len(self._held[partition])}
        self._moved.clear()

    def _lost(self, rows: dict[Partition, _Row]) -> list[Partition]:
        """List what another has taken from us, or somebody has deleted."""
        return [p for p, held in self._held.items() if p not in rows or rows[p].epoch != held.epoch]

    def _forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            del self._held[partition]
            self._moved.discard(partition)
            self._busy.discard(partition)

    def _share(self, topic: str, alive: list[_Peer]) -> int:
        return share_of(
            self._slot, [self._slot, *(p.slot for p in alive if p.name != self._name and topic in p.topics)]
        )

    def _alive(self, peers: list[_Peer], now: int) -> list[_Peer]:
        oldest = now - LEASE // _MICROSECOND
        fresh = [p for p in peers if p.seen_at > oldest or p.name == self._name]
        if time.monotonic() < self._trust_locks_at:
            return fresh
        return [p for p in fresh if p.name == self._name or not is_free(self._locks, p.slot)]

    def _peers(self, connection: sqlite3.Connection) -> list[_Peer]:
        rows = connection.execute(
            "SELECT slot, name, topics, CAST(seen_at AS INTEGER) FROM members WHERE consumer = ? ORDER BY slot",
            (self._consumer,),
        )
        return [_Peer(slot, name, _topics(topics), seen_at) for slot, name, topics, seen_at in rows]

    def _rows(self, connection: sqlite3.Connection) -> dict[Partition, _Row]:
        rows = connection.execute(
            "SELECT topic, partition, CAST(position AS INTEGER), owner, epoch, CAST(suspect_to AS INTEGER), busy"
            " FROM positions WHERE consumer = ?",
            (self._consumer,),
        )
        return {Partition(topic, number): _Row(*row) for topic, number, *row in rows}

    def _now(self) -> int:
        return (self._clock.now() - _EPOCH) // _MICROSECOND


def _headers(stored: bytes) -> dict[str, str]:
    """Read a message's headers; what is no JSON object is handed on as it stands, and is nobody's event."""
    try:
        headers = json.loads(stored.decode())
        if isinstance(headers, dict):
            return {name: value if value.__class__ is str else json.dumps(value) for name, value in headers.items()}
    except (ValueError, RecursionError):
        pass  # text that no parser gets through is no object either
    return {"(no JSON object)": stored.decode(errors="backslashreplace")}


def _topics(stored: str) -> tuple[str, ...]:
    """Read a member's topics; a row that somebody else has written has none."""
    try:
        return tuple(json.loads(stored))
    except (ValueError, TypeError, RecursionError):
        return ()
