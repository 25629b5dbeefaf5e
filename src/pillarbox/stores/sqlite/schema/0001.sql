-- Pillarbox on SQLite, version 1. {prefix} is the tables' prefix ("pillarbox_" unless set otherwise).
-- Instants are INTEGER microseconds since 1970 in UTC; uuids are TEXT. One writer at a time, so id order is commit
-- order, and a position in the log is one number.

-- The log: only ever inserted into by applications, only ever deleted from by retention.
-- It is there already if the application's own migrations made it.
CREATE TABLE IF NOT EXISTS {prefix}outbox (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,   -- AUTOINCREMENT: an id is never used twice, not even after pruning
    event_id        TEXT NOT NULL DEFAULT (lower(
                        hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'
                        || substr('89ab', 1 + (abs(random()) % 4), 1) || substr(hex(randomblob(2)), 2) || '-'
                        || hex(randomblob(6)))),
    aggregate_type  TEXT NOT NULL DEFAULT '',
    aggregate_id    TEXT NOT NULL DEFAULT '',             -- '' : no aggregate, not ordered
    event_type      TEXT NOT NULL,
    topic           TEXT NOT NULL,
    payload         TEXT,                                 -- JSON, kept byte for byte
    body            BLOB,                                 -- any other format
    content_type    TEXT,
    headers         TEXT,                                 -- a JSON object
    idempotency_key TEXT,
    number          INTEGER,
    available_at    INTEGER,
    occurred_at     INTEGER,
    created_at      INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)),
    -- A plain INSERT that the relay could not read is refused at once. Instants end with the year 9999.
    CHECK (id > 0),
    CHECK ((payload IS NULL) <> (body IS NULL)),
    CHECK (event_type <> '' AND topic <> '' AND instr(topic, char(0)) = 0),
    CHECK (typeof(event_id) = 'text' AND typeof(aggregate_type) = 'text' AND typeof(aggregate_id) = 'text'),
    CHECK (typeof(event_type) = 'text' AND typeof(topic) = 'text'),
    CHECK (typeof(payload) IN ('text', 'null') AND typeof(body) IN ('blob', 'null')),
    CHECK (typeof(content_type) IN ('text', 'null') AND typeof(headers) IN ('text', 'null')),
    CHECK (typeof(idempotency_key) IN ('text', 'null')),
    CHECK (typeof(number) IN ('integer', 'null') AND number >= 0),
    CHECK (typeof(available_at) IN ('integer', 'null') AND available_at BETWEEN -62135596800000000 AND 253402300799999999),
    CHECK (typeof(occurred_at) IN ('integer', 'null') AND occurred_at BETWEEN -62135596800000000 AND 253402300799999999),
    CHECK (typeof(created_at) = 'integer' AND created_at BETWEEN 0 AND 253402300799999999)
);
CREATE INDEX IF NOT EXISTS {prefix}outbox_event ON {prefix}outbox (event_id);
CREATE INDEX IF NOT EXISTS {prefix}outbox_aggregate ON {prefix}outbox (aggregate_type, aggregate_id, id);
CREATE INDEX IF NOT EXISTS {prefix}outbox_topic ON {prefix}outbox (topic, id);   -- a paused topic's own entries, without walking the log

-- Progress, itself a log: the newest row without a topic is the position; the newest one with a topic is the position of
-- that topic's detour. A detour that is closed still counts until the position has passed the place where they met.
CREATE TABLE {prefix}ticks (
    n         INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    owner     TEXT NOT NULL,
    topic     TEXT,                                       -- set: a detour's position, for this topic alone
    last_id   INTEGER NOT NULL,                           -- everything up to here is settled
    published INTEGER NOT NULL DEFAULT 0,
    failed    INTEGER NOT NULL DEFAULT 0,
    opened    INTEGER NOT NULL DEFAULT 0,                 -- 1: the detour leaves the main line here
    closed    INTEGER NOT NULL DEFAULT 0                  -- 1: the detour has met the main line here and is over
);
CREATE INDEX {prefix}ticks_topic ON {prefix}ticks (topic, n);
CREATE INDEX {prefix}ticks_last ON {prefix}ticks (topic, last_id);
CREATE INDEX {prefix}ticks_at ON {prefix}ticks (topic, at);
CREATE INDEX {prefix}ticks_published ON {prefix}ticks (n) WHERE published > 0;

-- Who may read: one row, because SQLite has one lane group. The epoch fences the bookkeeping of a former holder.
CREATE TABLE {prefix}lanes (
    lane     INTEGER PRIMARY KEY,
    owner    TEXT,
    epoch    TEXT NOT NULL
);
CREATE TABLE {prefix}relays (
    owner       TEXT PRIMARY KEY,
    seen_at     INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    locked      INTEGER NOT NULL DEFAULT 0,               -- 1: it also keeps the kernel's lock
    away_since  INTEGER,
    away_error  TEXT
);

-- Kept aside: a copy of each event that failed, waits behind one that failed, or is delayed.
-- state: retrying, blocked, dead, delayed; and, until retention takes them, published and dropped.
CREATE TABLE {prefix}parked (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    position        INTEGER NOT NULL,                     -- its id in the outbox
    state           TEXT NOT NULL,
    line            TEXT,                                 -- JSON [topic, aggregate type, aggregate id]; null: outside the order
    due_at          INTEGER,
    attempts        INTEGER NOT NULL DEFAULT 0,
    last_error      TEXT,
    parked_at       INTEGER NOT NULL,
    settled_at      INTEGER,                              -- when it was published or dropped
    replay          TEXT,                                 -- not null: it was published before; the id of `replay --again`, or ''
    event_id        TEXT NOT NULL,
    aggregate_type  TEXT NOT NULL,
    aggregate_id    TEXT NOT NULL,
    event_type      TEXT NOT NULL,
    topic           TEXT NOT NULL,
    payload         TEXT,
    body            BLOB,
    content_type    TEXT,
    headers         TEXT,
    idempotency_key TEXT,
    number          INTEGER,
    available_at    INTEGER,
    occurred_at     INTEGER,
    created_at      INTEGER NOT NULL
);
CREATE INDEX {prefix}parked_line ON {prefix}parked (line, id, state, due_at)
    WHERE line IS NOT NULL AND state IN ('retrying', 'blocked', 'dead');
CREATE INDEX {prefix}parked_free ON {prefix}parked (due_at, id) WHERE line IS NULL AND state IN ('retrying', 'delayed');
CREATE INDEX {prefix}parked_copies ON {prefix}parked (aggregate_type, aggregate_id, id)
    WHERE replay IS NOT NULL AND aggregate_id <> '' AND state IN ('retrying', 'dead');
CREATE INDEX {prefix}parked_position ON {prefix}parked (position);
CREATE INDEX {prefix}parked_state ON {prefix}parked (state, settled_at);

-- Gap-free numbers, one counter per aggregate; idempotency keys, with a retention of their own.
CREATE TABLE {prefix}numbers (
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    last           INTEGER NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id)
) WITHOUT ROWID;
CREATE TABLE {prefix}keys (
    key        TEXT PRIMARY KEY,
    event_id   TEXT NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX {prefix}keys_age ON {prefix}keys (created_at);

CREATE TABLE {prefix}pauses (
    topic TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    who   TEXT NOT NULL,
    why   TEXT NOT NULL
) WITHOUT ROWID;

-- What retention moves out of the log instead of deleting it, if an archive is asked for.
CREATE TABLE {prefix}archive (
    id              INTEGER PRIMARY KEY,
    event_id        TEXT NOT NULL,
    aggregate_type  TEXT NOT NULL,
    aggregate_id    TEXT NOT NULL,
    event_type      TEXT NOT NULL,
    topic           TEXT NOT NULL,
    payload         TEXT,
    body            BLOB,
    content_type    TEXT,
    headers         TEXT,
    idempotency_key TEXT,
    number          INTEGER,
    available_at    INTEGER,
    occurred_at     INTEGER,
    created_at      INTEGER NOT NULL,
    status          TEXT NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    last_error      TEXT,
    published_at    INTEGER,
    archived_at     INTEGER NOT NULL
);
CREATE INDEX {prefix}archive_event ON {prefix}archive (event_id);
CREATE INDEX {prefix}archive_aggregate ON {prefix}archive (aggregate_type, aggregate_id, id);
CREATE INDEX {prefix}archive_age ON {prefix}archive (archived_at);

CREATE TABLE {prefix}audit (
    n     INTEGER PRIMARY KEY AUTOINCREMENT,
    at    INTEGER NOT NULL,
    who   TEXT NOT NULL,
    what  TEXT NOT NULL,
    count INTEGER NOT NULL                                -- what is done in batches has one line, which grows
);

-- Replays, and how far each is: what it has handed to the relay moves its place in the same transaction.
CREATE TABLE {prefix}replays (
    id          TEXT PRIMARY KEY,
    began_at    INTEGER NOT NULL,
    who         TEXT NOT NULL,
    query       TEXT NOT NULL,                            -- which events, as JSON
    again       INTEGER NOT NULL,                         -- 1: the id goes along with them
    topic       TEXT,                                     -- another one that they go to
    rate        REAL,                                     -- how many become due in a second
    first_id    INTEGER NOT NULL,
    place       INTEGER NOT NULL,                         -- everything up to here is handed over
    upto_id     INTEGER NOT NULL,                         -- what was added later does not belong to it
    due_at      INTEGER NOT NULL,                         -- the next one is due then, or now if that is later
    events      INTEGER NOT NULL DEFAULT 0,
    deed        INTEGER NOT NULL,                         -- the line of the audit that counts them
    finished_at INTEGER
) WITHOUT ROWID;

-- Receiving: which events a consumer has handled, the first and the last number of each aggregate, and what is kept
-- aside.
CREATE TABLE {prefix}inbox (
    consumer   TEXT NOT NULL,
    event_id   TEXT NOT NULL,
    handled_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)),
    PRIMARY KEY (consumer, event_id)
) WITHOUT ROWID;
CREATE INDEX {prefix}inbox_age ON {prefix}inbox (handled_at);
CREATE TABLE {prefix}inbox_numbers (
    consumer       TEXT NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    first          INTEGER NOT NULL,
    last           INTEGER NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) WITHOUT ROWID;
-- state: suspect (counted before the handler, because a process died with it), stored (to be handled later), held (a
-- consumer has taken it out, until due_at), retrying, blocked, dead; and, until retention takes them, handled and dropped.
-- numbering: gap (an event with a lower number has not come), conflict (its number was taken), accepted (retried by
-- somebody who knew).
CREATE TABLE {prefix}inbox_parked (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer       TEXT NOT NULL,
    event_id       TEXT NOT NULL,
    state          TEXT NOT NULL,
    line           TEXT,
    due_at         INTEGER,
    attempts       INTEGER NOT NULL DEFAULT 0,
    last_error     TEXT,
    traceback      TEXT,
    parked_at      INTEGER NOT NULL,
    settled_at     INTEGER,
    topic          TEXT NOT NULL,
    key            TEXT,
    headers        TEXT NOT NULL,
    body           BLOB NOT NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id   TEXT NOT NULL,
    event_type     TEXT NOT NULL,
    number         INTEGER,
    numbering      TEXT,
    UNIQUE (consumer, event_id)
);
CREATE INDEX {prefix}inbox_parked_line ON {prefix}inbox_parked (consumer, line, id) WHERE line IS NOT NULL AND state IN ('stored', 'held', 'retrying', 'blocked', 'dead');
CREATE INDEX {prefix}inbox_parked_due ON {prefix}inbox_parked (consumer, due_at) WHERE line IS NULL AND state IN ('held', 'retrying');
CREATE INDEX {prefix}inbox_parked_stored ON {prefix}inbox_parked (consumer, id) WHERE state = 'stored';
CREATE INDEX {prefix}inbox_parked_number ON {prefix}inbox_parked (consumer, aggregate_type, aggregate_id, number) WHERE number IS NOT NULL;
CREATE INDEX {prefix}inbox_parked_state ON {prefix}inbox_parked (state, settled_at);

CREATE TABLE {prefix}meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO {prefix}lanes (lane, owner, epoch) VALUES (0, NULL, '');
INSERT INTO {prefix}ticks (at, owner, last_id) VALUES (0, 'migrate', 0);   -- a lane without any tick is refused, never begun at zero
