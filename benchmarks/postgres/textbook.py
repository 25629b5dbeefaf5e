"""The textbook relay on PostgreSQL: lock one row, publish it, mark it, commit. Fixed: it is what we compare with.

It loses nothing, several may run, and it is what one writes first. Its statements are prepared after a few runs, its
index is the right one, its payload is the same as ours; it publishes nowhere, as ours does here.
"""

from time import perf_counter

import psycopg
from psycopg.types.json import Jsonb

from benchmarks import shop

OUTBOX = """
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id uuid NOT NULL,
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    event_type text NOT NULL,
    payload jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz
)
"""
INDEX = "CREATE INDEX outbox_pending ON outbox (id) WHERE published_at IS NULL"
ADD = """
INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
SELECT gen_random_uuid(), 'order', (n %% 500)::text, 'OrderPlaced', jsonb_set(%s::jsonb, '{order_id}', to_jsonb(n))
FROM generate_series(1, %s) n
"""
NEXT = """
SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload
FROM outbox WHERE published_at IS NULL ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
"""
MARK = "UPDATE outbox SET published_at = now() WHERE id = %s"


def fill(url: str, count: int) -> None:
    """Make the outbox with events that nobody has published."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(OUTBOX)
        connection.execute(INDEX)
        connection.execute(ADD, [Jsonb(shop.payload(0)), count])
        connection.execute("VACUUM ANALYZE outbox")
        connection.execute("CHECKPOINT")


def drain(url: str, count: int) -> float:
    """Publish everything; give events a second."""
    published = 0
    with psycopg.connect(url) as connection:
        began = perf_counter()
        while row := connection.execute(NEXT).fetchone():
            published += 1
            connection.execute(MARK, [row[0]])
            connection.commit()
        seconds = perf_counter() - began
    if published != count:
        raise RuntimeError(f"{published} events were published, not {count}")
    return count / seconds
