
-- How a relay reads and settles. Functions, because the planner's settings belong to them and not to a session, which a
-- pooler would share; and because plans inside functions are kept behind any pooler.

-- Whether what a relay has in memory still holds: its lanes under their epochs, the ticks it came from, the cluster.
CREATE FUNCTION {p}held(_lanes smallint[], _epochs bigint[], _ns bigint[], _tokens uuid[], _cluster text)
RETURNS boolean LANGUAGE plpgsql STABLE   -- in sql it would be planned at every call
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN (SELECT count(*) FROM {p}lanes l
              JOIN unnest(_lanes, _epochs) mine(lane, epoch) ON l.lane = mine.lane AND l.epoch = mine.epoch)
            = cardinality(_lanes)
       AND (SELECT count(*) FROM {p}ticks t
              JOIN unnest(_ns, _tokens) came(n, token) ON t.n = came.n AND t.token = came.token)
            = cardinality(_ns)
       AND {p}cluster() = _cluster;
END $$;

-- The next rows of a batch in the order of ids: the main part above _after, and of each transaction in _late what is
-- above _last. Each is read by its own index; as one condition the planner would walk the whole backlog every time.
-- At most _rows, at most about _bytes of payload and headers, at least one. Before them comes the header, as the payload
-- of id 0; it comes alone if what the relay has in memory does not hold any more.
CREATE FUNCTION {p}more(
    _held_lanes smallint[], _epochs bigint[], _ns bigint[], _tokens uuid[], _cluster text,
    _lanes bigint, _topic text, _around text[], _x1 xid8, _s2 pg_snapshot, _late xid8[], _after bigint,
    _last bigint, _rows integer, _bytes bigint)
RETURNS TABLE (
    id bigint, event_id text, aggregate_type text, aggregate_id text, event_type text, topic text, payload text,
    content_type text, headers text, idempotency_key text, number bigint, available_at timestamptz,
    occurred_at timestamptz, created_at timestamptz, body bytea)
LANGUAGE plpgsql STABLE ROWS 1000
-- Statistics taken on an empty outbox would otherwise make every poll sort the backlog.
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET max_parallel_workers_per_gather = 0 SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    held boolean := {p}held(_held_lanes, _epochs, _ns, _tokens, _cluster);
BEGIN
    id := 0;
    payload := json_build_object(
        'held', held,
        'paused', (SELECT coalesce(array_agg(p.topic), '{}') FROM {p}pauses p),
        'mended', (SELECT m.value FROM {p}meta m WHERE m.name = 'mended'),
        'parked', EXISTS (SELECT 1 FROM {p}parked k WHERE k.state IN ('retrying', 'blocked', 'dead', 'delayed')));
    RETURN NEXT;
    IF NOT held THEN
        RETURN;
    END IF;
    -- Without toast a row is at most a page: so many are never too much.
    IF cardinality(_late) = 0 AND pg_relation_size(
        (SELECT reltoastrelid FROM pg_catalog.pg_class c WHERE c.oid = '{p}outbox'::regclass)) = 0
    THEN
        RETURN QUERY
        SELECT o.id, o.event_id::text, o.aggregate_type, o.aggregate_id, o.event_type, o.topic, o.payload::text,
               o.content_type, o.headers::text, o.idempotency_key, o.number, o.available_at, o.occurred_at, o.created_at,
               o.body
        FROM {p}outbox o
        WHERE o.id > _after AND o.xid > _x1 AND pg_visible_in_snapshot(o.xid, _s2) AND _lanes & (1::bigint << o.lane) <> 0
          AND (_topic IS NULL OR o.topic = _topic) AND o.topic <> ALL (_around)
        ORDER BY o.id LIMIT _rows;
        RETURN;
    END IF;
    RETURN QUERY
    SELECT o.id, o.event_id::text, o.aggregate_type, o.aggregate_id, o.event_type, o.topic, o.payload::text,
           o.content_type, o.headers::text, o.idempotency_key, o.number, o.available_at, o.occurred_at, o.created_at,
           o.body
    FROM (
        SELECT both_parts.*, sum(coalesce(pg_column_size(payload), pg_column_size(body)) + coalesce(pg_column_size(headers), 0))
            OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
        FROM (
            SELECT * FROM (
                SELECT o.* FROM {p}outbox o
                WHERE o.id > _after AND o.xid > _x1 AND pg_visible_in_snapshot(o.xid, _s2) AND _lanes & (1::bigint << o.lane) <> 0
                  AND (_topic IS NULL OR o.topic = _topic) AND o.topic <> ALL (_around)
                ORDER BY o.id LIMIT _rows) main
            UNION ALL
            SELECT of_one.* FROM unnest(_late) l(xid) CROSS JOIN LATERAL (
                SELECT o.* FROM {p}outbox o
                WHERE o.xid = l.xid AND o.id > _last AND pg_visible_in_snapshot(o.xid, _s2) AND _lanes & (1::bigint << o.lane) <> 0
                  AND (_topic IS NULL OR o.topic = _topic) AND o.topic <> ALL (_around)
                ORDER BY o.id LIMIT _rows) of_one
            ORDER BY id LIMIT _rows) both_parts) o
    WHERE coalesce(bytes_before, 0) < _bytes
    ORDER BY o.id;
END $$;

-- Begin a batch above a snapshot that was stored before (_base_x, _base_m, _late): a new snapshot, first rows and a durable
-- tick that names the snapshot, in one statement and in a transaction that had no xid before. The tick also says where
-- the lanes are settled. Nothing is written if there is nothing.
CREATE FUNCTION {p}poll(
    _owner text, _held_lanes smallint[], _epochs bigint[], _ns bigint[], _tokens uuid[], _cluster text,
    _token uuid, _lanes bigint, _around text[],
    _s1 pg_snapshot, _x1 xid8, _m1 bigint, _s2 pg_snapshot, _x2 xid8, _m2 bigint, _last bigint, _floor bigint,
    _base_x xid8, _base_m bigint, _late xid8[], _watch text[], _published integer, _failed integer, _rows integer,
    _bytes bigint, _force boolean, _stale boolean)
RETURNS TABLE (
    id bigint, event_id text, aggregate_type text, aggregate_id text, event_type text, topic text, payload text,
    content_type text, headers text, idempotency_key text, number bigint, available_at timestamptz,
    occurred_at timestamptz, created_at timestamptz, body bytea)
LANGUAGE plpgsql VOLATILE ROWS 1000
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
SET max_parallel_workers_per_gather = 0 SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH late AS MATERIALIZED (
        SELECT coalesce(array_agg(l.xid), '{}') AS xids FROM unnest(_late) l(xid)
        WHERE pg_visible_in_snapshot(l.xid, pg_current_snapshot())
          AND EXISTS (SELECT 1 FROM {p}outbox o
                      WHERE o.xid = l.xid AND o.id > _floor AND _lanes & (1::bigint << o.lane) <> 0)),
    found AS MATERIALIZED (
        SELECT f.* FROM late CROSS JOIN LATERAL {p}more(
            _held_lanes, _epochs, _ns, _tokens, _cluster, _lanes, NULL, _around, _base_x, pg_current_snapshot(),
            late.xids, greatest(_base_m, _floor), _floor, _rows, _bytes) f),
    header AS MATERIALIZED (SELECT f.payload::jsonb AS words FROM found f WHERE f.id = 0),
    reached AS MATERIALIZED (
        SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS m3 FROM {sequence}),
    -- Roles and databases may have it off; what a snapshot shows must be on disk before it is published.
    durable AS MATERIALIZED (
        SELECT set_config('synchronous_commit',
            CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true)),
    tick AS (
        INSERT INTO {p}ticks (token, owner, lanes, around, s1, x1, m1, s2, x2, m2, last_id, floor_id, published, failed,
                              cluster, s3, m3, x3)
        SELECT _token, _owner, _lanes, _around, _s1, _x1, _m1, _s2, _x2, _m2, _last, _floor, _published, _failed,
               _cluster, pg_current_snapshot(), reached.m3, pg_current_xact_id()
        FROM header, late, reached, durable
        WHERE header.words -> 'held' = 'true' AND pg_current_xact_id_if_assigned() IS NULL
          AND (_force OR late.xids <> '{}' OR EXISTS (SELECT 1 FROM found f WHERE f.id > 0)
               OR (_watch <> '{}' AND EXISTS (
                   SELECT 1 FROM {p}outbox o WHERE o.id > greatest(_base_m, _floor) AND o.topic = ANY (_watch)))
               -- A lane without events must move on too, or its polls walk over everybody else's rows. Our own tick
               -- has moved the counter by one.
               OR pg_snapshot_xmax(pg_current_snapshot())::text::bigint - _base_x::text::bigint > 10000
               OR (_stale AND pg_snapshot_xmax(pg_current_snapshot())::text::bigint - _base_x::text::bigint > 1))
        RETURNING n, s3, m3, x3)
    SELECT f.id, f.event_id, f.aggregate_type, f.aggregate_id, f.event_type, f.topic,
           CASE WHEN f.id > 0 THEN f.payload ELSE (header.words || jsonb_build_object(
               'late', late.xids, 'n', tick.n, 's3', tick.s3, 'm3', tick.m3, 'x3', tick.x3))::text END,
           f.content_type, f.headers, f.idempotency_key, f.number, f.available_at, f.occurred_at, f.created_at, f.body
    FROM found f CROSS JOIN header CROSS JOIN late LEFT JOIN tick ON true;
END $$;

-- Record, atomically: where the positions are, what is parked, what has become of what was parked.
-- Raises if the memory that it comes from does not hold any more.
CREATE FUNCTION {p}settle(
    _owner text, _lanes smallint[], _epochs bigint[], _ns bigint[], _tokens uuid[], _cluster text,
    _ticks json, _parked json, _settled json)
RETURNS TABLE (token uuid, n bigint) LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    parks boolean := json_array_length(_parked) > 0 OR json_array_length(_settled) > 0;
BEGIN
    -- A tick alone may be lost in a crash: then some are repeated. What was parked must not be forgotten.
    PERFORM set_config('synchronous_commit', CASE WHEN NOT parks THEN 'off'
        WHEN current_setting('synchronous_commit') = 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true);
    -- A tick of a former holder claims only what it really published. What it parks would be there twice, and the end of
    -- a detour would hold for one that the new holder has loaded and goes around.
    IF parks OR EXISTS (SELECT 1 FROM json_to_recordset(_ticks) AS t(closed boolean) WHERE t.closed) THEN
        PERFORM 1 FROM {p}lanes WHERE lane = ANY (_lanes) ORDER BY lane FOR SHARE;
    END IF;
    IF NOT {p}held(_lanes, _epochs, _ns, _tokens, _cluster) THEN
        RAISE EXCEPTION 'the lanes are not held any more' USING ERRCODE = 'PB001';
    END IF;
    RETURN QUERY
    INSERT INTO {p}ticks (token, owner, lanes, topic, whole, around, s1, x1, m1, s2, m2, x2, last_id, floor_id,
                          published, failed, closed, cluster)
    SELECT t.token, _owner, t.lanes, t.topic, t.whole, t.around, t.s1, t.x1, t.m1, t.s2, t.m2, t.x2, t.last_id,
           t.floor_id, t.published, t.failed, t.closed, _cluster
    FROM json_to_recordset(_ticks) AS t(
        token uuid, lanes bigint, topic text, whole boolean, around text[], s1 pg_snapshot, x1 xid8, m1 bigint,
        s2 pg_snapshot, m2 bigint, x2 xid8, last_id bigint, floor_id bigint, published integer, failed integer,
        closed boolean)
    RETURNING {p}ticks.token, {p}ticks.n;
    -- A topic that is not one line any more: from now on the holders of its events' own lanes must see what stands here.
    IF EXISTS (SELECT 1 FROM json_to_recordset(_ticks) AS t(closed boolean) WHERE t.closed) THEN
        UPDATE {p}parked k SET lane = o.lane
        FROM json_to_recordset(_ticks) AS t(topic text, closed boolean), {p}outbox o
        WHERE t.closed AND k.topic = t.topic AND o.id = k.position AND k.lane <> o.lane
          AND k.state IN ('retrying', 'blocked', 'dead', 'delayed');
    END IF;
    INSERT INTO {p}parked (position, lane, state, line, due_at, attempts, last_error, event_id, aggregate_type,
        aggregate_id, event_type, topic, payload, body, content_type, headers, idempotency_key, number, available_at,
        occurred_at, created_at)
    SELECT o.id, coalesce(k.lane, o.lane), k.state, k.line, coalesce(k.due_at, {p}now() + k.due_in * interval '1 second'), k.attempts, k.last_error, o.event_id, o.aggregate_type,
        o.aggregate_id, o.event_type, o.topic, o.payload, o.body, o.content_type, o.headers, o.idempotency_key,
        o.number, o.available_at, o.occurred_at, o.created_at
    FROM json_to_recordset(_parked) AS k(
        position bigint, lane smallint, state text, line text, due_at timestamptz, due_in double precision, attempts integer,
        last_error text)
    JOIN {p}outbox o ON o.id = k.position
    -- The answer to the first call may have been lost.
    WHERE NOT EXISTS (SELECT 1 FROM {p}parked there WHERE there.position = k.position
        AND there.state IN ('retrying', 'blocked', 'dead', 'delayed'))
    ORDER BY o.id;
    UPDATE {p}parked there SET
        state = k.state,
        line = CASE WHEN k.free THEN NULL ELSE there.line END,
        -- The relay's clock may be another, so for what it says itself only spans count.
        due_at = coalesce(k.due_at, {p}now() + k.due_in * interval '1 second'),
        attempts = k.attempts,
        last_error = coalesce(k.last_error, there.last_error),
        settled_at = CASE WHEN k.state = 'published' THEN {p}now() END
    FROM json_to_recordset(_settled) AS k(
        id bigint, state text, free boolean, due_at timestamptz, due_in double precision, attempts integer,
        last_error text)
    WHERE there.id = k.id
      -- What was dropped meanwhile stays dropped, unless it was published all the same.
      AND (there.state IN ('retrying', 'blocked', 'dead', 'delayed') OR k.state = 'published');
    -- What is judged is not suspected any more, from this very moment: one that was found guilty and is brought back
    -- would otherwise be found guilty again, unheard, if its judge died before it said so.
    IF parks THEN
        UPDATE {p}lanes SET suspect = NULL, suspected = 0 WHERE lane = ANY (_lanes) AND suspect IN (
            SELECT k.position FROM json_to_recordset(_parked) AS k(position bigint)
            UNION ALL SELECT there.position FROM {p}parked there JOIN json_to_recordset(_settled) AS k(id bigint) USING (id));
    END IF;
END $$;

-- The newest position of each of these lanes, and of each topic that has one of its own there. One walk backwards for
-- all lanes together. `lanes` is the part of ours that stands there.
CREATE FUNCTION {p}positions(_lanes bigint, _until timestamptz DEFAULT NULL)
RETURNS TABLE (
    lanes bigint, n bigint, token uuid, at timestamptz, topic text, whole boolean, around text[], s1 pg_snapshot,
    x1 xid8, m1 bigint, s2 pg_snapshot, x2 xid8, m2 bigint, last_id bigint, floor_id bigint, closed boolean, cluster text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    newest bigint := 9223372036854775807;
    wanted bigint;
    of_topic text;
    t {p}ticks%ROWTYPE;
BEGIN
    -- By number: walking back from now to an instant days ago would take long.
    IF _until IS NOT NULL THEN
        SELECT n INTO newest FROM {p}ticks WHERE at <= _until ORDER BY at DESC, n DESC LIMIT 1;
        newest := coalesce(newest, 0);
    END IF;
    wanted := _lanes;
    FOR t IN SELECT * FROM {p}ticks WHERE topic IS NULL AND n <= newest ORDER BY n DESC LOOP
        IF t.lanes & wanted <> 0 THEN
            RETURN QUERY SELECT t.lanes & wanted, t.n, t.token, t.at, t.topic, t.whole, t.around, t.s1, t.x1, t.m1, t.s2, t.x2,
                                t.m2, t.last_id, t.floor_id, t.closed, t.cluster;
            wanted := wanted & ~t.lanes;
            EXIT WHEN wanted = 0;
        END IF;
    END LOOP;
    of_topic := '';
    LOOP
        SELECT min(topic) INTO of_topic FROM {p}ticks WHERE topic > of_topic;
        EXIT WHEN of_topic IS NULL;
        wanted := _lanes;
        FOR t IN SELECT * FROM {p}ticks
                 WHERE topic = of_topic AND n <= newest ORDER BY n DESC LOOP
            IF t.lanes & wanted <> 0 THEN
                RETURN QUERY SELECT t.lanes & wanted, t.n, t.token, t.at, t.topic, t.whole, t.around, t.s1, t.x1, t.m1, t.s2,
                                    t.x2, t.m2, t.last_id, t.floor_id, t.closed, t.cluster;
                wanted := wanted & ~t.lanes;
                EXIT WHEN wanted = 0 OR t.whole;
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- Whether a relay lives: its lease runs, and its backend, where we know it, is there. (Who may not see another role's
-- details sees no start: then the pid alone counts.)
CREATE FUNCTION {p}lives(r {p}relays) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT r.expires_at > {p}now() AND (r.pid IS NULL OR EXISTS (
        SELECT 1 FROM pg_catalog.pg_stat_activity a
        WHERE a.pid = r.pid AND (a.backend_start IS NULL OR a.backend_start = r.backend_start)))
$$;

-- Join, or prolong the lease, and take free lanes up to the fair share. Gives every lane that is in our name then.
-- A lane is free if nobody has it, its holder's lease has run out, or its holder's backend is gone.
CREATE FUNCTION {p}take(
    _owner text, _held smallint[], _lease interval, _pid integer, _backend_start timestamptz)
RETURNS TABLE (lane smallint, epoch bigint, crashes integer, suspect bigint, suspected integer, alive integer)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    living integer;
    wanted integer;
BEGIN
    -- One after the other: whoever waits for a lane that another one has just taken would not see yet that this one
    -- lives, would take the lane away from it, and count a crash.
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}take', 0));
    IF EXISTS (SELECT 1 FROM {p}slot) THEN
        RAISE EXCEPTION USING ERRCODE = 'PB002', MESSAGE = format(
            'the events of this outbox are carried by the reader of the replication slot %s (since %s UTC, said by %s): a'
            ' relay would publish them twice; `pillarbox relay watch` keeps status and retention, and once that reader is'
            ' stopped for good, `pillarbox source log` lets relays carry them again',
            (SELECT s.name FROM {p}slot s), (SELECT date_trunc('second', s.since AT TIME ZONE 'UTC') FROM {p}slot s),
            (SELECT s.who FROM {p}slot s));
    END IF;
    INSERT INTO {p}relays AS r (name, seen_at, expires_at, pid, backend_start)
        SELECT _owner, t.now, t.now + _lease, _pid, _backend_start FROM (SELECT {p}now()) t(now)
    ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, expires_at = excluded.expires_at, pid = excluded.pid,
        backend_start = excluded.backend_start;
    SELECT count(*) + 1 INTO living FROM {p}relays r WHERE r.name <> _owner AND {p}lives(r);
    -- Lanes in our name that memory does not know: a statement of ours may still be on its way. It is waited for, and
    -- does not count after that.
    PERFORM 1 FROM {p}lanes l WHERE l.owner = _owner AND l.lane <> ALL (_held) ORDER BY l.lane FOR UPDATE;
    UPDATE {p}lanes l SET epoch = ('x' || translate(left(gen_random_uuid()::text, 18), '-', ''))::bit(64)::bigint
        WHERE l.owner = _owner AND l.lane <> ALL (_held);
    wanted := (63 + living) / living - (SELECT count(*) FROM {p}lanes l WHERE l.owner = _owner);
    IF wanted > 0 THEN
        UPDATE {p}lanes l SET
            owner = _owner,
            epoch = ('x' || translate(left(gen_random_uuid()::text, 18), '-', ''))::bit(64)::bigint,
            crashes = l.crashes + CASE WHEN l.owner <> _owner THEN 1 ELSE 0 END
        FROM (
            SELECT free.lane FROM {p}lanes free
            WHERE free.owner IS NULL OR (free.owner <> _owner
                AND NOT EXISTS (SELECT 1 FROM {p}relays r WHERE r.name = free.owner AND {p}lives(r)))
            ORDER BY random() LIMIT wanted FOR UPDATE SKIP LOCKED) free
        WHERE l.lane = free.lane;
    END IF;
    RETURN QUERY SELECT l.lane, l.epoch, l.crashes, l.suspect, l.suspected, living
        FROM (SELECT 1) one LEFT JOIN {p}lanes l ON l.owner = _owner;
END $$;

-- Give a topic that is one line as a whole a position of its own: where all lanes are, if they are at one place; else
-- at this moment, if everything of it is settled. False if neither holds.
CREATE FUNCTION {p}begin_whole(_owner text, _topic text) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}begin_whole', 0));
    IF EXISTS (SELECT 1 FROM {p}positions(-1) p WHERE p.topic = _topic AND p.whole AND NOT p.closed) THEN
        RETURN true;
    END IF;
    INSERT INTO {p}ticks (token, owner, lanes, topic, whole, s1, x1, m1, s2, m2, x2, last_id, floor_id, cluster)
    SELECT gen_random_uuid(), _owner, 1, _topic, true, p.s1, p.x1, p.m1, p.s2, p.m2, p.x2, p.last_id, p.floor_id,
           p.cluster
    FROM {p}positions(-1) p
    WHERE p.topic IS NULL AND p.lanes = -1 AND _topic <> ALL (p.around);
    IF FOUND THEN
        RETURN true;
    END IF;
    INSERT INTO {p}ticks (token, owner, lanes, topic, whole, s1, x1, m1, s2, x2, m2, floor_id, cluster)
    SELECT gen_random_uuid(), _owner, 1, _topic, true, pg_current_snapshot(), pg_current_xact_id(), r.m,
           pg_current_snapshot(), pg_current_xact_id(), r.m, (SELECT max(p.floor_id) FROM {p}positions(-1) p),
           {p}cluster()
    FROM (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS m FROM {sequence}) r
    WHERE NOT EXISTS (
        SELECT 1 FROM {p}outbox o CROSS JOIN LATERAL (
            SELECT * FROM {p}places() t WHERE (t.lanes >> o.lane) & 1 = 1 AND (t.topic IS NULL OR t.topic = o.topic)
            ORDER BY t.topic LIMIT 1) p   -- while it was paused, it had a place of its own
        WHERE o.topic = _topic AND o.id > p.floor_id AND NOT (
            pg_visible_in_snapshot(o.xid, p.s1) OR (pg_visible_in_snapshot(o.xid, p.s2) AND o.id <= p.last_id)));
    RETURN FOUND;
END $$;
