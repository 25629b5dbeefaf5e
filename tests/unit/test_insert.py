"""Insert: the statements that put events into the outbox, run on a real SQLite; what PostgreSQL's are made of."""

import json
import re
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core.event import Event
from pillarbox.core.insert import (
    EPOCH,
    Place,
    Statement,
    check_identifier,
    full_row,
    insertion,
    microseconds,
    postgres_insertion,
    refuse_duplicates,
)
from pillarbox.errors import ConfigError, DuplicateEvent, InvalidEvent

PLACE = Place()
ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
SCHEMA = (files("pillarbox") / "stores/sqlite/schema/0001.sql").read_text().replace("{prefix}", "pillarbox_")


class Database:
    """A door in five lines, which counts its statements."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:")
        self.connection.executescript(SCHEMA)
        self.statements = 0

    def add(self, *events: Event[Any], place: Place = PLACE, on_duplicate: Any = "raise") -> None:
        program = insertion(events, place, on_duplicate)
        try:
            statement = next(program)
            while True:
                try:
                    answer = self._run(statement)
                except sqlite3.Error as error:
                    statement = program.throw(error)
                else:
                    statement = program.send(answer)
        except StopIteration:
            return

    def _run(self, statement: Statement) -> list[Any]:
        self.statements += 1
        if statement.rows is not None:
            return self.connection.executemany(statement.sql, statement.rows).fetchall()
        return self.connection.execute(statement.sql, statement.parameters).fetchall()

    def all(self, columns: str, table: str = "outbox", order: str = "id") -> list[Any]:
        rows = self.connection.execute(f"SELECT {columns} FROM pillarbox_{table} ORDER BY {order}").fetchall()
        return [row[0] if len(row) == 1 else row for row in rows]

    @property
    def keys(self) -> list[str]:
        return self.all("key", "keys", "key")


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database()
    yield database
    database.connection.close()


def test_nothing_to_add_runs_no_statement(database: Database) -> None:
    database.add()
    assert database.statements == 0


def test_every_column_of_an_event_is_stored(database: Database) -> None:
    when = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
    database.add(
        Event(
            "OrderPlaced", {"größe": 1}, aggregate=("Order", 7), id=ID, headers={"händler": "ü"}, occurred_at=when,
            idempotency_key="k", number=3,
        ),
        Event("Ping", b"\x00", content_type="application/avro", topic="pings", available_at=when),
    )  # fmt: skip
    order, ping = database.connection.execute("SELECT * FROM pillarbox_outbox ORDER BY id").fetchall()
    micros = microseconds(when)
    assert order[:-1] == (
        1, str(ID), "Order", "7", "OrderPlaced", "order-events", '{"größe":1}', None, "application/json",
        '{"händler": "ü"}', "k", 3, None, micros,
    )  # fmt: skip
    assert ping[2:-1] == ("", "", "Ping", "pings", None, b"\x00", "application/avro", None, None, None, micros, None)


def test_a_thousand_events_are_one_statement_in_their_order(database: Database) -> None:
    events = [Event("X", {"n": n}, aggregate=("order", n % 7)) for n in range(1000)]
    database.add(*events)
    assert database.statements == 1
    assert database.all("event_id") == [str(event.id) for event in events]


def test_an_event_with_anything_special_is_stored_in_full_beside_those_without(database: Database) -> None:
    database.add(Event("X", {}), Event("Y", b"", content_type="x/y"), Event("Z", {}, headers={"a": "b"}))
    assert database.all("event_type, body, headers") == [("X", None, None), ("Y", b"", None), ("Z", None, '{"a": "b"}')]


@given(st.booleans(), st.booleans())
def test_a_row_of_either_insert_is_shown_in_full(bytes_too: bool, keyed: bool) -> None:
    event: Event[Any] = Event("X", {}, id=ID, aggregate=("order", 1), headers={"a": "b"} if keyed else None)
    other = [Event("Y", b"", content_type="x/y")] if bytes_too else []
    (statement,) = insertion([event, *other], PLACE)
    headers = '{"a": "b"}' if keyed else None
    assert full_row((statement.rows or [])[0]) == (
        str(ID), "order", "1", "X", "order-events", "{}", None, "application/json", headers, None, None, None, None,
    )  # fmt: skip


def test_the_topic_is_the_events_own_or_the_templates(database: Database) -> None:
    place = Place(topic="{aggregate_type}.{event_type}")
    order = ("Order", 1)
    database.add(Event("Placed", {}, aggregate=order), Event("Placed", {}, aggregate=order, topic="Own"), place=place)
    assert database.all("topic") == ["order.Placed", "Own"]


@pytest.mark.parametrize(("payload", "size"), [("ü" * 49, 100), ("a" * 98, 100), (b"\xff" * 100, 100)])
def test_the_limit_of_a_payload_counts_bytes_and_not_characters(database: Database, payload: Any, size: int) -> None:
    event = Event("Big", payload, content_type="x/y" if isinstance(payload, bytes) else None)
    database.add(event, place=Place(max_payload=size))
    with pytest.raises(InvalidEvent) as raised:
        database.add(event, place=Place(max_payload=size - 1))
    assert f"payload of 'Big' ({event.id}): 100 bytes, at most 99: store it elsewhere" in str(raised.value)


def test_what_is_refused_takes_no_key_and_draws_no_number(database: Database) -> None:
    fine: Event[Any] = Event("X", {}, aggregate=("order", 1), numbered=True, idempotency_key="k")
    wrongs: list[Any] = [Event("X", "x" * 300_000), Event("X" * 250, {}), {"no": "event"}]
    for wrong in wrongs:
        with pytest.raises(InvalidEvent):
            database.add(fine, wrong, place=Place(topic="{event_type}-events"))
    assert database.statements == 0
    database.add(fine)
    assert database.all("number") == [1]


def test_something_else_than_an_event_is_named(database: Database) -> None:
    with pytest.raises(InvalidEvent, match="expected an Event, found dict"):
        database.add({"type": "X"})  # type: ignore[arg-type]


def test_a_key_that_is_there_already_raises_and_nothing_was_added(database: Database) -> None:
    database.add(Event("X", {}, idempotency_key="old"))
    with pytest.raises(DuplicateEvent) as raised:
        database.add(Event("Y", {}, idempotency_key="new"), Event("Z", {}, idempotency_key="old"), Event("W", {}))
    assert "the idempotency key 'old' was added before ('Z')" in str(raised.value)
    assert "on_duplicate='ignore'" in str(raised.value)
    assert database.all("event_type") == ["X"]
    assert database.keys == ["old"]
    database.add(Event("Y", {}, idempotency_key="new"))
    assert database.all("event_type") == ["X", "Y"]


def test_a_key_that_is_there_already_can_be_passed_over(database: Database) -> None:
    database.add(Event("X", {}, idempotency_key="old"))
    events: list[Event[Any]] = [
        Event("Y", {}, idempotency_key="new"),
        Event("Z", {}, idempotency_key="old"),
        Event("W", {}),
    ]
    database.add(*events, on_duplicate="ignore")
    assert database.all("event_type") == ["X", "Y", "W"]
    assert database.keys == ["new", "old"]


def test_nothing_remains_if_every_key_is_there_already(database: Database) -> None:
    event: Event[Any] = Event("X", {}, aggregate=("order", 1), numbered=True, idempotency_key="k")
    database.add(event)
    database.statements = 0
    database.add(event, event, on_duplicate="ignore")
    assert database.statements == 1
    assert database.all("number") == [1]


@pytest.mark.parametrize("same_id", [True, False])
def test_a_key_twice_in_one_call_is_a_duplicate(database: Database, same_id: bool) -> None:
    one: Event[Any] = Event("One", {}, id=ID, idempotency_key="k")
    two: Event[Any] = Event("Two", {}, id=ID if same_id else None, idempotency_key="k")
    with pytest.raises(DuplicateEvent, match=r"\('Two'\)"):
        database.add(one, two)
    assert database.keys == []
    database.add(one, two, on_duplicate="ignore")
    assert database.all("event_type") == ["One"]


def test_giving_keys_back_leaves_the_older_keys_of_the_same_event_id(database: Database) -> None:
    database.add(Event("X", {}, id=ID, idempotency_key="old"))
    with pytest.raises(DuplicateEvent):
        database.add(Event("X", {}, id=ID, idempotency_key="new"), Event("X", {}, idempotency_key="old"))
    assert database.keys == ["old"]


def test_keys_survive_every_character(database: Database) -> None:
    keys = ["ü", "東京", '"', "\\", "'", "\n", "😀", "$[0]", "5", "null"]
    database.add(*(Event("X", {}, idempotency_key=key) for key in keys))
    assert database.keys == sorted(keys, key=lambda key: key.encode())
    with pytest.raises(DuplicateEvent):
        database.add(Event("X", {}, idempotency_key="😀"))


@pytest.mark.parametrize("answer", ["skip", "", None, "Raise"])
def test_any_other_way_to_treat_duplicates_is_refused(database: Database, answer: Any) -> None:
    with pytest.raises(ConfigError, match="is neither 'raise' nor 'ignore'"):
        database.add(Event("X", {}), on_duplicate=answer)


def test_numbers_are_gap_free_per_aggregate_across_calls(database: Database) -> None:
    def numbered(*ids: str) -> list[Event[Any]]:
        return [Event("X", {}, aggregate=("order", id), numbered=True) for id in ids]

    database.add(*numbered("b", "a", "b", "ü", "b", "a"))
    assert database.statements == 2
    database.add(*numbered("a"), Event("Own", {}, aggregate=("order", "a"), number=99), Event("None", {}))
    database.add(Event("X", {}, aggregate=("invoice", "a"), numbered=True), *numbered("b", "a"))
    assert database.all("aggregate_id, number") == [
        ("b", 1), ("a", 1), ("b", 2), ("ü", 1), ("b", 3), ("a", 2),
        ("a", 3), ("a", 99), ("", None),
        ("a", 1), ("b", 4), ("a", 4),
    ]  # fmt: skip


def test_what_is_passed_over_draws_no_number(database: Database) -> None:
    order = ("order", 1)
    database.add(Event("X", {}, aggregate=order, numbered=True, idempotency_key="k"))
    database.add(
        Event("Y", {}, aggregate=order, numbered=True, idempotency_key="k"),
        Event("Z", {}, aggregate=order, numbered=True),
        on_duplicate="ignore",
    )
    assert database.all("event_type, number") == [("X", 1), ("Z", 2)]


aggregates = st.sampled_from([("order", "1"), ("order", "2"), ("invoice", "1")])
made = st.tuples(aggregates, st.booleans(), st.sampled_from([None, "k1", "k2", "k3"]))


@given(st.lists(st.lists(made, max_size=6), max_size=4))
def test_any_calls_give_each_key_once_and_numbers_without_gaps(calls: list[list[Any]]) -> None:
    database = Database()
    expected: list[tuple[str, str | None]] = []
    for call in calls:
        events: list[Event[Any]] = [
            Event("X", {}, aggregate=aggregate, numbered=numbered, idempotency_key=key)
            for aggregate, numbered, key in call
        ]
        database.add(*events, on_duplicate="ignore")
        for event in events:
            if event.idempotency_key is None or event.idempotency_key not in [key for _, key in expected]:
                expected.append((str(event.id), event.idempotency_key))
    assert database.all("event_id, idempotency_key") == expected
    for aggregate in (("order", "1"), ("order", "2"), ("invoice", "1")):
        rows = database.all("number, aggregate_type, aggregate_id")
        numbers = [number for number, *of in rows if tuple(of) == aggregate and number is not None]
        assert numbers == list(range(1, len(numbers) + 1))
    database.connection.close()


@given(st.datetimes(timezones=st.just(UTC)))
def test_microseconds_are_exact_for_every_date(instant: datetime) -> None:
    assert EPOCH + timedelta(microseconds=microseconds(instant)) == instant


def test_microseconds_are_exact_where_floats_are_not(database: Database) -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert microseconds(last) == 253_402_300_799_999_999
    database.add(Event("X", {}, occurred_at=last))
    assert database.all("occurred_at") == [253_402_300_799_999_999]


@pytest.mark.parametrize(
    "first", [(), (Event("First", {}, aggregate=("order", 1), numbered=True),)], ids=["alone", "second"]
)
def test_an_insert_that_fails_gives_back_the_key_and_the_number(
    database: Database, first: tuple[Event[Any], ...]
) -> None:
    bad: Event[Any] = Event("Bad", {}, aggregate=("order", 1), numbered=True, idempotency_key="k")
    database.connection.execute(
        "CREATE TRIGGER refuses BEFORE INSERT ON pillarbox_outbox WHEN new.event_type = 'Bad'"
        " BEGIN SELECT raise(ABORT, 'no'); END"
    )
    with pytest.raises(sqlite3.IntegrityError, match="no"):
        database.add(*first, bad, Event("Last", {}, aggregate=("order", 1), numbered=True), Event("Plain", {}))
    database.connection.execute("DROP TRIGGER refuses")
    database.connection.commit()
    database.add(bad)
    assert database.all("event_type, number") == [
        (event.type, number) for number, event in enumerate((*first, bad), start=1)
    ]


def test_a_transaction_that_is_gone_has_nothing_to_give_back(database: Database) -> None:
    database.connection.execute(
        "CREATE TRIGGER refuses BEFORE INSERT ON pillarbox_outbox WHEN new.event_type = 'Bad'"
        " BEGIN SELECT raise(ROLLBACK, 'all of it'); END"
    )
    database.add(Event("Good", {}, aggregate=("order", 1), numbered=True))
    database.connection.commit()
    with pytest.raises(sqlite3.IntegrityError, match="all of it"):
        database.add(Event("Bad", {}, aggregate=("order", 1), numbered=True, idempotency_key="k"))
    assert (database.all("last", "numbers", "last"), database.all("key", "keys", "key")) == ([1], [])


def test_the_first_error_is_the_one_that_is_raised(database: Database) -> None:
    program = insertion([Event("X", {}, idempotency_key="k")], PLACE)
    next(program)
    program.send([["k"]])
    program.throw(sqlite3.OperationalError("disk full"))
    with pytest.raises(sqlite3.OperationalError, match="disk full") as raised:
        program.throw(sqlite3.OperationalError("gone"))
    assert raised.value.__notes__ == ["its keys and numbers were not given back: gone"]


def test_a_place_has_its_own_prefix() -> None:
    program = insertion([Event("X", {}, idempotency_key="k")], Place(prefix="shop_"))
    assert "INSERT INTO main.shop_keys" in next(program).sql
    assert "INSERT INTO main.shop_outbox" in program.send([["k"]]).sql


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"topic": "{order}"}, "topic:"),
        ({"prefix": "a-b"}, "prefix: 'a-b' must be small letters, digits and underscores, at most 40"),
        ({"prefix": "x; DROP TABLE"}, "prefix:"),
        ({"schema": ""}, "schema:"),
        ({"schema": "ü"}, "schema:"),
        ({"schema": "x" * 41}, "schema:"),
        ({"prefix": "Shop_"}, "prefix: 'Shop_' must be small letters"),
        ({"schema": "order"}, "schema: 'order' is a word of SQL itself"),
        ({"max_payload": 0}, "max_payload: 0 is not a number of bytes above 0"),
        ({"notify": True}, "notify: only PostgreSQL has NOTIFY"),
    ],
)
def test_a_place_that_cannot_be_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Place(**arguments)
    assert str(raised.value).startswith(words)


def test_an_identifier_is_given_back() -> None:
    assert check_identifier("prefix", "shop_") == "shop_"


def test_headers_are_stored_as_a_json_object(database: Database) -> None:
    headers = {"a": '"', "b": "東京", "c": ""}
    database.add(Event("X", {}, headers=headers))
    assert json.loads(database.all("headers")[0]) == headers


POSTGRES = Place(schema="shop", dialect="postgres", marker="%s")
KEYED: Event[Any] = Event("Paid", {}, id=ID, idempotency_key="k")


def statement(*events: Event[Any], place: Place = POSTGRES, on_duplicate: Any = "raise") -> Statement:
    found = postgres_insertion(events, place, on_duplicate)
    assert found is not None
    return found


def test_on_postgres_nothing_to_add_is_no_statement() -> None:
    assert postgres_insertion([], POSTGRES) is None
    assert list(insertion([], POSTGRES)) == []
    with pytest.raises(ConfigError, match="on_duplicate"):
        postgres_insertion([], POSTGRES, "Raise")  # type: ignore[arg-type]


EVERY_KIND: list[list[Event[Any]]] = [
    [Event("X", {})],
    [Event("X", {}), Event("Y", {})],
    [Event("X", {}, headers={"a": "b"})],
    [Event("X", {}, aggregate=("order", 1), numbered=True)],
    [KEYED],
    [KEYED, Event("X", {}, aggregate=("order", 1), numbered=True)],
]


@pytest.mark.parametrize("notify", [False, True])
@pytest.mark.parametrize("events", EVERY_KIND, ids=["one", "many", "full", "numbered", "keyed", "both"])
def test_each_parameter_has_one_marker_in_every_tools_style(events: list[Event[Any]], notify: bool) -> None:
    texts = {}
    for marker in ("?", "%s", "$"):
        place = Place(dialect="postgres", marker=marker, notify=notify)
        text, parameters, *_ = statement(*events, place=place)
        markers = [f"${n}" for n in range(1, len(parameters) + 1)] if marker == "$" else [marker] * len(parameters)
        pattern = r"\$\d+" if marker == "$" else re.escape(marker)
        assert re.findall(pattern, text) == markers
        texts[marker] = re.sub(pattern, "?", text)
    assert len(set(texts.values())) == 1
    rings = "pg_notify('pillarbox_outbox', '')" in texts["?"] or "notify => true" in texts["?"]
    assert rings is notify


def test_on_postgres_everything_is_text() -> None:
    when = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
    full = Event("X", b"\x00\xff", content_type="x/y", id=ID, aggregate=("order", 1), number=3, occurred_at=when)
    other = UUID(int=ID.int + 1)
    _, parameters, rows, answers, _ = statement(full, Event("Y", {}, id=other))
    assert parameters == [
        [str(ID), str(other)], ["order", ""], ["1", ""], ["X", "Y"], ["order-events", "events"], [None, "{}"],
        ["\\x00ff", None], ["x/y", "application/json"], [None] * 2, [None] * 2, ["3", None], [None] * 2,
        ["2026-03-04T05:06:07.000089+00:00", None],
    ]  # fmt: skip
    assert rows is None
    assert not answers


def test_only_keys_and_numbers_need_the_functions() -> None:
    for events in EVERY_KIND:
        needs = any(event.numbered or event.idempotency_key for event in events)
        assert bool(re.search(r"shop\.pillarbox_(take_keys|draw_numbers|add)\(", statement(*events).sql)) == needs


def test_keys_that_were_taken_before_are_refused_or_passed_over() -> None:
    other: Event[Any] = Event("Other", {}, idempotency_key="other")
    refuse_duplicates([other, KEYED], [[[]]], "raise")
    refuse_duplicates([other, KEYED], [[["k"]]], "ignore")
    with pytest.raises(DuplicateEvent, match=r"the idempotency key 'k' was added before \('Paid'\)"):
        refuse_duplicates([other, KEYED], [[["k"]]], "raise")
    with pytest.raises(DuplicateEvent):
        refuse_duplicates([KEYED], [[True]], "raise")
    assert statement(KEYED, other).sql != statement(KEYED, other, on_duplicate="ignore").sql


def test_on_postgres_a_key_twice_in_one_call_is_a_duplicate() -> None:
    with pytest.raises(DuplicateEvent):
        postgres_insertion([KEYED, KEYED], POSTGRES)
    assert statement(KEYED, KEYED, on_duplicate="ignore") == statement(KEYED)


def test_a_program_on_postgres_is_one_statement_and_a_judgement() -> None:
    program = insertion([KEYED], POSTGRES)
    assert next(program) == statement(KEYED)
    with pytest.raises(DuplicateEvent):
        program.send([[True]])


def test_the_same_place_is_made_once_for_each_tool() -> None:
    assert POSTGRES.on("sqlite", "?") is POSTGRES.on("sqlite", "?")
    assert POSTGRES.on("sqlite", "?") == Place(schema="shop")
    assert POSTGRES.on("postgres", "%s").sql == POSTGRES.sql


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
@pytest.mark.parametrize("more", [{}, {"headers": {"tenant": "acme"}}, {"idempotency_key": "payment 1"}])
def test_two_events_with_one_id_are_refused_before_anything_is_written(dialect: Any, more: dict[str, Any]) -> None:
    events: list[Event[Any]] = [Event("OrderPlaced", {}, id=ID), Event("OrderPaid", {}, id=ID, **more)]
    with pytest.raises(InvalidEvent, match=f"'OrderPlaced' and 'OrderPaid' are two events with one id, {ID}"):
        next(insertion(events, PLACE.on(dialect, "%s")))


def test_the_same_event_may_be_added_twice() -> None:
    database, event = Database(), Event("OrderPlaced", {"order": 1}, id=ID)
    database.add(event, event)
    assert database.all("event_id") == [str(ID)] * 2
