"""What a run without faults leaves behind in PostgreSQL: updated rows, dead tuples, transactions left open."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.acceptance.postgres_relays import Shop, until

IN_A_TRANSACTION = 1000
_FILL = (
    "INSERT INTO pillarbox_outbox (event_id, aggregate_type, aggregate_id, event_type, topic, payload)"
    " SELECT gen_random_uuid(), 'order', (i %% 100)::text, 'Placed', 'orders',"
    " json_build_object('order', i %% 100, 'n', i, 'at', 0) FROM generate_series(%s::int, %s::int) i"
)
_UPDATED = "SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = %s"
_IDLE = (
    "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'pillarbox%%'"
    " AND state LIKE 'idle in transaction%%'"
)


@dataclass(frozen=True)
class Traces:
    """What a run has left behind."""

    outbox_updates: int
    dead_tuples: int
    """Of lanes and relays together, at most: every update and every delete leaves one, until a vacuum takes it."""
    idle_in_transaction: float
    """Seconds, at the longest."""
    looks: int


def traces_of(database: str, folder: Path, events: int) -> Traces:
    """Let two relays carry so many events while they are written, and look what that leaves behind."""
    shop = Shop(database, folder, lease=15)
    watch = IdleWatch(database)
    try:
        with shop.relay(), shop.relay():
            for first in range(0, events, IN_A_TRANSACTION):
                shop.sql.execute(_FILL, [first, first + IN_A_TRANSACTION - 1])
            wait_for_lines(folder / "tap", events, patience=60 + events / 2000)
        until(lambda: counted(shop, "pillarbox_outbox")[0] == events, "the statistics have arrived")
        _, updates, _ = counted(shop, "pillarbox_outbox")
        dead = sum(sum(counted(shop, f"pillarbox_{name}")[1:]) for name in ("lanes", "relays"))
    finally:
        longest, looks = watch.stop()
        shop.close()
    return Traces(updates, dead, longest, looks)


def wait_for_lines(file: Path, count: int, patience: float) -> None:
    """Wait until a file has so many lines."""
    deadline, found = time.monotonic() + patience, 0
    until(file.is_file, "the relay has begun")
    with file.open("rb") as reading:
        while found < count:
            assert time.monotonic() < deadline, f"{found} of {count} events have arrived"
            if not (more := reading.read(1 << 20)):
                time.sleep(0.05)
            found += more.count(b"\n")


def counted(shop: Shop, table: str) -> tuple[int, int, int]:
    """Give how many rows of a table were inserted, updated and deleted."""
    row = shop.sql.execute(_UPDATED, [table]).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


class IdleWatch:
    """Looks, as long as it runs, for how long our backends are idle in a transaction."""

    def __init__(self, database: str) -> None:
        self._stopped, self._longest, self._looks = threading.Event(), 0.0, 0
        self._sql = psycopg.connect(database, autocommit=True, application_name="watch")
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> tuple[float, int]:
        """End; give the longest time in seconds, and how often it looked."""
        self._stopped.set()
        self._thread.join()
        self._sql.close()
        return self._longest, self._looks

    def _look(self) -> None:
        while not self._stopped.wait(0.1):
            row = self._sql.execute(_IDLE, []).fetchone()
            assert row is not None
            self._longest, self._looks = max(self._longest, row[0]), self._looks + 1
