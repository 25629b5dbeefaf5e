-- Pillarbox on PostgreSQL 14 to 18, version 1: the tables and functions whose names begin with {p}

-- The log: only ever inserted into by applications, only ever deleted from by retention. Progress is a position in
-- {p}ticks, not a column. It is there already if the application's own migrations made it.
CREATE TABLE IF NOT EXISTS {p}outbox (
    xid             xid8        NOT NULL DEFAULT pg_current_xact_id(),   -- before id: defaults are evaluated in this order
    id              bigint      GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    event_id        uuid        NOT NULL DEFAULT gen_random_uuid(),
    aggregate_type  text        NOT NULL DEFAULT '',
    aggregate_id    text        NOT NULL DEFAULT '',                     -- '' : no aggregate, not ordered
    event_type      text        NOT NULL,
    topic           text        NOT NULL,
    payload         json,                                                -- kept byte for byte
    body            bytea,                                               -- any other format
    content_type    text,
    headers         json,
    idempotency_key text,
    number          bigint,
    available_at    timestamptz,
    occurred_at     timestamptz,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    lane            smallint    NOT NULL GENERATED ALWAYS AS (
                        get_byte(sha256(replace(
                            CASE WHEN aggregate_id = '' THEN event_id::text ELSE aggregate_type || ':' || aggregate_id END,
                            E'\\', E'\\\\')::bytea), 0) & 63) STORED,
    -- What the relay could not read is refused at once.
    -- PostgreSQL reads each constraint anew for each statement: so few words as can be.
    CONSTRAINT {prefix}outbox_payload_or_body CHECK (num_nonnulls(payload, body) = 1),
    CONSTRAINT {prefix}outbox_type_and_topic CHECK (event_type <> '' AND length(topic) BETWEEN 1 AND 255),
    CONSTRAINT {prefix}outbox_number CHECK (number >= 0),
    CONSTRAINT {prefix}outbox_instants CHECK (
        least(available_at, occurred_at, created_at) >= '0001-01-01 00:00:00+00'
        AND greatest(available_at, occurred_at, created_at) <= '9999-12-31 23:59:59.999999+00')
);
-- Never compressed: a row without toast is then as small as it looks, and the relay can trust its size.
ALTER TABLE {p}outbox ALTER payload SET STORAGE EXTERNAL, ALTER body SET STORAGE EXTERNAL, ALTER headers SET STORAGE EXTERNAL;
-- Where many events of few transactions were analyzed, the events of one transaction would seem to be everywhere, and be
-- looked for by walking over the log instead of by the index on xid.
ALTER TABLE {p}outbox ALTER xid SET (n_distinct = -1);
CREATE INDEX IF NOT EXISTS {prefix}outbox_xid ON {p}outbox (xid, id);
CREATE INDEX IF NOT EXISTS {prefix}outbox_aggregate ON {p}outbox (aggregate_type, aggregate_id, id);
CREATE INDEX IF NOT EXISTS {prefix}outbox_created ON {p}outbox USING brin (created_at) WITH (autosummarize = on);

-- The time that leases, ticks and retention go by: the database's own.
CREATE FUNCTION {p}now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()';

CREATE FUNCTION {p}cluster() RETURNS text LANGUAGE sql STABLE
    AS 'SELECT system_identifier::text FROM pg_catalog.pg_control_system()';

-- Progress, itself a log: inserted, never updated. The newest tick of a lane is its position: everything visible in s1
-- is settled; of what is visible in s2 and not in s1, everything up to last_id is settled. With each snapshot stand x and
-- m: the transaction of the tick that stored it (as s3) and the id that the log had reached, both drawn after the
-- snapshot. So a row with xid > x has id > m.
CREATE TABLE {p}ticks (
    n         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token     uuid        NOT NULL,
    at        timestamptz NOT NULL DEFAULT {p}now(),
    owner     text        NOT NULL,
    lanes     bigint      NOT NULL,                        -- one bit a lane
    topic     text,                                        -- set: the position of this topic alone
    around    text[]      NOT NULL DEFAULT '{}',           -- topics with a position of their own, read around here
    whole     boolean     NOT NULL DEFAULT false,          -- a topic's only position, for all lanes: its order is global
    s1        pg_snapshot NOT NULL,
    x1        xid8        NOT NULL,
    m1        bigint      NOT NULL,
    s2        pg_snapshot NOT NULL,
    x2        xid8        NOT NULL,
    m2        bigint      NOT NULL,
    last_id   bigint      NOT NULL DEFAULT 0,
    floor_id  bigint      NOT NULL DEFAULT 0,
    published integer     NOT NULL DEFAULT 0,
    failed    integer     NOT NULL DEFAULT 0,
    closed    boolean     NOT NULL DEFAULT false,          -- the detour has met the main line here and is over
    cluster   text        NOT NULL,
    s3        pg_snapshot,                                 -- the snapshot that this tick stores, for the next batch
    m3        bigint,
    x3        xid8
);
CREATE INDEX {prefix}ticks_topic ON {p}ticks (topic, n) WHERE topic IS NOT NULL;
CREATE INDEX {prefix}ticks_main ON {p}ticks (n) WHERE topic IS NULL;
CREATE INDEX {prefix}ticks_at ON {p}ticks (at);
CREATE INDEX {prefix}ticks_published ON {p}ticks (n) WHERE published > 0;

-- Who may read what. The epoch, a random value, fences the bookkeeping of a former holder.
CREATE TABLE {p}lanes (
    lane      smallint PRIMARY KEY,
    owner     text,
    epoch     bigint   NOT NULL,
    crashes   integer  NOT NULL DEFAULT 0,                 -- holders in a row that died before the position moved
    suspect   bigint,                                      -- the event that was about to be sent, in careful mode
    suspected integer  NOT NULL DEFAULT 0                  -- how often in a row it was that one
) WITH (fillfactor = 50);
CREATE TABLE {p}relays (
    name          text        PRIMARY KEY,
    seen_at       timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    pid           integer,                                 -- its backend, if the connection is a direct one
    backend_start timestamptz,
    away_since    timestamptz,
    away_error    text
) WITH (fillfactor = 50);

-- Kept aside: a copy of each event that failed, waits behind one that failed, or is delayed.
-- state: retrying, blocked, dead, delayed; and, until retention takes them, published and dropped.
CREATE TABLE {p}parked (
    id              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position        bigint      NOT NULL,                  -- its id in the outbox
    lane            smallint    NOT NULL,
    state           text        NOT NULL,
    line            text,                                  -- JSON [topic, aggregate type, aggregate id], or its hash; null: outside the order
    due_at          timestamptz,
    attempts        integer     NOT NULL DEFAULT 0,
    last_error      text,
    parked_at       timestamptz NOT NULL DEFAULT {p}now(),
    settled_at      timestamptz,                           -- when it was published or dropped
    replay          text,                                  -- not null: it was published before; the id of `replay --again`, or ''
    event_id        uuid        NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_type      text        NOT NULL,
    topic           text        NOT NULL,
    payload         json,
    body            bytea,
    content_type    text,
    headers         json,
    idempotency_key text,
    number          bigint,
    available_at    timestamptz,
    occurred_at     timestamptz,
    created_at      timestamptz NOT NULL
);
ALTER TABLE {p}parked ALTER payload SET STORAGE EXTERNAL, ALTER body SET STORAGE EXTERNAL, ALTER headers SET STORAGE EXTERNAL;
CREATE INDEX {prefix}parked_line ON {p}parked (line, id) INCLUDE (state, due_at, lane)
    WHERE line IS NOT NULL AND state IN ('retrying', 'blocked', 'dead');
CREATE INDEX {prefix}parked_free ON {p}parked (due_at, id) WHERE line IS NULL AND state IN ('retrying', 'delayed');
CREATE INDEX {prefix}parked_copies ON {p}parked (aggregate_type, aggregate_id, id)
    WHERE replay IS NOT NULL AND aggregate_id <> '' AND state IN ('retrying', 'dead');
-- With the id: the newest row of a position is looked up where nothing may be sorted.
CREATE INDEX {prefix}parked_position ON {p}parked (position, id);
CREATE INDEX {prefix}parked_state ON {p}parked (state, settled_at);

-- Gap-free numbers, one counter per aggregate; idempotency keys, with a retention of their own.
CREATE TABLE {p}numbers (
    aggregate_type text   NOT NULL,
    aggregate_id   text   NOT NULL,
    last           bigint NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id)
) WITH (fillfactor = 70);
CREATE TABLE {p}keys (
    key        text        PRIMARY KEY,
    event_id   uuid        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT {p}now()
);
CREATE INDEX {prefix}keys_age ON {p}keys (created_at);

CREATE TABLE {p}pauses (
    topic text        PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT {p}now(),
    who   text        NOT NULL,
    why   text        NOT NULL
);

-- What retention moves out of the log instead of deleting it, if an archive is asked for.
CREATE TABLE {p}archive (
    id              bigint      PRIMARY KEY,
    event_id        uuid        NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_type      text        NOT NULL,
    topic           text        NOT NULL,
    payload         json,
    body            bytea,
    content_type    text,
    headers         json,
    idempotency_key text,
    number          bigint,
    available_at    timestamptz,
    occurred_at     timestamptz,
    created_at      timestamptz NOT NULL,
    lane            smallint    NOT NULL,
    status          text        NOT NULL,
    attempts        integer     NOT NULL DEFAULT 0,
    last_error      text,
    published_at    timestamptz,
    archived_at     timestamptz NOT NULL DEFAULT {p}now()
);
CREATE INDEX {prefix}archive_event ON {p}archive (event_id);
CREATE INDEX {prefix}archive_aggregate ON {p}archive (aggregate_type, aggregate_id, id);
CREATE INDEX {prefix}archive_age ON {p}archive (archived_at);

CREATE TABLE {p}audit (
    n     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at    timestamptz NOT NULL DEFAULT {p}now(),
    who   text        NOT NULL,
    what  text        NOT NULL,
    count bigint      NOT NULL                             -- what is done in batches has one line, which grows
);

-- Replays, and how far each is: what it has handed to the relay moves its place in the same transaction.
CREATE TABLE {p}replays (
    id          text             PRIMARY KEY,
    began_at    timestamptz      NOT NULL DEFAULT {p}now(),
    who         text             NOT NULL,
    query       json             NOT NULL,                 -- which events
    again       boolean          NOT NULL,                 -- the id goes along with them
    topic       text,                                      -- another one that they go to
    rate        double precision,                          -- how many become due in a second
    first_id    bigint           NOT NULL,
    place       bigint           NOT NULL,                 -- everything up to here is handed over
    upto_id     bigint           NOT NULL,                 -- what was added later does not belong to it
    due_at      timestamptz      NOT NULL DEFAULT {p}now(),   -- the next one is due then, or now if that is later
    events      bigint           NOT NULL DEFAULT 0,
    deed        bigint           NOT NULL,                 -- the line of the audit that counts them
    finished_at timestamptz
) WITH (fillfactor = 50);

-- Receiving: which events a consumer has handled, the first and the last number of each aggregate, and what is kept
-- aside.
CREATE TABLE {p}inbox (
    consumer   text        NOT NULL,
    event_id   text        NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT {p}now(),
    PRIMARY KEY (consumer, event_id)
);
CREATE INDEX {prefix}inbox_age ON {p}inbox (handled_at);
-- A row for each transaction that several events share, while it is open.
CREATE TABLE {p}inbox_shared (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
);
CREATE TABLE {p}inbox_numbers (
    consumer       text   NOT NULL,
    aggregate_type text   NOT NULL,
    aggregate_id   text   NOT NULL,
    first          bigint NOT NULL,
    last           bigint NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) WITH (fillfactor = 70);
-- state: suspect (counted before the handler, because a process died with it), stored (to be handled later), held (a
-- consumer has taken it out, until due_at), retrying, blocked, dead; and, until retention takes them, handled and dropped.
-- numbering: gap (an event with a lower number has not come), conflict (its number was taken), accepted (retried by
-- somebody who knew).
CREATE TABLE {p}inbox_parked (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer       text        NOT NULL,
    event_id       text        NOT NULL,
    state          text        NOT NULL,
    line           text,
    due_at         timestamptz,
    attempts       integer     NOT NULL DEFAULT 0,
    last_error     text,
    traceback      text,
    parked_at      timestamptz NOT NULL DEFAULT {p}now(),
    settled_at     timestamptz,
    topic          text        NOT NULL,
    key            text,
    headers        text        NOT NULL,
    body           bytea       NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    event_type     text        NOT NULL,
    number         bigint,
    numbering      text,
    UNIQUE (consumer, event_id)
);
CREATE INDEX {prefix}inbox_parked_line ON {p}inbox_parked (consumer, line, id)
    WHERE line IS NOT NULL AND state IN ('stored', 'held', 'retrying', 'blocked', 'dead');
CREATE INDEX {prefix}inbox_parked_due ON {p}inbox_parked (consumer, due_at)
    WHERE line IS NULL AND state IN ('held', 'retrying');
CREATE INDEX {prefix}inbox_parked_stored ON {p}inbox_parked (consumer, id) WHERE state = 'stored';
CREATE INDEX {prefix}inbox_parked_number ON {p}inbox_parked (consumer, aggregate_type, aggregate_id, number)
    WHERE number IS NOT NULL;
CREATE INDEX {prefix}inbox_parked_state ON {p}inbox_parked (state, settled_at);

CREATE TABLE {p}meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);

INSERT INTO {p}lanes (lane, epoch) SELECT lane, 0 FROM generate_series(0, 63) lane;

-- A lane without any tick is refused, never begun at zero. This one has settled nothing: what the log holds already,
-- if the application's own migrations made it, is published.
INSERT INTO {p}ticks (token, owner, lanes, s1, x1, m1, s2, x2, m2, cluster)
    VALUES (gen_random_uuid(), 'migrate', -1, '3:3:', '2', 0, '3:3:', '2', 0, {p}cluster());
