"""An outbox whose events the reader of a replication slot carries; the reader is plain SQL, or a stream of our own."""

import asyncio
import re
import struct
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from psycopg import pq

from pillarbox.ports import Retention, Watched
from pillarbox.stores.postgres import PostgresStore
from tests.integration.postgres_bench import Bench, until
from tests.integration.postgres_world import burn

_INSERTED = re.compile(r"table public\.pillarbox_outbox: INSERT: .* event_type\[text\]:'([^']*)'")
HISTORY = 200
"""So many transactions the slot has given out: more than there will be, so it is known by their number."""


class Carried:
    """A slot, a store that watches it, and what becomes of the events."""

    def __init__(self, bench: Bench, store: PostgresStore) -> None:
        self._bench, self.store = bench, store
        self.slot = f"test_{uuid.uuid4().hex}"

    @classmethod
    async def of(cls, bench: Bench, *, history: int = HISTORY, plugin: str = "test_decoding") -> "Carried":
        """Make a slot, and say that its reader carries the events."""
        carried = cls(bench, await bench.store("watch"))
        bench.sql("CREATE TABLE beat (at timestamptz DEFAULT now())")
        carried.make(plugin)
        carried.beat(history)
        if plugin == "test_decoding":
            carried.carry()
        await carried.store.watch_slot(carried.slot)
        return carried

    def make(self, plugin: str = "test_decoding") -> None:
        self._bench.sql("SELECT pg_create_logical_replication_slot(%s, %s)", [self.slot, plugin])

    def drop(self) -> None:
        self._bench.sql("SELECT pg_drop_replication_slot(%s)", [self.slot])

    def beat(self, times: int = 1) -> None:
        """Let so many other transactions commit, the last of them durably."""
        self._bench.sql(
            f"DO $$ BEGIN FOR i IN 1..{times} LOOP INSERT INTO beat DEFAULT VALUES; COMMIT; END LOOP; END $$"
        )

    def carry(self) -> list[str]:
        """Read the slot to its end, and confirm it; give the types of the events."""
        self.beat()
        rows = self._bench.sql("SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL)", [self.slot])
        return [found[1] for [line] in rows if (found := _INSERTED.match(line))]

    def confirm(self, place: str) -> None:
        """Confirm everything up to a place in the WAL, and not a byte more."""
        self.beat()  # all of it is on disk then
        self._bench.sql("SELECT pg_replication_slot_advance(%s, %s)", [self.slot, place])
        assert self._bench.one(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [self.slot]
        ) == self._bench.one("SELECT %s::pg_lsn::text", [place])

    async def watch(self) -> Watched:
        """Look at the slot once."""
        watched = await self.store.watch()
        assert watched is not None
        return watched

    def noted(self) -> str:
        """Give the place in the WAL of the newest note."""
        noted = self._bench.sql("SELECT w::text FROM pillarbox_notes ORDER BY n DESC LIMIT 1")
        assert noted, "nothing is noted"
        return str(noted[0][0])

    def status(self) -> dict[str, str]:
        """Give the status of every event by its type."""
        return dict(self._bench.sql("SELECT event_type, status FROM pillarbox_events"))

    def published(self) -> set[str]:
        return {name for name, status in self.status().items() if status == "published"}

    async def prune(self) -> set[str]:
        """Delete everything that is settled; give what is left."""
        while await self.store.prune(Retention(published=timedelta(0))):
            pass
        return set(self.status())

    async def keep_no_old_wal(self, reader: "Reader | None" = None) -> None:
        """Let the slot be read until it keeps only WAL from after the last look; the last look knows nothing of it."""
        burn(self._bench.url, 100)  # so that all that it gives out meanwhile proves nothing, if it has no history
        for _ in range(500):
            self._bench.sql("CHECKPOINT")  # it writes which transactions run, and a slot can begin there
            if reader is None:
                self.carry()
            else:
                self.beat(10)
                reader.confirm(self._bench.one("SELECT pg_current_wal_flush_lsn()::text"))
            if self.has_no_old_wal():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("the slot keeps old WAL")

    def has_no_old_wal(self) -> bool:
        return bool(
            self._bench.one(
                "SELECT s.restart_lsn >= k.seen_end FROM pg_replication_slots s, pillarbox_slot k"
                " WHERE s.slot_name = k.name"
            )
        )


class Reader:
    """A process that streams from a slot, and confirms what it is told to."""

    def __init__(self, url: str, slot: str, options: str = "") -> None:
        self._stream = pq.PGconn.connect(f"{url}?replication=database".encode())
        started = self._stream.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 {options}".encode())
        assert started.status == pq.ExecStatus.COPY_BOTH, started.error_message
        self.pid = self._stream.backend_pid

    def confirm(self, place: str) -> None:
        high, low = (int(part, 16) for part in place.split("/"))
        lsn = (high << 32) + low
        self._stream.put_copy_data(struct.pack("!cQQQQb", b"r", lsn, lsn, lsn, 0, 0))
        self._stream.flush()

    def close(self) -> None:
        self._stream.finish()


@asynccontextmanager
async def reading(bench: Bench, slot: str, options: str = "") -> AsyncIterator[Reader]:
    """Stream from a slot until the block ends, and nobody reads it any more."""
    reader = Reader(bench.url, slot, options)
    is_active = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND active = %s"
    try:
        await until(bench, is_active, [slot, True])
        yield reader
    finally:
        reader.close()
        await until(bench, is_active, [slot, False])


def drop_slots(bench: Bench) -> None:
    """Drop the slots of a test, without which its database could not be dropped."""
    bench.sql(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
