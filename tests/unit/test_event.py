"""Event: what it takes, and everything that it refuses while the caller still has its transaction."""

import copy
import enum
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pydantic
import pytest

from pillarbox.core.event import MOST_OF_HEADERS, RESERVED_HEADERS, RESERVED_PREFIXES, Event, carrying
from pillarbox.errors import AddError, InvalidEvent

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
WHEN = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
FAR_EAST = timezone(timedelta(hours=14))


class Size(enum.Enum):
    SMALL = "small"


class Kind(str, enum.Enum):  # noqa: UP042  the older spelling is the one that prints as something else
    ORDER = "order"


@dataclass
class Line:
    article: UUID
    price: Decimal
    size: Size = Size.SMALL


@dataclass
class Order:
    id: int
    at: datetime
    lines: list[Line] = field(default_factory=list)


class OrderModel(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")
    at: datetime


class OrderStruct(msgspec.Struct, rename="camel"):
    order_id: int
    article: UUID


def refused(*words: str, **arguments: Any) -> None:
    """Expect a refusal that says all of these words."""
    given = {"type": "OrderPlaced", "payload": {}} | arguments
    with pytest.raises(InvalidEvent) as raised:
        Event(**given)
    message = str(raised.value)
    assert message.startswith(words[0]), message
    for word in words:
        assert word in message, message


def test_an_event_has_what_it_was_given() -> None:
    event = Event(
        "OrderPlaced", {"total": 42}, aggregate=("order", 7), id=ID, topic="orders", headers={"tenant": "acme"},
        idempotency_key="k", occurred_at=WHEN, number=3,
    )  # fmt: skip
    assert (event.type, event.payload, event.data) == ("OrderPlaced", {"total": 42}, '{"total":42}')
    assert (event.aggregate, event.id, event.topic) == (("order", "7"), ID, "orders")
    assert (dict(event.headers), event.content_type) == ({"tenant": "acme"}, "application/json")
    assert (event.idempotency_key, event.occurred_at, event.number) == ("k", WHEN, 3)
    assert (event.available_at, event.numbered, event.delivery) == (None, False, None)


def test_an_event_needs_neither_aggregate_nor_id() -> None:
    event: Event[Any] = Event("Ping", {})
    assert event.aggregate is None
    assert event.id.version == 7


@pytest.mark.parametrize(("id", "text"), [("a b", "a b"), (7, "7"), (-1, "-1"), (ID, str(ID))])
def test_an_aggregate_id_is_text_a_number_or_a_uuid(id: Any, text: str) -> None:
    assert Event("X", {}, aggregate=("order", id)).aggregate == ("order", text)


def test_an_instant_is_kept_in_utc() -> None:
    east = WHEN.astimezone(FAR_EAST)
    event: Event[Any] = Event("X", {}, occurred_at=east, available_at=east)
    assert event.occurred_at == event.available_at == WHEN
    assert event.occurred_at is not None
    assert event.occurred_at.tzinfo is UTC


def test_an_enum_that_is_text_is_kept_as_plain_text() -> None:
    event: Event[Any] = Event(
        Kind.ORDER, {}, aggregate=(Kind.ORDER, Kind.ORDER), topic=Kind.ORDER, headers={Kind.ORDER: Kind.ORDER}
    )
    texts = [event.type, *(event.aggregate or ()), event.topic, *event.headers, *event.headers.values()]
    assert texts == ["order"] * 6
    assert {type(text) for text in texts} == {str}
    assert type(Event("order", {}).type) is str


@pytest.mark.parametrize(
    ("argument", "field"),
    [
        (lambda text: {"type": text}, "type"),
        (lambda text: {"aggregate": (text, 1)}, "aggregate type"),
        (lambda text: {"aggregate": ("order", text)}, "aggregate id"),
        (lambda text: {"topic": text}, "topic"),
        (lambda text: {"idempotency_key": text}, "idempotency_key"),
        (lambda text: {"payload": b"", "content_type": text}, "content_type"),
        (lambda text: {"headers": {text: "x"}}, "header name"),
    ],
)
class TestNames:
    def test_an_empty_name_is_refused(self, argument: Callable[[str], Any], field: str) -> None:
        refused(f"{field}: is empty", "name it", **argument(""))

    def test_a_name_of_255_characters_is_taken_and_a_longer_one_refused(
        self, argument: Callable[[str], Any], field: str
    ) -> None:
        Event(**({"type": "X", "payload": {}} | argument("ü" * 255)))
        refused(f"{field}: 256 characters, at most 255", "shorten it", **argument("ü" * 256))

    def test_nul_is_refused(self, argument: Callable[[str], Any], field: str) -> None:
        refused(f"{field}: holds a NUL character", "remove it", **argument("a\0b"))

    def test_a_lone_surrogate_is_refused(self, argument: Callable[[str], Any], field: str) -> None:
        refused(f"{field}: holds a lone surrogate", "remove it", **argument("a\ud800"))

    def test_something_else_than_text_is_refused(self, argument: Callable[[Any], Any], field: str) -> None:
        refused(f"{field}: expected", "found bytes b'x'", **argument(b"x"))


def test_an_aggregate_without_an_id_says_to_flush_first() -> None:
    refused("aggregate: order.id is None: flush first", aggregate=("order", None))


@pytest.mark.parametrize("aggregate", ["order", ("order",), ("order", 1, 2), ["order", 1], {"order": 1}])
def test_an_aggregate_is_a_pair(aggregate: Any) -> None:
    refused("aggregate: expected (type, id), found", aggregate=aggregate)


@pytest.mark.parametrize("id", [True, 1.5, b"7", Decimal(7), object()])
def test_an_aggregate_id_of_another_type_is_refused(id: Any) -> None:
    refused(f"aggregate id: expected str, int or UUID, found {type(id).__name__}", aggregate=("order", id))


def test_a_number_of_hundreds_of_digits_is_no_aggregate_id() -> None:
    refused("aggregate id: expected str, int or UUID, found an int of hundreds", aggregate=("order", 10**5000))
    assert Event("X", {}, aggregate=("order", 2**128)).aggregate == ("order", str(2**128))


def test_an_id_that_is_no_uuid_is_refused() -> None:
    refused("id: expected a UUID, found str", "leave it out", id=str(ID))


@pytest.mark.parametrize("field", ["occurred_at", "available_at"])
def test_instants_need_a_time_zone_and_must_fit(field: str) -> None:
    refused(
        f"{field}: 2026-03-04T05:06:07",
        "has no time zone",
        "datetime.now(UTC)",
        **{field: datetime(2026, 3, 4, 5, 6, 7)},
    )
    refused(f"{field}: expected a datetime, found str", **{field: "2026-03-04"})
    refused(f"{field}: expected a datetime, found date", **{field: date(2026, 3, 4)})
    refused(f"{field}: 0001-01-01", "outside the years", **{field: datetime(1, 1, 1, tzinfo=FAR_EAST)})


@pytest.mark.parametrize(
    "name", [*sorted(RESERVED_HEADERS), "ID", "Content-Type", *(prefix + "x" for prefix in RESERVED_PREFIXES), "CE_id"]
)
def test_a_reserved_header_is_refused(name: str) -> None:
    refused(f"headers: {name!r} is a reserved name", "choose another", headers={name: "x"})


def test_headers_are_texts_without_control_characters_in_their_names() -> None:
    refused("headers: 'n' is int 5", "values are text", headers={"n": 5})
    refused("headers: the name 'a\\nb' holds control characters", "remove them", headers={"a\nb": "x"})
    refused("header 'n': holds a NUL", headers={"n": "\0"})
    refused("header 'n': holds a lone surrogate", headers={"n": "\udfff"})
    refused("headers: expected a mapping", headers=[("a", "b")])


def test_headers_have_a_size_that_brokers_take() -> None:
    names = {f"h{n:03}": "ü" * 100 for n in range(160)}  # 204 bytes each
    event: Event[Any] = Event("X", {}, headers=names | {"rest": "x" * (MOST_OF_HEADERS - 160 * 204 - 4)})
    assert len(event.headers) == 161
    refused("headers: 32,769 bytes together", "put what is large into the payload", headers={"a": "x" * 32_768})


def test_headers_of_an_event_cannot_be_changed_afterwards() -> None:
    given = {"a": "b"}
    event: Event[Any] = Event("X", {}, headers=given)
    given["a"] = "c"
    assert event.headers == {"a": "b"}
    for headers in (event.headers, Event("X", {}).headers):
        with pytest.raises(TypeError):
            headers["x"] = "y"  # type: ignore[index]


def test_a_number_needs_an_aggregate_and_no_delay_and_one_who_counts() -> None:
    order = ("order", 1)
    refused("numbered, number: give one of them", aggregate=order, numbered=True, number=1)
    refused("numbered: only an event with an aggregate", "name the aggregate", numbered=True)
    refused("number: only an event with an aggregate", number=1)
    refused("numbered, available_at: a delayed event", aggregate=order, numbered=True, available_at=WHEN)
    refused("number, available_at: a delayed event", aggregate=order, number=1, available_at=WHEN)
    for number in (-1, True, 1.0, "1", 1 << 63):
        refused("number:", "is not a whole number", aggregate=order, number=number)
    assert Event("X", {}, aggregate=order, number=(1 << 63) - 1).number == (1 << 63) - 1
    assert Event("X", {}, aggregate=order, number=0).number == 0


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (math.nan, "NaN and infinity are not JSON: send null or a string instead"),
        ({"a": [1, math.inf]}, "NaN and infinity"),
        ({math.nan: 1}, "NaN and infinity"),
        ({"a": {1, 2}}, "a set ({1, 2}) is nothing that JSON can say: turn it into"),
        ({"a": b"x"}, "a bytes (b'x') is nothing that JSON can say"),
        (object, "a type"),
        ({(1, 2): 3}, "keys must be str"),
        ({"a": "\ud800"}, "lone surrogate"),
        ({"a": 10**5000}, "limit"),
    ],
)
def test_a_payload_that_json_cannot_say_is_refused(payload: Any, words: str) -> None:
    refused("payload of 'OrderPlaced':", words, payload=payload)


def test_a_payload_that_contains_itself_is_refused() -> None:
    circular: list[Any] = []
    circular.append(circular)
    refused("payload of 'OrderPlaced': it contains itself", "send an id instead", payload=circular)
    order = Order(1, WHEN)
    order.lines.append(order)  # type: ignore[arg-type]
    refused("payload of 'OrderPlaced': it contains itself", payload=order)


def test_a_payload_that_is_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(200_000):
        deep = [deep]
    refused("payload of 'OrderPlaced': it is nested too deeply", "flatten it", payload=deep)


def test_bytes_need_a_content_type() -> None:
    refused("content_type: bytes need one", "application/avro", payload=b"\x00")


@pytest.mark.parametrize("payload", [b"\x00\xff", bytearray(b"\x00\xff"), memoryview(b"\x00\xff")])
def test_bytes_are_kept_as_they_are(payload: Any) -> None:
    event = Event("X", payload, content_type="application/avro")
    assert (event.data, event.content_type) == (b"\x00\xff", "application/avro")


def test_a_json_payload_with_another_content_type_is_refused() -> None:
    refused("content_type: 'text/plain' is not JSON", "as bytes", payload={}, content_type="text/plain")
    assert Event("X", {}, content_type="application/vnd.order+json").content_type == "application/vnd.order+json"
    assert Event("X", {}, content_type="Application/JSON; charset=utf-8").data == "{}"


def test_bytes_that_are_said_to_be_json_are_checked_and_kept_to_the_byte() -> None:
    event = Event("X", b'{ "a": 1.00 }', content_type="application/json")
    assert event.data == '{ "a": 1.00 }'
    for broken in (b"{", b"", b"NaN", b"\xef\xbb\xbf{}", "{}".encode("utf-16")):
        refused("payload of 'OrderPlaced': it is not", payload=broken, content_type="application/json")


def test_a_refusal_is_an_add_error_and_a_value_error() -> None:
    assert issubclass(InvalidEvent, AddError)
    assert issubclass(InvalidEvent, ValueError)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (None, "null"),
        ("Straße 東京", '"Straße 東京"'),
        ("a\0b", '"a\\u0000b"'),
        ([1, 2.5, True, None], "[1,2.5,true,null]"),
        ((1, 2), "[1,2]"),
        ({1: "a", None: "b"}, '{"1":"a","null":"b"}'),
        (2**80, str(2**80)),
        ({"id": ID, "price": Decimal("1.10"), "size": Size.SMALL}, f'{{"id":"{ID}","price":"1.10","size":"small"}}'),
        ([WHEN, date(2026, 3, 4)], '["2026-03-04T05:06:07.000089+00:00","2026-03-04"]'),
        (
            Order(1, WHEN, [Line(ID, Decimal("9.99"))]),
            f'{{"id":1,"at":"2026-03-04T05:06:07.000089+00:00","lines":[{{"article":"{ID}","price":"9.99","size":"small"}}]}}',
        ),
        (OrderModel(orderId=1, at=WHEN), '{"orderId":1,"at":"2026-03-04T05:06:07.000089Z"}'),
        (OrderStruct(1, ID), f'{{"orderId":1,"article":"{ID}"}}'),
        ({"in": [OrderModel(orderId=1, at=WHEN)]}, '{"in":[{"orderId":1,"at":"2026-03-04T05:06:07.000089Z"}]}'),
        ({"in": [OrderStruct(1, ID)]}, f'{{"in":[{{"orderId":1,"article":"{ID}"}}]}}'),
    ],
)
def test_payloads_are_written_as_compact_json(payload: Any, text: str) -> None:
    assert Event("X", payload).data == text


def test_a_generic_event_carries_its_model() -> None:
    event: Event[Order] = Event[Order]("X", Order(1, WHEN))
    assert event.payload.id == 1


def test_an_event_does_not_change() -> None:
    event: Event[Any] = Event("X", {})
    with pytest.raises(AttributeError, match=r"does not change: make a new one instead of setting 'type'"):
        event.type = "Y"
    with pytest.raises(AttributeError, match=r"does not change: 'type' stays"):
        del event.type
    with pytest.raises(AttributeError):
        event.other = 1


def test_events_are_equal_if_everything_but_the_delivery_is() -> None:
    one, same = Event("X", {"a": 1}, id=ID, headers={"h": "v"}), Event("X", {"a": 1}, id=ID, headers={"h": "v"})
    assert one == same
    assert hash(one) == hash(same)
    assert len({one, same}) == 1
    assert one != Event("X", {"a": 1}, id=uuid4(), headers={"h": "v"})
    assert one != Event("X", {"a": 2}, id=ID, headers={"h": "v"})
    assert one != Event("X", {"a": 1}, id=ID)
    assert one != "X"


def test_an_event_can_be_copied_and_pickled() -> None:
    event = Event("X", {"a": [1]}, aggregate=("order", 1), headers={"h": "v"}, occurred_at=WHEN)
    for twin in (copy.copy(event), copy.deepcopy(event), pickle.loads(pickle.dumps(event))):
        assert twin == event
        with pytest.raises(TypeError):
            twin.headers["x"] = "y"  # type: ignore[index]
    assert copy.deepcopy(event).payload["a"] is not event.payload["a"]


def test_further_headers_make_another_event_with_the_same_id() -> None:
    event = Event("X", {"a": [1]}, aggregate=("order", 1), headers={"h": "v"}, occurred_at=WHEN)
    carried = carrying(event, {"traceparent": "00-1"})
    assert (carried.headers, event.headers) == ({"h": "v", "traceparent": "00-1"}, {"h": "v"})
    assert carrying(carried, {}) == carried
    assert (carried.id, carried.payload, carried.occurred_at) == (event.id, event.payload, WHEN)
    with pytest.raises(TypeError):
        carried.headers["x"] = "y"  # type: ignore[index]


def test_an_event_shows_what_it_is() -> None:
    assert repr(Event("Ping", {"a": 1}, id=ID)) == f"Event('Ping', {{'a': 1}}, id='{ID}')"
    assert "aggregate=('order', '7')" in repr(Event("X", {}, aggregate=("order", 7)))


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ((42, "OrderPlaced", {"total": 42}), "307c1c1b5d6fe0ce5a8671cc245c74c8"),
        (("42", "OrderPlaced", {"total": 42}), "307c1c1b5d6fe0ce5a8671cc245c74c8"),
        ((ID, "OrderPlaced", {"b": 1, "a": [1, {"d": 2, "c": None}]}), "6dcc56d993cb4506da73a39e1319807f"),
        (("Straße", "Überwiesen", {"Betrag": "5 €", "ä": 1, "z": 2}), "e15e94dc6f8b8fa7eeaaf775e3d77eb0"),
        (("東京", "注文", {"名前": "太郎", "数": 3}), "35c10df71e6572a715cd427802938eab"),
        (("1", "X", 'line\n"quoted" \\ / \u2028'), "26ba0aac3389ebc96d34204c234f67dd"),
        (("1", "X", [1.0, 1, 1e100, -0.0, True]), "45207e99c4b1f6466ea400a29d47a507"),
    ],
)
def test_the_deterministic_key_is_fixed_by_vectors(arguments: tuple[Any, str, object], key: str) -> None:
    assert Event.key_for(*arguments) == key


def test_the_deterministic_key_does_not_depend_on_the_order_or_python_type_of_keys() -> None:
    key = Event.key_for(1, "X", {"10": 1, "2": 2, "a": 3})
    assert Event.key_for(1, "X", {"a": 3, 2: 2, 10: 1}) == key
    assert Event.key_for(1, "X", OrderStruct(1, ID)) == Event.key_for(1, "X", {"article": str(ID), "orderId": 1})


def test_the_deterministic_key_of_what_json_cannot_say_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="payload of 'X': NaN"):
        Event.key_for(1, "X", math.nan)
