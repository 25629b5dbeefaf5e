-- Four roles for Pillarbox in {schema}: run it as the tables' owner with the right to make roles, after the migration
-- and after each later one. Grant them to the users that your programs log in with: GRANT {prefix}writer TO shop.
--
--   {prefix}writer   applications: may add events, and nothing else; cannot read, cannot forge xid, id or lane
--   {prefix}consumer consumers: may keep their inbox, and nothing else; one that adds events is a writer too
--   {prefix}relay    relays and the command line: may read events, keep their progress and delete what is settled
--   {prefix}viewer   dashboards and people: may see what becomes of each event, but no payload, body or header

DO $$
DECLARE
    _role text;
BEGIN
    FOREACH _role IN ARRAY ARRAY['{prefix}writer', '{prefix}consumer', '{prefix}relay', '{prefix}viewer'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', _role);
        EXCEPTION WHEN duplicate_object OR unique_violation THEN  -- roles belong to the whole cluster
            NULL;
        END;
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA {schema} TO {prefix}writer, {prefix}consumer, {prefix}relay, {prefix}viewer;

GRANT INSERT (
    event_id, aggregate_type, aggregate_id, event_type, topic, payload, body, content_type, headers, idempotency_key,
    number, available_at, occurred_at, created_at) ON {p}outbox TO {prefix}writer;
GRANT EXECUTE ON FUNCTION {p}draw_numbers(text[], text[]), {p}take_keys(text[], uuid[], boolean) TO {prefix}writer;

GRANT SELECT, INSERT, DELETE ON {p}inbox, {p}inbox_shared TO {prefix}consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON {p}inbox_parked TO {prefix}consumer;
GRANT SELECT, INSERT, UPDATE ON {p}inbox_numbers TO {prefix}consumer;

GRANT SELECT, DELETE ON {p}outbox, {p}keys TO {prefix}relay;
GRANT SELECT ON SEQUENCE {p}outbox_id_seq TO {prefix}relay, {prefix}viewer;
GRANT SELECT ON {p}numbers, {p}inbox_numbers TO {prefix}relay;
GRANT SELECT, INSERT, UPDATE ON {p}meta, {p}replays TO {prefix}relay;
GRANT SELECT, UPDATE ON {p}lanes TO {prefix}relay;
GRANT SELECT, INSERT, DELETE ON {p}ticks, {p}pauses, {p}archive, {p}notes TO {prefix}relay;
GRANT SELECT, INSERT ON {p}audit TO {prefix}relay;   -- what was done stays written down
GRANT UPDATE (count) ON {p}audit TO {prefix}relay;   -- a line counts on while batches are done
GRANT UPDATE (published, failed) ON {p}ticks TO {prefix}relay;   -- retention sums up what it thins out
GRANT SELECT, INSERT, UPDATE, DELETE ON {p}relays, {p}parked, {p}slot TO {prefix}relay;
GRANT SELECT, DELETE ON {p}inbox TO {prefix}relay;
GRANT SELECT, UPDATE, DELETE ON {p}inbox_parked TO {prefix}relay;

GRANT SELECT (
    xid, id, event_id, aggregate_type, aggregate_id, event_type, topic, content_type, idempotency_key, number,
    available_at, occurred_at, created_at, lane) ON {p}outbox TO {prefix}viewer;
GRANT SELECT (
    id, position, lane, state, line, due_at, attempts, last_error, parked_at, settled_at, replay, event_id,
    aggregate_type, aggregate_id, event_type, topic, content_type, idempotency_key, number, available_at, occurred_at,
    created_at) ON {p}parked TO {prefix}viewer;
GRANT SELECT (
    id, event_id, aggregate_type, aggregate_id, event_type, topic, content_type, idempotency_key, number, available_at,
    occurred_at, created_at, lane, status, attempts, last_error, published_at, archived_at)
    ON {p}archive TO {prefix}viewer;
GRANT SELECT (
    id, consumer, event_id, state, line, due_at, attempts, last_error, parked_at, settled_at, topic, key,
    aggregate_type, aggregate_id, event_type) ON {p}inbox_parked TO {prefix}viewer;
GRANT SELECT ON {p}ticks, {p}lanes, {p}relays, {p}pauses, {p}audit, {p}meta, {p}inbox, {p}inbox_numbers, {p}slot, {p}notes,
    {p}replays TO {prefix}viewer;

GRANT SELECT ON {p}events, {p}events_brief TO {prefix}relay;
GRANT SELECT ON {p}events_brief TO {prefix}viewer;
