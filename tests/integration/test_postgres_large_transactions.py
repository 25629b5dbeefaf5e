"""What large transactions leave in the statistics must not make the search for late events walk over the log."""

from contextlib import ExitStack

import psycopg

from pillarbox import Event
from pillarbox.psycopg import Outbox
from tests.integration.postgres_world import SlowRelay, migrate, run

LARGE, EACH, LATE = 10, 1_000, 20
FILL = f"""
    INSERT INTO pillarbox_outbox (aggregate_type, aggregate_id, event_type, topic, payload)
    SELECT 'order', n::text, 'Imported', 'orders', '{{}}' FROM generate_series(1, {EACH}) n
"""
READ = (
    "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables"
    " WHERE relname = 'pillarbox_outbox'"
)


async def test_late_events_are_found_without_reading_what_large_transactions_have_added(database: str) -> None:
    await migrate(database)
    for _ in range(LARGE):
        run(database, FILL)
    async with SlowRelay(database) as relay:
        await relay.carry()
    run(database, "ANALYZE pillarbox_outbox")
    before = fetched(database)
    async with SlowRelay(database) as relay:
        with ExitStack() as stack:
            writers = [stack.enter_context(psycopg.connect(database)) for _ in range(LATE)]
            for n, writer in enumerate(writers):
                Outbox(topic="orders").add(writer, Event(f"late-{n}", {}, aggregate=("order", f"late-{n}")))
            run(database, FILL)  # committed while they are open: a snapshot with all of them in progress is stored
            await relay.carry()
            for writer in writers:
                writer.commit()
            await relay.carry()
        assert {name for name in relay.wire if name != "Imported"} == {f"late-{n}" for n in range(LATE)}
    # Each late one once more over what is there would be LATE * LARGE * EACH.
    assert fetched(database) - before < LATE * LARGE * EACH // 4


def fetched(url: str) -> int:
    """Count the rows of the log that anybody has fetched; a session tells of its own when it ends."""
    [(count,)] = run(url, READ)
    return int(count)
