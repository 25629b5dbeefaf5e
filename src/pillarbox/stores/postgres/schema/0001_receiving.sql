
-- How a consumer receives. An event's row in the inbox is also its lock: whoever handles or parks it has inserted that
-- row, and another one who tries waits until the first has committed or rolled back. What is looked at after that is
-- seen by a snapshot of its own, which every statement of a function has under READ COMMITTED. Above it, the snapshot is of
-- before the wait, and the insert itself reports a conflict with a row that has come since; but whoever parks an event
-- leaves none behind: see refuse_unseen. After a conflict the transaction is tried again.

-- Under REPEATABLE READ, refuse events that somebody has parked since this transaction began: it cannot see that they are
-- in the parking lot, but it cannot write them there either. What it writes is undone at once, so that nobody waits for it.
-- Not under SERIALIZABLE, where all that receive would be in each other's way: there PostgreSQL sees that one of the two has
-- read what the other has written, and refuses the commit.
-- Another event that blocks its line need not be looked for: this one's turn comes when those before it are handled or
-- parked, and that was committed before this transaction began.
CREATE FUNCTION {p}refuse_unseen(_consumer text, _event_ids text[]) RETURNS void LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    INSERT INTO {p}inbox_parked (consumer, event_id, state, topic, headers, body, aggregate_type, aggregate_id, event_type)
    SELECT _consumer, given.id, 'suspect', '', '', '', '', '', '' FROM unnest(_event_ids) AS given (id) ORDER BY given.id
    ON CONFLICT DO NOTHING;
    RAISE EXCEPTION 'undone' USING ERRCODE = 'PB003';
EXCEPTION WHEN SQLSTATE 'PB003' THEN
    NULL;
END $$;

-- Write the inbox row of an event, unless it is there, stands in the parking lot, or its line is blocked; and count its
-- number, if that is the next one of its aggregate. Gives the transaction's number if the row was written, with a + behind
-- it if the event's number was counted; else NULL. One text, because a row of columns takes the server longer.
CREATE FUNCTION {p}receive(
    _consumer text, _event_id text, _line text, _aggregate_type text, _aggregate_id text, _number bigint,
    _from_one boolean)
RETURNS text LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    INSERT INTO {p}inbox (consumer, event_id) VALUES (_consumer, _event_id) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF current_setting('transaction_isolation') = 'repeatable read' THEN
        PERFORM {p}refuse_unseen(_consumer, ARRAY[_event_id]);
    END IF;
    IF EXISTS (SELECT 1 FROM {p}inbox_parked k
               WHERE k.consumer = _consumer AND k.event_id = _event_id AND k.state <> 'suspect')
       OR EXISTS (SELECT 1 FROM {p}inbox_parked k
                  WHERE k.consumer = _consumer AND k.line = _line AND k.line IS NOT NULL
                    AND k.state IN ('stored', 'held', 'retrying', 'blocked', 'dead'))
    THEN
        DELETE FROM {p}inbox i WHERE i.consumer = _consumer AND i.event_id = _event_id;
        RETURN NULL;
    END IF;
    IF _number IS NOT NULL
       AND {p}count_received(_consumer, _aggregate_type, _aggregate_id, _number, _from_one)
    THEN
        RETURN pg_current_xact_id()::text || '+';
    END IF;
    RETURN pg_current_xact_id()::text;
END $$;

-- Write the inbox row of an event that a consumer has out of the parking lot, unless it is there or the event was dropped
-- meanwhile. Its row in the lot is not locked: whoever says that it is still out would wait for a slow handler.
CREATE FUNCTION {p}take_received(_consumer text, _event_id text)
RETURNS text LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    INSERT INTO {p}inbox (consumer, event_id) VALUES (_consumer, _event_id) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT 1 FROM {p}inbox_parked k
               WHERE k.consumer = _consumer AND k.event_id = _event_id AND k.state NOT IN ('handled', 'dropped'))
    THEN
        RETURN pg_current_xact_id()::text;
    END IF;
    DELETE FROM {p}inbox i WHERE i.consumer = _consumer AND i.event_id = _event_id;
    RETURN NULL;
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

-- Say whether a handler has ended its event's transaction, whose number is _its. If so: refuse to commit what it did since
-- if it has undone its event's row, because that event would be handled again. If the row stands, say so (also to whoever
-- commits in the same message and does not see what this gives: as an INFO, which nobody can switch off).
CREATE FUNCTION {p}keep_received(_consumer text, _event_id text, _its text)
RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    IF pg_current_xact_id_if_assigned()::text = _its THEN
        RETURN false;
    END IF;
    IF NOT EXISTS (SELECT 1 FROM {p}inbox i WHERE i.consumer = _consumer AND i.event_id = _event_id) THEN
        RAISE EXCEPTION 'the handler has rolled back the transaction of event %', _event_id USING ERRCODE = 'PB001';
    END IF;
    RAISE INFO 'the handler has committed by itself' USING ERRCODE = 'PB002';
    RETURN true;
END $$;

-- Receive several events that share a transaction, each of which has another id. Until the row in inbox_shared
-- whose id it gives (_shared) is deleted, the transaction cannot be committed: a handler that tries would commit the rows
-- of events whose handlers have not run. `states` has a letter for each event: n new, c a copy, b behind something parked;
-- NULL if all are new. `counted` is false if a number is not the next one of its aggregate: then nothing here counts.
-- What was stored (_stored) is new unless it was dropped meanwhile. Lists come as JSON: that is written several times as fast as arrays.
CREATE FUNCTION {p}receive_all(
    _consumer text, _json_ids text, _json_lines text, _json_types text, _json_aggregates text, _json_numbers text,
    _from_one boolean, _stored boolean, OUT shared bigint, OUT states text, OUT counted boolean)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    _event_ids text[] := ARRAY(SELECT json_array_elements_text(_json_ids::json));
    _lines text[] := ARRAY(SELECT json_array_elements_text(_json_lines::json));
    _aggregate_types text[];
    _aggregate_ids text[];
    _numbers bigint[];
    _new text[];
    _parked text[];
    _blocked text[];
    _place integer;
BEGIN
    INSERT INTO {p}inbox_shared DEFAULT VALUES RETURNING id INTO shared;
    counted := true;
    WITH written AS (
        INSERT INTO {p}inbox (consumer, event_id)
        SELECT _consumer, given.id FROM unnest(_event_ids) AS given (id) ORDER BY given.id  -- two that overlap meet in one order
        ON CONFLICT DO NOTHING RETURNING event_id)
    SELECT coalesce(array_agg(event_id), '{}') INTO _new FROM written;
    IF _stored THEN
        SELECT array_agg(given.id) INTO _parked FROM unnest(_event_ids) AS given (id)
        WHERE NOT EXISTS (
            SELECT 1 FROM {p}inbox_parked k
            WHERE k.consumer = _consumer AND k.event_id = given.id AND k.state NOT IN ('handled', 'dropped') OFFSET 0);
    ELSE
        IF current_setting('transaction_isolation') = 'repeatable read' THEN
            PERFORM {p}refuse_unseen(_consumer, _event_ids);
        END IF;
        SELECT array_agg(k.event_id) INTO _parked FROM {p}inbox_parked k
        WHERE k.consumer = _consumer AND k.event_id = ANY (_event_ids) AND k.state <> 'suspect';
        SELECT array_agg(DISTINCT k.line) INTO _blocked FROM {p}inbox_parked k
        WHERE k.consumer = _consumer AND k.line = ANY (_lines) AND k.line IS NOT NULL
          AND k.state IN ('stored', 'held', 'retrying', 'blocked', 'dead');
    END IF;
    IF cardinality(_new) < cardinality(_event_ids) OR _parked IS NOT NULL OR _blocked IS NOT NULL THEN
        SELECT string_agg(
                   CASE WHEN NOT given.id = ANY (_new) OR given.id = ANY (_parked) THEN 'c'
                        WHEN given.line = ANY (_blocked) THEN 'b'
                        ELSE 'n' END, '' ORDER BY given.place)
        INTO states FROM unnest(_event_ids, _lines) WITH ORDINALITY AS given (id, line, place);
        DELETE FROM {p}inbox i
        USING unnest(_event_ids) WITH ORDINALITY AS given (id, place)
        WHERE i.consumer = _consumer AND i.event_id = given.id AND given.id = ANY (_new)
          AND substr(states, given.place::integer, 1) <> 'n';
        DELETE FROM {p}inbox_parked k
        WHERE k.consumer = _consumer AND k.event_id = ANY (_event_ids) AND NOT k.event_id = ANY (_new)
          AND k.state = 'suspect';
    END IF;
    IF _json_numbers IS NULL THEN
        RETURN;
    END IF;
    _aggregate_types := ARRAY(SELECT json_array_elements_text(_json_types::json));
    _aggregate_ids := ARRAY(SELECT json_array_elements_text(_json_aggregates::json));
    _numbers := ARRAY(SELECT json_array_elements_text(_json_numbers::json)::bigint);
    FOR _place IN SELECT generate_subscripts(_event_ids, 1) LOOP
        IF _numbers[_place] IS NOT NULL AND coalesce(substr(states, _place, 1), 'n') = 'n' THEN
            counted := {p}count_received(
                _consumer, _aggregate_types[_place], _aggregate_ids[_place], _numbers[_place], _from_one);
            EXIT WHEN NOT counted;
        END IF;
    END LOOP;
END $$;

-- Refuse to commit a transaction that several events share before their inbox says that all of them are handled.
CREATE FUNCTION {p}refuse_shared() RETURNS trigger LANGUAGE plpgsql
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM {p}inbox_shared s WHERE s.id = NEW.id) THEN
        RAISE EXCEPTION 'several events share this transaction, so a handler cannot commit it'
            USING HINT = 'Leave the commit to the inbox, or register the handler without batch=True.';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER {prefix}inbox_shared_open AFTER INSERT ON {p}inbox_shared
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {p}refuse_shared();

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
