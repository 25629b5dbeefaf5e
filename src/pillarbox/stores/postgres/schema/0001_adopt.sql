
-- Take over a log that was copied from another cluster, whose transaction ids mean nothing here: what is not settled
-- gets this transaction's id, what is settled above the lowest of those is marked so for ever (3), and every position
-- begins anew, with a floor below which nothing is read. Gives how many events are pending, or why it refuses.
CREATE FUNCTION {p}adopt(_who text, OUT refused text, OUT adopted bigint) LANGUAGE plpgsql VOLATILE
SET lock_timeout = '10s'
AS $$
DECLARE
    here text := {p}cluster();
    reached bigint;
    highest bigint;
    floor bigint;
    without text;
    seen pg_snapshot;
    mine xid8;
BEGIN
    LOCK TABLE {p}outbox, {p}ticks IN SHARE ROW EXCLUSIVE MODE;
    -- The snapshot comes before our own transaction id. One that is taken after it shows us as ended as soon as a later
    -- transaction has ended, and then the whole backlog would count as settled.
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'adopt must be the first thing in its transaction';
    END IF;
    seen := pg_current_snapshot();
    SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END INTO reached FROM {sequence};
    SELECT max(id) INTO highest FROM {p}outbox;
    highest := greatest(highest, (SELECT max(greatest(t.m2, t.m3)) FROM {p}ticks t), 0);
    SELECT string_agg(l.lane::text, ', ' ORDER BY l.lane) INTO without FROM {p}lanes l
        WHERE NOT EXISTS (SELECT 1 FROM {p}positions(-1) t WHERE t.topic IS NULL AND (t.lanes >> l.lane) & 1 = 1);
    refused := CASE
        WHEN NOT EXISTS (SELECT 1 FROM {p}positions(-1) t WHERE t.cluster <> here) THEN
            'this log belongs to this cluster already: there is nothing to adopt'
        WHEN without IS NOT NULL THEN
            'the lanes ' || without || ' have no tick in {p}ticks: restore that table from the same copy as the log'
        WHEN reached < highest THEN
            'the sequence {sequence} stands at ' || reached || ', but the log or its ticks have reached ' || highest
            || ', as after logical replication: set it with SELECT setval(''{sequence}'', ' || highest
            || '), then adopt'
        WHEN EXISTS (SELECT 1 FROM {p}relays r WHERE {p}lives(r)) THEN
            'relays are alive (' || (SELECT string_agg(r.name, ', ') FROM {p}relays r WHERE {p}lives(r))
            || '): stop them, or wait until the leases that were copied have run out, then adopt'
        END;
    IF refused IS NOT NULL THEN
        RETURN;
    END IF;
    mine := pg_current_xact_id();
    -- An id that a position's second snapshot cannot have shown was written here, whatever its transaction id says.
    CREATE TEMP TABLE pillarbox_adopted ON COMMIT DROP AS
        SELECT o.id FROM {p}outbox o WHERE NOT (
            SELECT o.id <= t.floor_id OR (o.id <= t.m2 AND (pg_visible_in_snapshot(o.xid, t.s1)
                   OR (o.id <= t.last_id AND pg_visible_in_snapshot(o.xid, t.s2))))
            FROM {p}places() t
            WHERE (t.lanes >> o.lane) & 1 = 1 AND (t.topic IS NULL OR t.topic = o.topic) ORDER BY t.topic LIMIT 1);
    SELECT count(*), min(id) - 1 INTO adopted, floor FROM pillarbox_adopted;
    floor := coalesce(floor, (SELECT max(id) FROM {p}outbox), 0);
    UPDATE {p}outbox o SET xid = CASE WHEN EXISTS (SELECT 1 FROM pillarbox_adopted a WHERE a.id = o.id)
                                      THEN mine ELSE '3' END
        WHERE o.id > floor;
    UPDATE {p}lanes SET owner = NULL, crashes = 0, suspect = NULL, suspected = 0,
        epoch = ('x' || translate(left(gen_random_uuid()::text, 18), '-', ''))::bit(64)::bigint;
    -- The lanes and topics keep what they have: one place each, now the same for all.
    INSERT INTO {p}ticks (token, owner, lanes, topic, whole, around, s1, x1, m1, s2, m2, floor_id, closed, cluster, x2)
        SELECT gen_random_uuid(), 'adopt', t.lanes, t.topic, t.whole, t.around, seen, mine, reached, seen, reached, floor,
               t.closed, here, mine
        FROM {p}positions(-1) t ORDER BY t.n;
    INSERT INTO {p}audit (who, what, count) VALUES (_who, 'adopt', adopted);
    DROP TABLE pillarbox_adopted;
END $$;
