"""Payloads read back: JSON into plain values, dataclasses, pydantic and msgspec models."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NewType, Optional, TypeVar, Union
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core.payload import from_bytes, into, is_json, to_json
from pillarbox.errors import DecodeError, EncodeError
from tests.unit.refusals import read_or_refused

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
WHEN = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
Cents = NewType("Cents", int)
T = TypeVar("T")


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass(frozen=True)
class Line:
    article: UUID
    price: Decimal
    size: Size = Size.SMALL


@dataclass
class Order:
    id: int
    at: datetime
    lines: list[Line]
    note: str | None = None
    tags: dict[str, int] = field(default_factory=dict)
    box: tuple[int, str] | None = None
    total: int = field(init=False, default=0)


class OrderModel(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")
    line: Line


class OrderStruct(msgspec.Struct, rename="camel"):
    order_id: int
    line: Line


@dataclass
class Mixed:
    model: OrderModel
    struct: OrderStruct


@dataclass
class Picky:
    total: int

    def __post_init__(self) -> None:
        if self.total < 0:
            raise LookupError


@dataclass
class Unresolved:
    other: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Page(Generic[T]):
    size: int


@pytest.mark.parametrize(
    "value",
    [
        Order(1, WHEN, []),
        Order(1, WHEN, [Line(ID, Decimal("9.990"), Size.LARGE)], "Straße 東京", {"a": 1}, (1, "x")),
        OrderModel(orderId=1, line=Line(ID, Decimal("9.99"))),
        OrderStruct(1, Line(ID, Decimal("9.99"))),
        Mixed(OrderModel(orderId=1, line=Line(ID, Decimal(1))), OrderStruct(2, Line(ID, Decimal(2)))),
    ],
)
def test_a_model_is_read_as_it_was_written(value: Any) -> None:
    assert from_bytes(to_json(value).encode(), "application/json", type(value)) == value


@pytest.mark.parametrize(
    ("model", "value", "expected"),
    [
        (int, 5, 5),
        (float, 5, 5.0),
        (str, "x", "x"),
        (bool, True, True),
        (None, None, None),
        (type(None), None, None),
        (Any, [1], [1]),
        (object, [1], [1]),
        (Cents, 5, 5),
        (Annotated[int, "cents"], 5, 5),
        (Literal["a", "b"], "b", "b"),
        (Optional[int], None, None),  # noqa: UP045
        (Union[int, str], "x", "x"),  # noqa: UP007
        (float | int, 5, 5),
        (UUID | str, str(ID), str(ID)),
        (UUID | None, str(ID), ID),
        (Decimal | None, None, None),
        (date, "2026-03-04", date(2026, 3, 4)),
        (datetime, "2026-03-04T05:06:07.000089Z", WHEN),
        (Decimal, "1.10", Decimal("1.10")),
        (Decimal, 3, Decimal(3)),
        (Size, "small", Size.SMALL),
        (list, [1], [1]),
        (list[UUID], [str(ID)], [ID]),
        (set[int], [1, 1], {1}),
        (frozenset[int], [1], frozenset([1])),
        (tuple, [1, 2], (1, 2)),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], [1, "x"], (1, "x")),
        (dict, {"a": 1}, {"a": 1}),
        (dict[str, UUID], {"a": str(ID)}, {"a": ID}),
        (dict[int, str], {"7": "x"}, {7: "x"}),
        (dict[UUID, int], {str(ID): 1}, {ID: 1}),
        (Mapping[str, int], {"a": 1}, {"a": 1}),
        (Sequence[int], [1], [1]),
        (Iterable[int], [1], [1]),
        (Page[int], {"size": 3}, Page(3)),
    ],
)
def test_plain_values_become_what_the_annotation_says(model: Any, value: object, expected: object) -> None:
    result = into(model, value)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("model", "value", "words"),
    [
        (int, "5", "expected int, found '5'"),
        (int, True, "expected int, found True"),
        (float, "x", "expected float"),
        (None, 1, "expected NoneType"),
        (Literal["a"], "b", "expected one of ('a',), found 'b'"),
        (int | None, "x", "fits none of int, NoneType"),
        (UUID, "x", "'x' is no UUID"),
        (Decimal, "x", "'x' is no Decimal"),
        (datetime, "yesterday", "Invalid isoformat"),
        (datetime, 5, "must be str"),
        (Size, "huge", "'huge' is not a valid Size"),
        (list[int], {"a": 1}, "expected a list"),
        (list[int], ["a"], "expected int"),
        (set[Any], [[1]], "unhashable"),
        (tuple[int, str], [1], "zip()"),
        (tuple[int, str], "x", "expected a list"),
        (dict[str, int], [1], "expected an object, found [1]"),
        (dict[int, str], {"x": "y"}, "Expecting value"),
        (Line, [1], "expected an object"),
        (Line, {"article": str(ID)}, "missing 1 required positional argument: 'price'"),
        (Picky, {"total": -1}, "LookupError"),
        (Unresolved, {"other": 1}, "Nowhere"),
        (T, 1, "use pydantic or msgspec"),
        (OrderModel, {"orderId": "x"}, "orderId"),
        (OrderStruct, {"orderId": "x"}, "Expected `int`"),
        (OrderStruct, {}, "missing required field"),
        (OrderModel, None, "valid dictionary"),
    ],
)
def test_a_payload_that_does_not_fit_its_model_is_refused(model: Any, value: object, words: str) -> None:
    with pytest.raises(DecodeError) as raised:
        into(model, value)
    name = getattr(model, "__name__", str(model))
    assert str(raised.value).startswith(f"the payload does not fit {name}: ")
    assert words in str(raised.value)


def test_keys_that_a_dataclass_does_not_know_are_ignored() -> None:
    assert into(Line, {"article": str(ID), "price": "1", "colour": "red"}) == Line(ID, Decimal(1))
    assert into(Order, {"id": 1, "at": WHEN.isoformat(), "lines": [], "total": 9}).total == 0


@pytest.mark.parametrize(
    ("content_type", "answer"),
    [
        ("application/json", True),
        ("Application/JSON ; charset=utf-8", True),
        ("application/vnd.acme.order+json", True),
        ("application/cloudevents+json", True),
        ("application/jsonl", False),
        ("text/plain", False),
        ("", False),
    ],
)
def test_json_is_recognised_by_its_content_type(content_type: str, answer: bool) -> None:
    assert is_json(content_type) is answer


def test_any_other_content_type_stays_bytes() -> None:
    assert from_bytes(b"\xff{", "application/avro", Line) == b"\xff{"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"NaN", b"[Infinity]", b'"\xed\xa0\x80"', "{}".encode("utf-16"), b"[" * 200_000, b"1" * 5000],
)
def test_a_body_that_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(DecodeError, match=r"the body is not application/json: .*; it begins b"):
        from_bytes(body, "application/json")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(values)
def test_whatever_json_can_say_comes_back(value: object) -> None:
    assert from_bytes(to_json(value).encode(), "application/json") == value
    assert from_bytes(to_json(value, canonical=True).encode(), "application/json") == value


PLAIN: Any = None | bool | int | float | str | list | dict
MODELS: list[tuple[Any, Any]] = [  # each with the type of what is read
    (Order, Order),
    (OrderModel, OrderModel),
    (OrderStruct, OrderStruct),
    (Mixed, Mixed),
    (list[Line], list),
    (dict[str, int], dict),
    (dict[Size, UUID], dict),
    (tuple[int, str] | None, tuple | None),
]


@given(st.binary(max_size=40) | st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_body_raises_anything_but_a_decode_error(body: bytes) -> None:
    assert isinstance(read_or_refused(from_bytes, body, "application/json"), PLAIN | DecodeError)
    for model, kind in MODELS:
        assert isinstance(read_or_refused(from_bytes, body, "application/json", model), kind | DecodeError)


@given(values)
def test_no_value_raises_anything_but_a_decode_error(value: object) -> None:
    for model, kind in MODELS:
        assert isinstance(read_or_refused(into, model, value), kind | DecodeError)


def test_a_model_that_cannot_be_written_is_refused() -> None:
    class Holder(msgspec.Struct):
        value: Any

    with pytest.raises(EncodeError, match="turn it into a string or number first"):
        to_json(Holder(object()))
