
-- Retention: deletes what has been settled for long enough, in bounded batches, by when it was settled. Never by an
-- event's own time: a long transaction commits rows that are old already.

-- Delete (or move to the archive) a batch of what was settled at _old already, on its own lane and in its own topic, in
-- the order of ids from where the last call came to; 0 and `unfinished` if it walked over _walk rows that must stay.
CREATE FUNCTION {p}prune_log(
    _old timestamptz, _archive boolean, _batch integer, _walk integer, OUT pruned bigint, OUT unfinished boolean)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET max_parallel_workers_per_gather = 0
AS $$
DECLARE
    here text := {p}cluster();
    reached bigint := coalesce((SELECT value::bigint FROM {p}meta WHERE name = 'pruned'), 0);
    -- What a snapshot shows has an id up to its m.
    bound bigint := (SELECT max(greatest(t.m1, t.last_id, t.floor_id)) FROM {p}places(_old) t);
    upto bigint;
    ids bigint[];
BEGIN
    SELECT o.id INTO upto FROM {p}outbox o WHERE o.id > reached AND o.id <= bound ORDER BY o.id OFFSET _walk LIMIT 1;
    ids := ARRAY(
        SELECT o.id FROM {p}outbox o
        WHERE o.id > reached AND o.id <= bound AND (upto IS NULL OR o.id < upto)
          AND (SELECT t.cluster = here AND (o.id <= t.floor_id OR pg_visible_in_snapshot(o.xid, t.s1)
                      OR (o.id <= t.last_id AND pg_visible_in_snapshot(o.xid, t.s2)))
               FROM {p}places(_old) t
               WHERE (t.lanes >> o.lane) & 1 = 1 AND (t.topic IS NULL OR t.topic = o.topic) ORDER BY t.topic LIMIT 1)
          -- And is settled now: a topic that has a place of its own since then may have been set back.
          AND (SELECT t.cluster = here AND (o.id <= t.floor_id OR pg_visible_in_snapshot(o.xid, t.s1)
                      OR (o.id <= t.last_id AND pg_visible_in_snapshot(o.xid, t.s2)))
               FROM {p}places() t
               WHERE (t.lanes >> o.lane) & 1 = 1 AND (t.topic IS NULL OR t.topic = o.topic) ORDER BY t.topic LIMIT 1)
          -- In the parking lot: still waiting there, or settled there only lately.
          AND NOT EXISTS (SELECT 1 FROM {p}parked k
                          WHERE k.position = o.id AND (k.settled_at IS NULL OR k.settled_at > _old))
        ORDER BY o.id LIMIT _batch);
    pruned := cardinality(ids);
    unfinished := pruned = _batch OR upto IS NOT NULL;
    IF _archive AND pruned > 0 THEN
        INSERT INTO {p}archive (id, event_id, aggregate_type, aggregate_id, event_type, topic, payload, body,
            content_type, headers, idempotency_key, number, available_at, occurred_at, created_at, lane, status,
            attempts, last_error, published_at)
        SELECT id, event_id, aggregate_type, aggregate_id, event_type, topic, payload, body, content_type, headers,
            idempotency_key, number, available_at, occurred_at, created_at, lane, status, attempts, last_error,
            published_at
        FROM {p}events WHERE id = ANY (ids);
    END IF;
    DELETE FROM {p}outbox o WHERE o.id = ANY (ids);
    -- The next call goes on from here: behind a snapshot that somebody holds, the way over deleted rows grows long.
    reached := CASE WHEN pruned = _batch THEN ids[_batch] WHEN upto IS NOT NULL THEN upto - 1 ELSE 0 END;
    INSERT INTO {p}meta AS m (name, value) VALUES ('pruned', reached)
        ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE m.value <> excluded.value;
END $$;

-- Leave the last tick of each second, with the counts of all; from where the previous call came to. Kept are those that
-- stored the end of a batch which is not over: a relay's memory hangs on them.
CREATE FUNCTION {p}thin_ticks(_old timestamptz, _batch integer) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    reached bigint := coalesce((SELECT value::bigint FROM {p}meta WHERE name = 'thinned'), 0);
    upto bigint := (SELECT n FROM {p}ticks WHERE at < date_trunc('second', _old) ORDER BY at DESC, n DESC LIMIT 1);
    marks xid8[] := ARRAY(SELECT x2 FROM {p}positions(-1));
    thinned bigint;
    seen bigint;
    last bigint;
    cut bigint;
BEGIN
    WITH looked AS MATERIALIZED (
        SELECT n, published, failed, max(n) OVER same AS newest, date_trunc('second', at) AS second,
               n = max(n) OVER same OR coalesce(x3 = ANY (marks), false) AS stays
        FROM (SELECT * FROM {p}ticks WHERE n > reached AND n <= upto ORDER BY n LIMIT _batch) t
        WINDOW same AS (PARTITION BY owner, topic, lanes, date_trunc('second', at))),
    gone AS (
        DELETE FROM {p}ticks t USING looked WHERE t.n = looked.n AND NOT looked.stays),
    summed AS (
        UPDATE {p}ticks t SET published = t.published + g.published, failed = t.failed + g.failed
        FROM (SELECT newest, sum(published)::integer AS published, sum(failed)::integer AS failed
              FROM looked WHERE NOT stays GROUP BY newest HAVING sum(published) + sum(failed) > 0) g
        WHERE t.n = g.newest)
    SELECT count(*) FILTER (WHERE NOT stays), count(*), max(n), min(n) FILTER (WHERE second = newest_second)
        INTO thinned, seen, last, cut
    FROM looked CROSS JOIN (SELECT max(second) AS newest_second FROM looked) m;
    -- A full batch may have cut a second in two: what is left of it comes again the next time.
    IF seen > 0 THEN
        INSERT INTO {p}meta (name, value)
            VALUES ('thinned', CASE WHEN seen = _batch AND cut - 1 > reached THEN cut - 1 ELSE last END)
            ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    END IF;
    RETURN thinned;
END $$;

-- Delete ticks that say nothing any more: neither where a lane is, nor where it was at _old. What is in the log was
-- settled later. A relay whose tick is gone reads again; so none goes that is a few minutes old.
CREATE FUNCTION {p}prune_ticks(_old timestamptz, _batch integer) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off
AS $$
DECLARE
    kept bigint[];
    marks xid8[];
    pruned bigint;
BEGIN
    SELECT array_agg(n), array_agg(x2) INTO kept, marks FROM {p}positions(-1);
    DELETE FROM {p}ticks t WHERE t.n = ANY (ARRAY(
        SELECT n FROM {p}ticks
        WHERE at <= least(_old, {p}now() - interval '5 minutes') AND n <> ALL (kept)
          AND n <> ALL (ARRAY(SELECT n FROM {p}positions(-1, _old))) AND NOT coalesce(x3 = ANY (marks), false)
        ORDER BY at LIMIT _batch));
    GET DIAGNOSTICS pruned = ROW_COUNT;
    RETURN pruned;
END $$;

-- One batch of everything. Null keeps for ever, zero deletes at once. One at a time: who finds another at it does nothing.
CREATE FUNCTION {p}prune(
    _published interval, _archive interval, _inbox interval, _batch integer, _walk integer,
    OUT pruned bigint, OUT unfinished boolean)
LANGUAGE plpgsql VOLATILE
SET lock_timeout = '2s' SET enable_seqscan = off
AS $$
DECLARE
    now timestamptz := {p}now();
    old timestamptz;
    count bigint;
BEGIN
    pruned := 0;
    unfinished := false;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('{p}prune', 0)) THEN
        RETURN;
    END IF;
    pruned := {p}thin_ticks(now - interval '1 minute', _batch);
    IF _published IS NOT NULL THEN
        old := now - _published;
        SELECT l.pruned, l.unfinished INTO count, unfinished
            FROM {p}prune_log(old, _archive IS DISTINCT FROM '0', _batch, _walk) l;
        pruned := pruned + count;
        -- Only after its entry, which would otherwise look published.
        DELETE FROM {p}parked WHERE id = ANY (ARRAY(
            SELECT k.id FROM {p}parked k
            WHERE k.state IN ('published', 'dropped') AND k.settled_at <= old
              AND (k.replay IS NOT NULL OR NOT EXISTS (SELECT 1 FROM {p}outbox o WHERE o.id = k.position))
            LIMIT _batch));
        GET DIAGNOSTICS count = ROW_COUNT;
        pruned := pruned + count + {p}prune_ticks(old, _batch);
    END IF;
    IF _archive IS NOT NULL THEN
        DELETE FROM {p}archive WHERE id = ANY (ARRAY(
            -- Not while a replayed copy waits or is dead: nobody could find that one then.
            SELECT a.id FROM {p}archive a WHERE a.archived_at <= now - _archive AND NOT EXISTS (
                SELECT 1 FROM {p}parked k WHERE k.position = a.id AND k.settled_at IS NULL)
            ORDER BY a.archived_at LIMIT _batch));
        GET DIAGNOSTICS count = ROW_COUNT;
        pruned := pruned + count;
    END IF;
    IF _inbox IS NOT NULL THEN
        DELETE FROM {p}inbox WHERE ctid = ANY (ARRAY(
            -- A dead letter whose handler committed by itself is known by its row here: it must not run again when retried.
            SELECT i.ctid FROM {p}inbox i WHERE i.handled_at <= now - _inbox AND NOT EXISTS (
                SELECT 1 FROM {p}inbox_parked k WHERE k.consumer = i.consumer AND k.event_id = i.event_id
                AND k.state NOT IN ('handled', 'dropped')) LIMIT _batch));
        GET DIAGNOSTICS count = ROW_COUNT;
        pruned := pruned + count;
        DELETE FROM {p}inbox_parked WHERE id = ANY (ARRAY(
            SELECT id FROM {p}inbox_parked
            WHERE state IN ('handled', 'dropped') AND settled_at <= now - _inbox LIMIT _batch));
        GET DIAGNOSTICS count = ROW_COUNT;
        pruned := pruned + count;
    END IF;
    DELETE FROM {p}keys WHERE key = ANY (ARRAY(
        SELECT key FROM {p}keys WHERE created_at <= now - interval '30 days' ORDER BY created_at LIMIT _batch));
    GET DIAGNOSTICS count = ROW_COUNT;
    pruned := pruned + count;
    DELETE FROM {p}relays WHERE expires_at <= now - interval '1 day';
    GET DIAGNOSTICS count = ROW_COUNT;
    pruned := pruned + count;
END $$;
