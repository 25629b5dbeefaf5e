
-- How a consumer receives. An event's row in the inbox is also its lock: whoever handles or parks it has inserted that
-- row, and another one who tries waits until the first has committed or rolled back. What is looked at after that is
-- seen by a snapshot of its own, which every statement of a function has (under READ COMMITTED; above it, the insert
-- itself reports a conflict, and the transaction is tried again).

-- Write the inbox row of an event, unless it is there, stands in the parking lot, or its line is blocked. Gives the
-- transaction's number if it was written.
CREATE FUNCTION {p}receive(_consumer text, _event_id text, _line text) RETURNS text LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    INSERT INTO {p}inbox (consumer, event_id) VALUES (_consumer, _event_id) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT 1 FROM {p}inbox_parked k
               WHERE k.consumer = _consumer AND k.event_id = _event_id AND k.state <> 'suspect')
       OR EXISTS (SELECT 1 FROM {p}inbox_parked k
                  WHERE k.consumer = _consumer AND k.line = _line AND k.line IS NOT NULL
                    AND k.state IN ('retrying', 'blocked', 'dead'))
    THEN
        DELETE FROM {p}inbox i WHERE i.consumer = _consumer AND i.event_id = _event_id;
        RETURN NULL;
    END IF;
    RETURN pg_current_xact_id()::text;
END $$;

-- Put an event into the parking lot, unless somebody has handled it meanwhile.
CREATE FUNCTION {p}park_received(
    _consumer text, _event_id text, _state text, _line text, _due_at timestamptz, _attempts integer, _last_error text,
    _traceback text, _parked_at timestamptz, _topic text, _key text, _headers text, _body bytea, _aggregate_type text,
    _aggregate_id text, _event_type text)
RETURNS boolean LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    INSERT INTO {p}inbox (consumer, event_id) VALUES (_consumer, _event_id) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO {p}inbox_parked AS it (consumer, event_id, state, line, due_at, attempts, last_error, traceback,
        parked_at, topic, key, headers, body, aggregate_type, aggregate_id, event_type)
    VALUES (_consumer, _event_id, _state, _line, _due_at, _attempts, _last_error, _traceback, _parked_at, _topic, _key,
        _headers, _body, _aggregate_type, _aggregate_id, _event_type)
    ON CONFLICT (consumer, event_id) DO UPDATE SET state = excluded.state, line = excluded.line,
        due_at = excluded.due_at, attempts = excluded.attempts, last_error = excluded.last_error,
        traceback = excluded.traceback, parked_at = excluded.parked_at
    WHERE it.state = 'suspect';
    DELETE FROM {p}inbox i WHERE i.consumer = _consumer AND i.event_id = _event_id;
    RETURN true;
END $$;
