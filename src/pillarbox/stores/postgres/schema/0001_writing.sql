-- How applications write. They may insert into {p}outbox and call these functions, and nothing else: they cannot read.

-- Give gap-free numbers: one of its aggregate for each element, and the last one of each aggregate comes back. The
-- counter's row stays locked until the commit, so numbers follow one another as the transactions do. The rows are taken
-- in one order everywhere: two calls never wait for each other in a circle.
CREATE FUNCTION {p}draw_numbers(_types text[], _ids text[])
RETURNS TABLE (aggregate_type text, aggregate_id text, last bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    INSERT INTO {p}numbers AS n (aggregate_type, aggregate_id, last)
    SELECT type, id, count(*) FROM unnest(_types, _ids) wanted (type, id)
    GROUP BY type, id ORDER BY type COLLATE "C", id COLLATE "C"
    ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET last = n.last + excluded.last
    RETURNING n.aggregate_type, n.aggregate_id, n.last;
END $$;

-- Take idempotency keys for events; give back those that are taken already. With _whole it is all or nothing: if one is
-- taken already, none of the others stays with us. A key that an open transaction holds is waited for.
CREATE FUNCTION {p}take_keys(_keys text[], _events uuid[], _whole boolean DEFAULT false)
RETURNS SETOF text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    _taken text[];
BEGIN
    WITH taken AS (
        INSERT INTO {p}keys (key, event_id)
        SELECT key, event_id FROM unnest(_keys, _events) wanted (key, event_id) ORDER BY key COLLATE "C"
        ON CONFLICT (key) DO NOTHING RETURNING key)
    SELECT coalesce(array_agg(key), '{}') INTO _taken FROM taken;
    IF _whole AND cardinality(_taken) < cardinality(_keys) THEN
        DELETE FROM {p}keys k WHERE k.key = ANY (_taken);
    END IF;
    RETURN QUERY SELECT key FROM unnest(_keys) wanted (key) WHERE key <> ALL (_taken);
END $$;

-- An event for any language: SELECT {p}add('order', '42', 'OrderPlaced', '{"total": 42}'). Gives the event's id; null
-- if its idempotency key is there already and on_duplicate is 'ignore'. What a door refuses is refused here too.
CREATE FUNCTION {p}add(
    aggregate_type text, aggregate_id text, event_type text, payload json DEFAULT NULL,
    topic text DEFAULT NULL, event_id uuid DEFAULT NULL, headers json DEFAULT NULL,
    body bytea DEFAULT NULL, content_type text DEFAULT NULL, idempotency_key text DEFAULT NULL,
    numbered boolean DEFAULT false, number bigint DEFAULT NULL,
    available_at timestamptz DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
    on_duplicate text DEFAULT 'raise', max_payload integer DEFAULT 262144, notify boolean DEFAULT false)
RETURNS uuid LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    _type text := coalesce(aggregate_type, '');
    _id text := coalesce(aggregate_id, '');
    _event uuid := coalesce(event_id, gen_random_uuid());
    _format text := coalesce(content_type, CASE WHEN body IS NULL THEN 'application/json' END);
    _topic text := topic;
    _number bigint := number;
    _wrong text;
BEGIN
    _wrong := CASE
        WHEN (_type = '') <> (_id = '') THEN
            format('aggregate: the type is %L and the id is %L; give both, or null for both', _type, _id)
        WHEN coalesce(event_type, '') = '' THEN 'event_type: is empty; name it'
        WHEN topic = '' THEN 'topic: is empty; name it, or leave it out'
        WHEN idempotency_key = '' THEN 'idempotency_key: is empty; name it, or leave it out'
        WHEN greatest(length(_type), length(_id), length(event_type), length(topic), length(idempotency_key),
                      length(_format)) > 255 THEN 'a name, an id or a key has more than 255 characters; shorten it'
        WHEN (payload IS NULL) = (body IS NULL) THEN 'payload, body: give one of them'
        WHEN body IS NOT NULL AND coalesce(_format, '') = '' THEN
            'content_type: a body needs one: say what it is, for example ''application/avro'''
        WHEN (payload IS NOT NULL) <> (lower(split_part(_format, ';', 1)) ~ '^[[:space:]]*application/json[[:space:]]*$|[+]json[[:space:]]*$') THEN
            format('content_type: %L: JSON goes into payload, everything else into body', _format)
        WHEN coalesce(octet_length(payload::text), octet_length(body)) > max_payload THEN
            format('payload: %s bytes, at most %s: store it elsewhere and send its address, or raise max_payload',
                   coalesce(octet_length(payload::text), octet_length(body)), max_payload)
        WHEN numbered AND number IS NOT NULL THEN
            'numbered, number: give one of them: the database counts, or the application does'
        WHEN number < 0 THEN format('number: %s is not a whole number from 0 to 2^63 - 1', number)
        WHEN (numbered OR number IS NOT NULL) AND _id = '' THEN
            'numbered: only an event with an aggregate has a number: name the aggregate'
        WHEN (numbered OR number IS NOT NULL) AND available_at IS NOT NULL THEN
            'numbered, available_at: a delayed event stands outside the order and has no number'
        WHEN coalesce(on_duplicate, '') NOT IN ('raise', 'ignore') THEN
            format('on_duplicate: %L is neither ''raise'' nor ''ignore''', on_duplicate)
        WHEN json_typeof(headers) <> 'object' THEN 'headers: must be a JSON object of names and texts'
        -- Databases lower the letters of other alphabets differently, and the topic must be the one of every other door.
        WHEN topic IS NULL AND octet_length(_type) <> length(_type) THEN
            format('topic: name it, because the aggregate''s type %L holds letters beyond ASCII', _type)
    END;
    IF _wrong IS NULL AND headers IS NOT NULL THEN
        SELECT format('headers: %L: %s', name, why) INTO _wrong FROM json_each(headers) h (name, value), LATERAL (
            SELECT CASE
                WHEN name = '' OR length(name) > 255 OR name ~ '[[:cntrl:]]' THEN
                    'a name has 1 to 255 characters, and none that controls'
                WHEN json_typeof(value) <> 'string' THEN 'values are text'
                WHEN lower(name) IN ('id', 'type', 'aggregate_type', 'aggregate_id', 'idempotency_key', 'number',
                                     'occurred_at', 'content_type', 'content-type')
                     OR lower(name) ~ '^(pillarbox-|ce_|ce-|cloudevents:|cloudevents_)' THEN
                    'a reserved name that Pillarbox writes itself; choose another'
            END) because (why) WHERE why IS NOT NULL LIMIT 1;
    END IF;
    IF _wrong IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'invalid_parameter_value', MESSAGE = '{prefix}add: ' || _wrong;
    END IF;

    IF idempotency_key IS NOT NULL
       AND EXISTS (SELECT FROM {p}take_keys(ARRAY[idempotency_key], ARRAY[_event])) THEN
        IF on_duplicate = 'raise' THEN
            RAISE EXCEPTION USING ERRCODE = 'unique_violation', MESSAGE = format(
                '{prefix}add: an event with the idempotency key %L was added before (%L); nothing was added now: '
                'on_duplicate => ''ignore'' passes over such events', idempotency_key, event_type);
        END IF;
        RETURN NULL;
    END IF;
    IF numbered THEN
        -- Before the row's id is drawn, or numbers and ids would come out in different orders.
        SELECT drawn.last INTO _number FROM {p}draw_numbers(ARRAY[_type], ARRAY[_id]) drawn;
    END IF;
    _topic := coalesce(topic, CASE WHEN _type = '' THEN 'events' ELSE lower(_type COLLATE "C") || '-events' END);
    INSERT INTO {p}outbox (
        event_id, aggregate_type, aggregate_id, event_type, topic, payload, body, content_type, headers,
        idempotency_key, number, available_at, occurred_at)
    VALUES (
        _event, _type, _id, event_type, _topic, payload, body, _format, headers,
        idempotency_key, _number, available_at, occurred_at);
    IF notify THEN
        PERFORM pg_notify('{prefix}outbox', '');
    END IF;
    RETURN _event;
END $$;

-- The same for what triggers have at hand: an id of any type, and a payload that is text, json or jsonb. Quoted literals
-- find the ones with text, so none is ambiguous; only those with json can be called without a payload.
DO $add$
DECLARE
    _id text;
    _payload text;
BEGIN
    FOR _id, _payload IN VALUES
        ('text', 'text'), ('text', 'jsonb'),
        ('anynonarray', 'text'), ('anynonarray', 'json DEFAULT NULL'), ('anynonarray', 'jsonb')
    LOOP
        EXECUTE format($text$
            CREATE FUNCTION {p}add(
                aggregate_type text, aggregate_id %s, event_type text, payload %s,
                topic text DEFAULT NULL, event_id uuid DEFAULT NULL, headers json DEFAULT NULL,
                body bytea DEFAULT NULL, content_type text DEFAULT NULL, idempotency_key text DEFAULT NULL,
                numbered boolean DEFAULT false, number bigint DEFAULT NULL,
                available_at timestamptz DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
                on_duplicate text DEFAULT 'raise', max_payload integer DEFAULT 262144, notify boolean DEFAULT false)
            RETURNS uuid LANGUAGE sql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp AS
                'SELECT {p}add($1, $2::text, $3, $4::text::json, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)'
            $text$, _id, _payload);
    END LOOP;
END $add$;

-- They run with their owner's rights, so only those who were granted them may call them.
REVOKE ALL ON FUNCTION {p}draw_numbers(text[], text[]), {p}take_keys(text[], uuid[], boolean) FROM PUBLIC;
