"""The textbook relay: select what is pending, publish one, mark one, commit each. Fixed: it is what we compare with.

It does not lose events, keeps their order, and is what one writes first. Statements are prepared (sqlite3 caches them),
the files are as durable as ours (write-ahead log, synchronous=FULL), the payload is the same.
"""

import json
import sqlite3
from time import perf_counter, sleep

OUTBOX = """
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    payload TEXT NOT NULL,
    published_at REAL
);
CREATE INDEX outbox_pending ON outbox (id) WHERE published_at IS NULL;
"""
BROKER = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic TEXT NOT NULL,
    key TEXT,
    headers TEXT NOT NULL,
    body BLOB NOT NULL
);
"""
ADD = "INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES (?, ?, ?, ?, ?)"
PENDING = """
    SELECT id, event_id, aggregate_type, aggregate_id, event_type, payload
    FROM outbox WHERE published_at IS NULL ORDER BY id LIMIT 100
"""
PUBLISH = "INSERT INTO messages (topic, key, headers, body) VALUES (?, ?, ?, ?)"
MARK = "UPDATE outbox SET published_at = ? WHERE id = ?"


def drain(shop: sqlite3.Connection, broker: sqlite3.Connection) -> int:
    """Publish everything that is pending; both connections commit each statement by itself."""
    published = 0
    while pending := shop.execute(PENDING).fetchall():
        for id, event_id, aggregate_type, aggregate_id, event_type, payload in pending:
            headers = json.dumps({"id": event_id, "type": event_type, "aggregate_id": aggregate_id})
            broker.execute(PUBLISH, (f"{aggregate_type}-events", aggregate_id, headers, payload.encode()))
            shop.execute(MARK, (perf_counter(), id))
            published += 1
    return published


def poll_every_second(shop: sqlite3.Connection, broker: sqlite3.Connection) -> None:
    """Run for ever: publish what is pending, sleep a second."""
    while True:
        drain(shop, broker)
        sleep(1)
