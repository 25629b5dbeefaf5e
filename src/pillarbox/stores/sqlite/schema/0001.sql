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

-- Every event with its status, for people: those of the log and those of the archive. Fast by id, by event id, by
-- aggregate, and for the newest or oldest few (ORDER BY id LIMIT). SQLite looks both halves up by index as long as each
-- column has the same affinity in both: hence a coalesce with NULL around a plain column.
CREATE VIEW {prefix}events AS
SELECT e.id, e.event_id,
       CASE WHEN e.id > e.place THEN 'pending' ELSE coalesce(k.state, 'published') END AS status,
       e.event_type, e.topic, e.aggregate_type, e.aggregate_id, e.number,
       coalesce(k.attempts, 0) AS attempts, coalesce(k.last_error, NULL) AS last_error, e.created_at,
       CASE WHEN e.id <= e.place AND coalesce(k.state, 'published') = 'published' THEN coalesce(
           k.settled_at,
           -- The first tick that covers it; a detour's, unless it is the one that opened it: the main line's was before.
           (SELECT CASE WHEN opened THEN NULL ELSE at END FROM {prefix}ticks
            WHERE topic = e.topic AND last_id >= e.id ORDER BY last_id, n LIMIT 1),
           (SELECT at FROM {prefix}ticks WHERE topic IS NULL AND last_id >= e.id ORDER BY last_id, n LIMIT 1))
       END AS published_at,
       CASE WHEN k.state IN ('retrying', 'delayed') THEN k.due_at END AS next_try_at,
       CASE WHEN k.state = 'blocked' THEN (
           SELECT head.event_id FROM {prefix}parked head
           WHERE head.line = k.line AND head.line IS NOT NULL AND head.state IN ('retrying', 'blocked', 'dead')
           ORDER BY head.id LIMIT 1) END AS blocked_by,
       e.occurred_at, e.available_at, e.idempotency_key, e.content_type, e.headers,
       CASE WHEN k.id IS NULL THEN e.payload ELSE k.payload END AS payload,   -- in the parking lot it may have been edited
       CASE WHEN k.id IS NULL THEN e.body ELSE k.body END AS body,
       k.id AS parked_id,
       CASE WHEN k.id IS NOT NULL AND (k.payload IS NOT e.payload OR k.body IS NOT e.body) THEN e.payload END AS original,
       CASE WHEN k.id IS NOT NULL AND (k.payload IS NOT e.payload OR k.body IS NOT e.body) THEN e.body END AS original_body
FROM (
    -- A detour that is closed still counts until the main line has passed the place where they met.
    SELECT o.*, coalesce(
        (SELECT CASE WHEN NOT t.closed OR t.last_id > (
                    SELECT last_id FROM {prefix}ticks WHERE topic IS NULL ORDER BY n DESC LIMIT 1) THEN t.last_id END
         FROM {prefix}ticks t WHERE t.topic = o.topic ORDER BY t.n DESC LIMIT 1),
        (SELECT last_id FROM {prefix}ticks WHERE topic IS NULL ORDER BY n DESC LIMIT 1)) AS place
    FROM {prefix}outbox o) e
-- A replay that waits or is done leaves its event as it was: published. One that failed is shown.
LEFT JOIN {prefix}parked k ON k.id = (
    SELECT max(n.id) FROM {prefix}parked n
    WHERE n.position = e.id AND NOT (n.replay IS NOT NULL AND n.state IN ('delayed', 'published', 'dropped')))
UNION ALL
SELECT e.id, e.event_id, coalesce(k.state, e.status), e.event_type, e.topic, e.aggregate_type, e.aggregate_id, e.number,
       coalesce(k.attempts, e.attempts), coalesce(k.last_error, e.last_error), e.created_at,
       CASE WHEN coalesce(k.state, e.status) = 'published' THEN coalesce(k.settled_at, e.published_at) END,
       CASE WHEN k.state IN ('retrying', 'delayed') THEN k.due_at END,
       CASE WHEN k.state = 'blocked' THEN (
           SELECT head.event_id FROM {prefix}parked head
           WHERE head.line = k.line AND head.line IS NOT NULL AND head.state IN ('retrying', 'blocked', 'dead')
           ORDER BY head.id LIMIT 1) END,
       e.occurred_at, e.available_at, e.idempotency_key, e.content_type, e.headers,
       CASE WHEN k.id IS NULL THEN e.payload ELSE k.payload END, CASE WHEN k.id IS NULL THEN e.body ELSE k.body END,
       k.id,
       CASE WHEN k.id IS NOT NULL AND (k.payload IS NOT e.payload OR k.body IS NOT e.body) THEN e.payload END,
       CASE WHEN k.id IS NOT NULL AND (k.payload IS NOT e.payload OR k.body IS NOT e.body) THEN e.body END
FROM {prefix}archive e
LEFT JOIN {prefix}parked k ON k.id = (
    SELECT max(n.id) FROM {prefix}parked n
    WHERE n.position = e.id AND NOT (n.replay IS NOT NULL AND n.state IN ('delayed', 'published', 'dropped')));
