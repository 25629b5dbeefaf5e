
-- When somebody else carries the events: Debezium, or whoever reads a logical replication slot of this database. No
-- relay publishes then, and the position follows what the slot's reader has confirmed.
--
-- A *note* is a snapshot and, read after it, the end of the WAL. Whatever the snapshot shows was committed before that
-- place: a transaction writes its commit into the WAL before it shows. So once the reader has confirmed that place, all
-- of it was carried, and the note becomes a tick. What committed meanwhile, or late, is in a later note.
--
-- Nothing is remembered outside of these tables, so a crash or a failover takes back notes and ticks together with what
-- they speak of; therefore none of it waits for the disk.

-- At most one row: the slot, and what was seen of it at the last look.
CREATE TABLE {p}slot (
    one           boolean     PRIMARY KEY DEFAULT true CHECK (one),
    name          text        NOT NULL,
    cluster       text        NOT NULL,
    since         timestamptz NOT NULL,
    who           text        NOT NULL,
    doubt         text,                                    -- set: what it has carried is not known any more, and nothing is settled by it
    seen_at       timestamptz NOT NULL,
    seen_end      pg_lsn      NOT NULL,                    -- the end of the WAL, just before the look
    seen_xmin     xid8        NOT NULL,                    -- the oldest transaction in progress, just before the look
    server_start  timestamptz NOT NULL,
    pid           integer,                                 -- its reader
    backend_start timestamptz,
    decoded       bigint                                   -- so many transactions it had given out
) WITH (fillfactor = 50);

CREATE TABLE {p}notes (
    n   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at  timestamptz NOT NULL DEFAULT {p}now(),
    s   pg_snapshot NOT NULL,
    x   xid8        NOT NULL,
    m   bigint      NOT NULL,
    w   pg_lsn      NOT NULL
);

-- How a slot stands; `wrong` says why it carries nothing, or not everything.
CREATE FUNCTION {p}slot_seen(_name text)
RETURNS TABLE (wrong text, pid integer, restart pg_lsn, confirmed pg_lsn, wal_status text)
LANGUAGE sql VOLATILE AS $$
    SELECT CASE
        WHEN s.slot_name IS NULL THEN 'is gone'
        WHEN s.slot_type <> 'logical' THEN 'is a physical one, for standbys'
        WHEN s.database <> current_database() THEN 'belongs to the database ' || s.database
        WHEN s.temporary THEN 'is a temporary one, which ends with its connection'
        WHEN s.wal_status = 'lost' OR to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL THEN
            'is lost: PostgreSQL removed the WAL that it needs (max_slot_wal_keep_size)'
        WHEN s.confirmed_flush_lsn IS NULL THEN 'is only just being made'
        WHEN s.plugin = 'pgoutput'
            AND NOT EXISTS (SELECT 1 FROM pg_catalog.pg_publication b WHERE b.pubinsert AND (b.puballtables OR EXISTS (
                SELECT 1 FROM pg_catalog.pg_publication_rel r
                WHERE r.prpubid = b.oid AND r.prrelid = '{p}outbox'::regclass)))
            AND NOT EXISTS (
                SELECT 1 FROM pg_catalog.pg_publication_tables t JOIN pg_catalog.pg_publication b USING (pubname)
                WHERE b.pubinsert AND t.schemaname = '{schema}' AND t.tablename = '{prefix}outbox') THEN
            'carries nothing: no publication has the inserts of {p}outbox'
        END, s.active_pid, s.restart_lsn, s.confirmed_flush_lsn, s.wal_status
    FROM (SELECT 1) always LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = _name
$$;

-- Look at the slot: turn the newest note that its reader has passed into a tick, and write a note if there are events
-- that none has yet. Gives the slot's name (null: relays carry the events), the doubt, and how many events are settled.
CREATE FUNCTION {p}watch(OUT slot_name text, OUT doubted text, OUT settled bigint) LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    slot {p}slot%ROWTYPE;
    last {p}notes%ROWTYPE;
    passed {p}notes%ROWTYPE;
    here text := {p}cluster();
    ends pg_lsn;
    oldest xid8;
    seen record;
    started timestamptz;
    given bigint;
    same boolean;
    news boolean;
BEGIN
    settled := 0;
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}slot', 0));
    SELECT s.* INTO slot FROM {p}slot s;
    slot_name := slot.name;
    doubted := slot.doubt;
    IF slot_name IS NULL OR doubted IS NOT NULL THEN
        RETURN;
    END IF;
    -- In this order: a slot that is made after we have seen this one begins beyond `ends`, and its counter is zeroed
    -- before it can be read.
    ends := pg_current_wal_insert_lsn();
    oldest := pg_snapshot_xmin(pg_current_snapshot());
    SELECT * INTO seen FROM {p}slot_seen(slot.name);
    SELECT a.backend_start INTO started FROM pg_catalog.pg_stat_activity a WHERE a.pid = seen.pid;
    SELECT t.total_txns INTO given FROM pg_catalog.pg_stat_replication_slots t WHERE t.slot_name = slot.name;
    -- Is it the one that we know? A slot that was dropped and made anew has passed over events. PostgreSQL gives slots
    -- no identity, so one of three things must prove it.
    same := coalesce(seen.wrong IS NULL AND slot.cluster = here AND (
        -- It keeps WAL from before the last look; a new one keeps none from before it was made.
        seen.restart < slot.seen_end
        -- The same process reads it as then; a slot cannot be dropped under its reader.
        OR (seen.pid = slot.pid AND slot.server_start = pg_postmaster_start_time()
            AND (started = slot.backend_start   -- null to those who may not see it
                 OR (slot.backend_start IS NULL AND slot.seen_at > {p}now() - interval '1 minute')))
        -- It has given out more transactions than there have been since.
        OR (given >= slot.decoded AND current_setting('transaction_isolation') = 'read committed'
            AND given > pg_snapshot_xmax(pg_current_snapshot())::text::bigint - slot.seen_xmin::text::bigint)), false);
    IF NOT same THEN
        doubted := coalesce(seen.wrong, CASE WHEN slot.cluster <> here THEN 'was that of another cluster' END,
            'may have been made anew')
            || ', seen at ' || to_char({p}now() AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC';
        UPDATE {p}slot SET doubt = doubted;
        DELETE FROM {p}notes;
        RETURN;
    END IF;
    SELECT t.* INTO last FROM {p}notes t ORDER BY t.n DESC LIMIT 1;
    IF last.n IS NULL THEN
        news := EXISTS (SELECT 1 FROM {p}pending(1, 1000));
    ELSE
        news := EXISTS (SELECT 1 FROM {p}outbox o WHERE o.id > last.m)
            OR EXISTS (
                SELECT 1 FROM (
                    SELECT x FROM pg_snapshot_xip(last.s) x
                    UNION ALL SELECT x::text::xid8 FROM generate_series(
                        pg_snapshot_xmax(last.s)::text::bigint, last.x::text::bigint) x) late(xid)
                JOIN {p}outbox o ON o.xid = late.xid);
    END IF;
    IF news THEN
        -- One statement, and the first that writes: m before our own transaction id, the end of the WAL after the
        -- snapshot.
        WITH reached AS MATERIALIZED (
            SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END AS m FROM {sequence})
        INSERT INTO {p}notes (s, x, m, w)
            SELECT pg_current_snapshot(), pg_current_xact_id(), reached.m, pg_current_wal_insert_lsn() FROM reached
            WHERE pg_current_xact_id_if_assigned() IS NULL;
    END IF;
    SELECT t.* INTO passed FROM {p}notes t WHERE t.w <= seen.confirmed ORDER BY t.n DESC LIMIT 1;
    IF passed.n IS NOT NULL THEN
        -- Counted up to a bound, or a large backlog would keep it from ever becoming a tick.
        SELECT count(*) INTO settled FROM {p}pending(100000, 100000) p JOIN {p}outbox o ON o.id = p.id
            WHERE pg_visible_in_snapshot(o.xid, passed.s);
        -- All lanes are at one place now, and every topic with a place of its own has met them there.
        INSERT INTO {p}ticks (token, owner, lanes, topic, whole, s1, x1, m1, s2, x2, m2, floor_id, published, closed,
                              cluster)
            SELECT gen_random_uuid(), 'slot ' || slot.name, t.lanes, t.topic, t.whole, passed.s, passed.x, passed.m,
                   passed.s, passed.x, passed.m, (SELECT max(p.floor_id) FROM {p}positions(-1) p), t.published,
                   t.topic IS NOT NULL, here
            FROM (SELECT -1 AS lanes, NULL AS topic, false AS whole, settled AS published
                  UNION ALL
                  SELECT p.lanes, p.topic, p.whole, 0 FROM {p}positions(-1) p WHERE p.topic IS NOT NULL AND NOT p.closed) t;
        DELETE FROM {p}notes t WHERE t.n <= passed.n;
    END IF;
    -- A reader that is far behind: the older, the sparser.
    IF (SELECT count(*) FROM {p}notes) > 100 THEN
        DELETE FROM {p}notes t USING (SELECT n, row_number() OVER (ORDER BY n) AS place FROM {p}notes) of_all
            WHERE t.n = of_all.n AND of_all.place % 2 = 0;
    END IF;
    UPDATE {p}slot SET seen_at = {p}now(), seen_end = ends, seen_xmin = oldest,
        server_start = pg_postmaster_start_time(), pid = seen.pid, backend_start = started, decoded = given;
END $$;

-- From now on the reader of this slot carries the events, and what is pending counts as carried once it has confirmed
-- the present end of the WAL. Gives why it refuses.
CREATE FUNCTION {p}watch_slot(_who text, _name text, OUT refused text) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    here text := {p}cluster();
    ends pg_lsn;
    oldest xid8;
    seen record;
    aside bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}take', 0)), pg_advisory_xact_lock(hashtextextended('{p}slot', 0));
    ends := pg_current_wal_insert_lsn();
    oldest := pg_snapshot_xmin(pg_current_snapshot());
    SELECT * INTO seen FROM {p}slot_seen(_name);
    SELECT count(*) INTO aside FROM {p}parked k WHERE k.state IN ('retrying', 'blocked', 'delayed');
    refused := CASE
        WHEN seen.wrong = 'is gone' THEN
            format('there is no replication slot %s: let the connector make it first', _name)
        WHEN seen.wrong IS NOT NULL THEN format('the replication slot %s %s', _name, seen.wrong)
        WHEN EXISTS (SELECT 1 FROM {p}positions(-1) t WHERE t.cluster <> here) THEN
            'this database was copied from another cluster: run `pillarbox adopt` first'
        WHEN NOT EXISTS (SELECT 1 FROM {p}slot) AND EXISTS (SELECT 1 FROM {p}relays r WHERE {p}lives(r)) THEN
            'relays are alive (' || (SELECT string_agg(r.name, ', ') FROM {p}relays r WHERE {p}lives(r))
            || '): stop them first, or every event is published twice'
        WHEN EXISTS (SELECT 1 FROM {p}pauses) THEN
            'topics are paused (' || (SELECT string_agg(p.topic, ', ') FROM {p}pauses p)
            || '), but the reader of a slot carries every topic: resume them first'
        WHEN aside > 0 THEN
            aside || CASE WHEN aside = 1 THEN ' event is' ELSE ' events are' END
            || ' kept aside (retrying, blocked or delayed): the reader of a slot never sees that, so let a relay publish it'
            || ' first, or drop it'
        END;
    IF refused IS NOT NULL THEN
        RETURN;
    END IF;
    -- A relay that was taken for dead, and is not, can store nothing any more.
    UPDATE {p}lanes SET owner = NULL, crashes = 0, suspect = NULL, suspected = 0,
        epoch = ('x' || translate(left(gen_random_uuid()::text, 18), '-', ''))::bit(64)::bigint;
    DELETE FROM {p}notes;
    DELETE FROM {p}slot;
    INSERT INTO {p}slot (name, cluster, since, who, seen_at, seen_end, seen_xmin, server_start, pid, backend_start, decoded)
        VALUES (_name, here, {p}now(), _who, {p}now(), ends, oldest, pg_postmaster_start_time(), seen.pid,
            (SELECT a.backend_start FROM pg_catalog.pg_stat_activity a WHERE a.pid = seen.pid),
            (SELECT t.total_txns FROM pg_catalog.pg_stat_replication_slots t WHERE t.slot_name = _name));
    INSERT INTO {p}audit (who, what, count) VALUES (_who, 'source slot ' || _name, 0);
END $$;

-- From now on relays carry the events again, from where the slot's reader was seen last. Gives why it refuses.
CREATE FUNCTION {p}unwatch(_who text, OUT refused text) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    carries text;
    reader integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('{p}take', 0)), pg_advisory_xact_lock(hashtextextended('{p}slot', 0));
    SELECT s.name INTO carries FROM {p}slot s;
    SELECT s.active_pid INTO reader FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = carries;
    refused := CASE
        WHEN carries IS NULL THEN 'relays carry the events of this outbox already: there is nothing to change'
        WHEN reader IS NOT NULL THEN
            format('process %s reads the replication slot %s: stop the connector first, or every event is published'
                || ' twice', reader, carries)
        END;
    IF refused IS NOT NULL THEN
        RETURN;
    END IF;
    DELETE FROM {p}notes;
    DELETE FROM {p}slot;
    INSERT INTO {p}audit (who, what, count) VALUES (_who, 'source log', 0);
END $$;
