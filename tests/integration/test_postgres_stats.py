"""Stats on PostgreSQL: read from a long log without walking over it, as the server's own counters tell."""

import psycopg
import pytest

from pillarbox import Relay, Settings
from pillarbox.wiring import open_admin
from tests.integration.health_shop import nowhere
from tests.integration.postgres_shop import made
from tests.integration.relay_shop import until

SETTLED, PENDING = 20_000, 12_000
ADD = (
    "INSERT INTO pillarbox_outbox (topic, aggregate_type, aggregate_id, event_type, payload)"
    " SELECT 'order-events', 'order', i, 'Placed', '{}' FROM generate_series(1, %s) i"
)


async def scans(connection: "psycopg.Connection[tuple[int, int]]") -> tuple[int, int]:
    """Give how often the log was walked over, and how often an index of it was used, once nobody else is connected:
    a backend counts for everybody before it goes."""
    others = (
        "SELECT pid, 0 FROM pg_stat_activity WHERE datname = current_database()"
        " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
    )
    await until(lambda: not connection.execute(others).fetchall())
    sql = "SELECT seq_scan, idx_scan FROM pg_stat_user_tables WHERE relname = 'pillarbox_outbox'"
    row = connection.execute(sql).fetchone()
    assert row is not None
    return row


async def test_they_never_walk_over_the_log(database: str) -> None:
    made(database)
    with psycopg.connect(database, autocommit=True) as writer:
        writer.execute(ADD, [SETTLED])
        assert await Relay(database=database, publish=nowhere).run_once() == SETTLED
        writer.execute(ADD, [PENDING])
        writer.execute("VACUUM ANALYZE pillarbox_outbox")
    with psycopg.connect(database, autocommit=True) as connection:  # another one: the writer has counted its own walks
        walked, looked = await scans(connection)
        async with open_admin(Settings(database=database)) as admin:
            stats = await admin.stats()
        walked_since, looked_since = await scans(connection)
        assert walked_since == walked
        assert looked_since > looked
    assert (stats.pending, stats.pending_exact) == (10_000, False)
    assert stats.pending_about == pytest.approx(PENDING, rel=0.05)
    assert stats.published_lately == SETTLED
    assert stats.table_bytes["outbox"] > 1_000_000
