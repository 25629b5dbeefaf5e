
-- How a consumer receives. An event's row in the inbox is also its lock: whoever handles or parks it has inserted that
-- row, and another one who tries waits until the first has committed or rolled back. What is looked at after that is
-- seen by a snapshot of its own, which every statement of a function has (under READ COMMITTED; above it, the insert
-- itself reports a conflict, and the transaction is tried again).

-- Write the inbox row of an event, unless it is there, stands in the parking lot, or its line is blocked; and count its
-- number, if that is the next one of its aggregate. Gives the transaction's number if the row was written. Somebody who
-- has begun a transaction names it (_within): if it is over, nothing is written, and its number is ''.
CREATE FUNCTION {p}receive(
    _consumer text, _event_id text, _line text, _aggregate_type text, _aggregate_id text, _number bigint,
    _from_one boolean, _within text, OUT its text, OUT counted boolean)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF _within IS NOT NULL AND pg_current_xact_id_if_assigned()::text IS DISTINCT FROM _within THEN
        its := '';
        RETURN;
    END IF;
    INSERT INTO {p}inbox (consumer, event_id) VALUES (_consumer, _event_id) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF EXISTS (SELECT 1 FROM {p}inbox_parked k
               WHERE k.consumer = _consumer AND k.event_id = _event_id AND k.state <> 'suspect')
       OR EXISTS (SELECT 1 FROM {p}inbox_parked k
                  WHERE k.consumer = _consumer AND k.line = _line AND k.line IS NOT NULL
                    AND k.state IN ('stored', 'held', 'retrying', 'blocked', 'dead'))
    THEN
        DELETE FROM {p}inbox i WHERE i.consumer = _consumer AND i.event_id = _event_id;
        RETURN;
    END IF;
    its := pg_current_xact_id()::text;
    IF _number IS NOT NULL THEN
        counted := {p}count_received(_consumer, _aggregate_type, _aggregate_id, _number, _from_one);
    END IF;
END $$;

-- Count an event's number, if it is the next one of its aggregate, or the first that this consumer has of it.
CREATE FUNCTION {p}count_received(
    _consumer text, _aggregate_type text, _aggregate_id text, _number bigint, _from_one boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    UPDATE {p}inbox_numbers n SET last = _number
    WHERE n.consumer = _consumer AND n.aggregate_type = _aggregate_type AND n.aggregate_id = _aggregate_id
      AND n.last = _number - 1;
    IF FOUND THEN
        RETURN true;
    END IF;
    IF _from_one AND _number > 1 THEN
        RETURN false;
    END IF;
    INSERT INTO {p}inbox_numbers (consumer, aggregate_type, aggregate_id, first, last)
    VALUES (_consumer, _aggregate_type, _aggregate_id, _number, _number) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Put an event into the parking lot, unless somebody has handled it meanwhile.
CREATE FUNCTION {p}park_received(
    _consumer text, _event_id text, _state text, _line text, _due_at timestamptz, _attempts integer, _last_error text,
    _traceback text, _parked_at timestamptz, _topic text, _key text, _headers text, _body bytea, _aggregate_type text,
    _aggregate_id text, _event_type text, _number bigint, _numbering text)
RETURNS boolean LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    INSERT INTO {p}inbox (consumer, event_id) VALUES (_consumer, _event_id) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO {p}inbox_parked AS it (consumer, event_id, state, line, due_at, attempts, last_error, traceback,
        parked_at, topic, key, headers, body, aggregate_type, aggregate_id, event_type, number, numbering)
    VALUES (_consumer, _event_id, _state, _line, _due_at, _attempts, _last_error, _traceback, _parked_at, _topic, _key,
        _headers, _body, _aggregate_type, _aggregate_id, _event_type, _number, _numbering)
    ON CONFLICT (consumer, event_id) DO UPDATE SET state = excluded.state, line = excluded.line,
        due_at = excluded.due_at, attempts = excluded.attempts, last_error = excluded.last_error,
        traceback = excluded.traceback, parked_at = excluded.parked_at, numbering = excluded.numbering
    WHERE it.state = 'suspect';
    DELETE FROM {p}inbox i WHERE i.consumer = _consumer AND i.event_id = _event_id;
    RETURN true;
END $$;
