
-- What people see: every event with its status, in psql and through the command line alike.

-- Where the log is settled, now or at an instant: a row for each group of lanes at one place, and for each topic that
-- has a place of its own there. A detour that is over met the main line where it ended, so the main line's place counts.
CREATE FUNCTION {p}places(_until timestamptz DEFAULT NULL)
RETURNS TABLE (
    lanes bigint, topic text, s1 pg_snapshot, x1 xid8, m1 bigint, s2 pg_snapshot, x2 xid8, m2 bigint, last_id bigint,
    floor_id bigint, cluster text)
LANGUAGE plpgsql STABLE ROWS 4 AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT CASE WHEN t.whole THEN -1 ELSE t.lanes END, t.topic, t.s1, t.x1, t.m1, t.s2, t.x2, t.m2, t.last_id,
           t.floor_id, t.cluster
    FROM {p}positions(-1, _until) t WHERE NOT t.closed;
END $$;

-- The time of the first tick that covers an event which is settled. Once covered, always covered: so it is found by
-- halving, in some twenty looks whatever the backlog was and however long the event's transaction was open. After an
-- `adopt`, an event without a transaction of its own (3) was settled nobody knows when.
CREATE FUNCTION {p}published_at(_xid xid8, _id bigint, _lane smallint, _topic text)
RETURNS timestamptz LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    first bigint;
    last bigint;
    middle bigint;
    newest {p}ticks%ROWTYPE;
    t {p}ticks%ROWTYPE;
    detours boolean := EXISTS (SELECT 1 FROM {p}ticks WHERE topic = _topic);
BEGIN
    IF _xid <= '3' THEN
        RETURN NULL;
    END IF;
    SELECT * INTO newest FROM {p}ticks ORDER BY n DESC LIMIT 1;
    SELECT n INTO first FROM {p}ticks ORDER BY n LIMIT 1;
    last := newest.n;
    WHILE first < last LOOP
        middle := (first + last) / 2;
        t := NULL;
        IF detours THEN
            SELECT * INTO t FROM {p}ticks WHERE topic = _topic AND n <= middle AND (whole OR (lanes >> _lane) & 1 = 1)
                ORDER BY n DESC LIMIT 1;
        END IF;
        IF t.n IS NULL OR t.closed THEN
            SELECT * INTO t FROM {p}ticks WHERE topic IS NULL AND n <= middle AND (lanes >> _lane) & 1 = 1
                ORDER BY n DESC LIMIT 1;
        END IF;
        IF (t.cluster = newest.cluster OR _id <= newest.floor_id)
           AND (_id <= t.floor_id OR pg_visible_in_snapshot(_xid, t.s1)
                OR (_id <= t.last_id AND pg_visible_in_snapshot(_xid, t.s2)))
        THEN
            last := middle;
        ELSE
            first := middle + 1;
        END IF;
    END LOOP;
    RETURN (SELECT at FROM {p}ticks WHERE n <= last ORDER BY n DESC LIMIT 1);
END $$;

-- Every event: those of the log and those of the archive. Fast by id, by aggregate, and for the newest or oldest few
-- (ORDER BY id LIMIT): log and archive are then read in the order of their ids, and the rest is looked up for each row.
-- The places are worked out once in a query: they do not depend on the row.
CREATE VIEW {p}events AS
SELECT e.id, e.event_id, how.status, e.event_type, e.topic, e.aggregate_type, e.aggregate_id, e.number,
       coalesce(k.attempts, e.attempts) AS attempts,
       coalesce(k.last_error, e.last_error) AS last_error,
       e.created_at,
       CASE WHEN how.status = 'published' THEN coalesce(
           k.settled_at, e.published_at,
           CASE WHEN NOT e.archived THEN {p}published_at(e.xid, e.id, e.lane, e.topic) END) END AS published_at,
       CASE WHEN how.status IN ('retrying', 'delayed') THEN k.due_at END AS next_try_at,
       CASE WHEN how.status = 'blocked' THEN (
           SELECT head.event_id FROM {p}parked head
           WHERE head.line = k.line AND head.line IS NOT NULL AND head.state IN ('retrying', 'blocked', 'dead')
           ORDER BY head.id LIMIT 1) END AS blocked_by,
       e.occurred_at, e.available_at, e.idempotency_key, e.content_type, e.headers,
       CASE WHEN k.id IS NULL THEN e.payload ELSE k.payload END AS payload,   -- in the parking lot it may have been edited
       CASE WHEN k.id IS NULL THEN e.body ELSE k.body END AS body,
       e.lane, k.id AS parked_id,
       CASE WHEN edited.yes THEN e.payload END AS original, CASE WHEN edited.yes THEN e.body END AS original_body
FROM (
    SELECT id, xid, event_id, event_type, topic, aggregate_type, aggregate_id, number, created_at, occurred_at,
           available_at, idempotency_key, content_type, headers, payload, body, lane, NULL::text AS status,
           0 AS attempts, NULL::text AS last_error, NULL::timestamptz AS published_at, false AS archived
    FROM {p}outbox
    UNION ALL
    SELECT id, NULL::xid8, event_id, event_type, topic, aggregate_type, aggregate_id, number, created_at, occurred_at,
           available_at, idempotency_key, content_type, headers, payload, body, lane, status,
           attempts, last_error, published_at, true
    FROM {p}archive) e
LEFT JOIN LATERAL (
    -- A replay that waits or is done leaves its event as it was: published. One that failed is shown.
    SELECT * FROM {p}parked k
    WHERE k.position = e.id AND NOT (k.replay IS NOT NULL AND k.state IN ('delayed', 'published', 'dropped'))
    ORDER BY k.id DESC LIMIT 1) k ON true
LEFT JOIN LATERAL (
    -- In a log that was copied from another cluster, a new transaction may bear an id that an old snapshot shows; what a
    -- snapshot really shows has an id up to its m.
    SELECT e.id <= t.floor_id OR (e.id <= t.m2 AND (pg_visible_in_snapshot(e.xid, t.s1)
           OR (e.id <= t.last_id AND pg_visible_in_snapshot(e.xid, t.s2)))) AS settled
    FROM {p}places() t
    WHERE (t.lanes >> e.lane) & 1 = 1 AND (t.topic IS NULL OR t.topic = e.topic) AND NOT e.archived
    ORDER BY t.topic LIMIT 1) place ON true
CROSS JOIN LATERAL (
    SELECT CASE WHEN NOT e.archived AND place.settled IS NOT TRUE THEN 'pending'
                ELSE coalesce(k.state, e.status, 'published') END AS status) how
CROSS JOIN LATERAL (
    SELECT k.id IS NOT NULL AND (k.payload::text IS DISTINCT FROM e.payload::text OR k.body IS DISTINCT FROM e.body)
           AS yes) edited;

-- The same for those who must not see what is inside.
CREATE VIEW {p}events_brief AS
SELECT id, event_id, status, event_type, topic, aggregate_type, aggregate_id, number, attempts, last_error, created_at,
       published_at, next_try_at, blocked_by, occurred_at, available_at, idempotency_key, content_type
FROM {p}events;

-- Where the unsettled rows of each place begin: its main part above `main`, and the transactions that may have rows
-- below it, because they were open when one of its two snapshots was taken.
CREATE FUNCTION {p}beyond()
RETURNS TABLE (
    lanes bigint, topic text, s1 pg_snapshot, s2 pg_snapshot, x1 xid8, last_id bigint, floor_id bigint, main bigint,
    late xid8[])
LANGUAGE plpgsql STABLE ROWS 4 AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT t.lanes, t.topic, t.s1, t.s2, t.x1, t.last_id, t.floor_id, greatest(t.m1, t.last_id, t.floor_id), ARRAY(
        SELECT x FROM pg_snapshot_xip(t.s1) x
        UNION SELECT x FROM pg_snapshot_xip(t.s2) x
        UNION SELECT x::text::xid8 FROM generate_series(pg_snapshot_xmax(t.s1)::text::bigint, t.x1::text::bigint) x
        UNION SELECT x::text::xid8 FROM generate_series(pg_snapshot_xmax(t.s2)::text::bigint, t.x2::text::bigint) x)
    FROM {p}places() t;
END $$;

-- At most about _rows pending events of each place, lowest ids first, found by index and never by walking over what is
-- settled. Beyond a place lie others' rows too (a paused topic's place may be days old): at most _walk rows are looked
-- at. A row without an id says that there may be more.
CREATE FUNCTION {p}pending(_rows integer, _walk integer)
RETURNS TABLE (id bigint, topic text, created_at timestamptz)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET max_parallel_workers_per_gather = 0
AS $$
#variable_conflict use_column
DECLARE
    t record;
    upto bigint;
    found bigint;
BEGIN
    FOR t IN SELECT * FROM {p}beyond() LOOP
        RETURN QUERY
        SELECT o.id, o.topic, o.created_at FROM unnest(t.late) l(xid) CROSS JOIN LATERAL (
            SELECT o.id, o.topic, o.created_at, o.lane FROM {p}outbox o
            WHERE o.xid = l.xid AND o.id > t.floor_id AND NOT pg_visible_in_snapshot(o.xid, t.s1)
              AND NOT (o.id <= t.last_id AND pg_visible_in_snapshot(o.xid, t.s2))
              AND NOT (o.id > t.main AND o.xid > t.x1)
              AND (t.lanes >> o.lane) & 1 = 1 AND o.topic = coalesce(t.topic, o.topic)
            ORDER BY o.id LIMIT _rows) o
        WHERE t.topic IS NOT NULL OR NOT EXISTS (
            SELECT 1 FROM {p}places() own WHERE own.topic = o.topic AND (own.lanes >> o.lane) & 1 = 1);
        SELECT o.id INTO upto FROM {p}outbox o WHERE o.id > t.main ORDER BY o.id OFFSET _walk LIMIT 1;
        RETURN QUERY
        SELECT o.id, o.topic, o.created_at FROM {p}outbox o
        WHERE o.id > t.main AND (upto IS NULL OR o.id < upto) AND o.xid > t.x1
          AND (t.lanes >> o.lane) & 1 = 1 AND o.topic = coalesce(t.topic, o.topic)
          AND (t.topic IS NOT NULL OR NOT EXISTS (
              SELECT 1 FROM {p}places() own WHERE own.topic = o.topic AND (own.lanes >> o.lane) & 1 = 1))
        ORDER BY o.id LIMIT _rows;
        GET DIAGNOSTICS found = ROW_COUNT;
        IF upto IS NOT NULL AND found < _rows THEN
            RETURN QUERY SELECT NULL::bigint, NULL::text, NULL::timestamptz;
        END IF;
    END LOOP;
END $$;

-- An id below which nothing is pending.
CREATE FUNCTION {p}pending_above() RETURNS bigint LANGUAGE sql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT least(min(t.main), min((
        SELECT min(o.id) - 1 FROM unnest(t.late) l(xid) JOIN {p}outbox o ON o.xid = l.xid AND o.id > t.floor_id)))
    FROM {p}beyond() t
$$;
