"""pillarbox_add: an event from any language, the same as one from a door, with the same refusals."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Json, Jsonb

from pillarbox.core.event import RESERVED_HEADERS, RESERVED_PREFIXES, Event
from pillarbox.core.routing import DEFAULT_TOPIC, topic_of
from pillarbox.psycopg import Outbox
from servers.postgres import RunningPostgres
from tests.integration.postgres_shop import made

AT = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


@pytest.fixture(scope="module")
def url(postgres: RunningPostgres) -> Iterator[str]:
    name = f"add_{uuid.uuid4().hex}"
    yield made(postgres.create_database(name))
    postgres.drop_database(name)


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


def add(connection: psycopg.Connection, arguments: str, *values: Any) -> Any:
    row = connection.execute(f"SELECT pillarbox_add({arguments})".encode(), values).fetchone()
    assert row is not None
    return row[0]


def rows(connection: psycopg.Connection, columns: str) -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT {columns} FROM pillarbox_outbox ORDER BY id".encode()).fetchall()


def test_the_shortest_way(connection: psycopg.Connection) -> None:
    id = add(connection, """'order', '42', 'OrderPlaced', '{"total":  42}'""")
    columns = "event_id, aggregate_type, aggregate_id, event_type, topic, payload::text, content_type"
    assert rows(connection, columns) == [
        (id, "order", "42", "OrderPlaced", "order-events", '{"total":  42}', "application/json")
    ]


ID_42 = ["42", "42::smallint", "42::bigint", "42::numeric", "'42'::varchar(9)", "'42'", "'42'::text", "'42'::name"]
PAYLOADS = ["'{\"total\": 9}'", *(f"'{{\"total\": 9}}'::{kind}" for kind in ("text", "varchar", "json", "jsonb"))]


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("id", ID_42)
def test_ids_and_payloads_of_many_types_are_taken(connection: psycopg.Connection, id: str, payload: str) -> None:
    add(connection, f"'order', {id}, 'OrderPlaced', {payload}, topic => 't', numbered => true")
    names = ("aggregate_type", "aggregate_id", "event_type", "payload")
    values = ("'order'", id, "'OrderPlaced'", payload)
    add(connection, ", ".join(f"{name} => {value}" for name, value in zip(names, values, strict=True)))
    add(connection, f"'order', {id}, 'LabelPrinted', body => 'x', content_type => 'text/plain'")
    assert rows(connection, "aggregate_id, payload::text, topic") == [
        ("42", '{"total": 9}', "t"), ("42", '{"total": 9}', "order-events"), ("42", None, "order-events")
    ]  # fmt: skip


@pytest.mark.parametrize("value", [42, "42", ID])
@pytest.mark.parametrize("payload", ["{}", Json({}), Jsonb({})])
def test_parameters_of_a_driver_are_taken(connection: psycopg.Connection, value: object, payload: object) -> None:
    add(connection, "%s, %s, %s, %s, headers => %s", "order", value, "OrderPlaced", payload, Json({"a": "b"}))
    assert rows(connection, "aggregate_id, payload::text") == [(str(value), "{}")]


def test_a_trigger_adds_what_it_has_at_hand(connection: psycopg.Connection) -> None:
    connection.execute("""
        CREATE TABLE orders (id bigint PRIMARY KEY, total int);
        CREATE FUNCTION order_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pillarbox_add('order', NEW.id, 'OrderChanged', to_jsonb(NEW));
            RETURN NULL;
        END $$;
        CREATE TRIGGER order_changed AFTER INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION order_changed();
        INSERT INTO orders VALUES (7, 42);
    """)
    assert rows(connection, "aggregate_id, payload") == [("7", {"id": 7, "total": 42})]


def test_no_aggregate_is_taken_with_any_payload(connection: psycopg.Connection) -> None:
    for payload in PAYLOADS:
        add(connection, f"NULL, NULL, 'Ping', {payload}")
        add(connection, f"'', '', 'Ping', {payload}")
    assert set(rows(connection, "aggregate_id, topic")) == {("", "events")}


def test_an_event_is_the_same_as_from_a_door(connection: psycopg.Connection) -> None:
    event = Event(
        "Placed", {"größe": 1}, aggregate=("Order", "7"), id=ID, headers={"a": "ü"}, occurred_at=AT, number=3,
        content_type="application/vnd.shop+json", idempotency_key="door",
    )  # fmt: skip
    Outbox().add(connection, event)
    add(
        connection,
        """'Order', '7', 'Placed', '{"größe":1}', event_id => %s, headers => '{"a": "ü"}', occurred_at => %s,"""
        " number => 3, content_type => 'application/vnd.shop+json', idempotency_key => 'sql'",
        ID, AT,
    )  # fmt: skip
    door, sql = rows(
        connection,
        "event_id, aggregate_type, aggregate_id, event_type, topic, payload::text, body, content_type, headers::text,"
        " number, available_at, occurred_at, lane",
    )
    assert sql == door


def test_bytes_and_delayed_events_without_an_aggregate(connection: psycopg.Connection) -> None:
    body = r"body => '\x00ff'::bytea, content_type => 'application/avro', available_at => %s"
    add(connection, f"NULL, NULL, 'Ping', {body}", AT)
    add(connection, f"'', '', 'Ping', {body}, topic => 'pings'", AT)
    found = rows(connection, "topic, aggregate_type, aggregate_id, payload, body, content_type, available_at")
    assert found == [(topic, "", "", None, b"\x00\xff", "application/avro", AT) for topic in ("events", "pings")]


@pytest.mark.parametrize("kind", ["order", "Order", "ORDER_LINE", "I", "a.b", "x-y", ""])
def test_the_topic_is_the_doors_own(connection: psycopg.Connection, kind: str) -> None:
    add(connection, "%s::text, %s, 'Placed', '{}'", kind, "1" if kind else "")
    assert rows(connection, "topic") == [(topic_of(DEFAULT_TOPIC, kind, "Placed"),)]


def test_numbers_are_those_of_the_doors(connection: psycopg.Connection) -> None:
    numbered: Event[Any] = Event("X", {}, aggregate=("order", 1), numbered=True)
    Outbox().add(connection, numbered)
    add(connection, "'order', '1', 'X', '{}', numbered => true")
    Outbox().add(connection, numbered, numbered)
    add(connection, "'order', '1', 'X', '{}', numbered => true")
    assert rows(connection, "number") == [(n,) for n in range(1, 6)]


def test_a_key_is_taken_once_by_whatever_way(connection: psycopg.Connection) -> None:
    Outbox().add(connection, Event("X", {}, idempotency_key="k"))
    assert add(connection, "NULL, NULL, 'Y', '{}', idempotency_key => 'k', on_duplicate => 'ignore'") is None
    with (
        pytest.raises(errors.UniqueViolation, match=r"the idempotency key 'k' was added before \('Y'\)"),
        connection.transaction(),
    ):
        add(connection, "NULL, NULL, 'Y', '{}', idempotency_key => 'k'")
    assert add(connection, "NULL, NULL, 'Z', '{}', idempotency_key => 'new'") is not None
    assert rows(connection, "event_type") == [("X",), ("Z",)]


LONG = "repeat('x', 256)"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("'order', '', 'X', '{}'", "aggregate: the type is 'order' and the id is ''; give both"),
        ("'order', NULL, 'X', '{}'", "aggregate:"),
        ("'', '1', 'X', '{}'", "aggregate:"),
        ("'order', '1', '', '{}'", "event_type: is empty; name it"),
        ("'order', '1', NULL, '{}'", "event_type: is empty; name it"),
        ("'order', '1', 'X', '{}', topic => ''", "topic: is empty"),
        ("'order', '1', 'X', '{}', idempotency_key => ''", "idempotency_key: is empty"),
        (f"{LONG}, '1', 'X', '{{}}'", "more than 255 characters"),
        (f"'order', {LONG}, 'X', '{{}}'", "more than 255 characters"),
        (f"'order', '1', {LONG}, '{{}}'", "more than 255 characters"),
        (f"'order', '1', 'X', '{{}}', topic => {LONG}", "more than 255 characters"),
        (f"'order', '1', 'X', '{{}}', idempotency_key => {LONG}", "more than 255 characters"),
        ("'order', '1', 'X'", "payload, body: give one of them"),
        ("'order', '1', 'X', '{}', body => 'a'", "payload, body: give one of them"),
        ("'order', '1', 'X', body => 'a'", "content_type: a body needs one"),
        ("'order', '1', 'X', '{}', content_type => 'text/plain'", "JSON goes into payload"),
        ("'order', '1', 'X', body => '{}', content_type => 'application/json; charset=utf-8'", "JSON goes into"),
        ("'order', '1', 'X', to_json(repeat('x', 262143))", "payload: 262145 bytes, at most 262144"),
        ("'order', '1', 'X', '{}', max_payload => 1", "payload: 2 bytes, at most 1"),
        ("'order', '1', 'X', '{}', numbered => true, number => 1", "numbered, number: give one of them"),
        ("'order', '1', 'X', '{}', number => -1", "number: -1 is not"),
        ("NULL, NULL, 'X', '{}', numbered => true", "only an event with an aggregate has a number"),
        ("'order', '1', 'X', '{}', number => 1, available_at => now()", "stands outside the order"),
        ("'order', '1', 'X', '{}', on_duplicate => 'skip'", "on_duplicate: 'skip' is neither"),
        ("'order', '1', 'X', '{}', headers => '[]'", "headers: must be a JSON object"),
        ("""'order', '1', 'X', '{}', headers => '{"a": 1}'""", "headers: 'a': values are text"),
        ("""'order', '1', 'X', '{}', headers => '{"": "1"}'""", "headers: ''"),
        ("""'order', '1', 'X', '{}', headers => '{"a\\nb": "1"}'""", "none that controls"),
        ("'Ämter', '1', 'X', '{}'", "topic: name it, because the aggregate's type 'Ämter' holds letters beyond ASCII"),
    ],
)
def test_what_a_door_refuses_is_refused(connection: psycopg.Connection, arguments: str, words: str) -> None:
    with pytest.raises(errors.InvalidParameterValue) as refused:
        add(connection, arguments)
    assert str(refused.value).startswith("pillarbox_add: ")
    assert words in str(refused.value)


@pytest.mark.parametrize("name", sorted({*RESERVED_HEADERS, *(f"{prefix}x" for prefix in RESERVED_PREFIXES)}))
def test_the_reserved_headers_are_the_same(connection: psycopg.Connection, name: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="a reserved name that Pillarbox writes itself"):
        add(connection, "'order', '1', 'X', '{}', headers => json_build_object(%s::text, 'x')", name.upper())


def test_what_is_refused_takes_no_key_and_draws_no_number(connection: psycopg.Connection) -> None:
    with pytest.raises(errors.InvalidParameterValue), connection.transaction():
        add(connection, "'order', '1', 'X', '{}', numbered => true, idempotency_key => 'k', on_duplicate => NULL")
    add(connection, "'order', '1', 'X', '{}', numbered => true, idempotency_key => 'k'")
    assert rows(connection, "number") == [(1,)]


def test_it_rings_the_bell_if_asked_to(connection: psycopg.Connection, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN pillarbox_outbox")
        add(connection, "'order', '1', 'X', '{}'")
        connection.commit()
        add(connection, "'order', '1', 'X', '{}', notify => true")
        connection.commit()
        listener.execute("NOTIFY pillarbox_outbox, 'end'")
        assert [notify.payload for notify in listener.notifies(timeout=20, stop_after=2)] == ["", "end"]
    connection.execute("DELETE FROM pillarbox_outbox")
    connection.commit()
