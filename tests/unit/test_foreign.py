"""Where messages that are not ours say what they are."""

from typing import Any
from uuid import UUID

import pytest

from pillarbox.core.foreign import read_aggregate, read_id, read_type, reader_of, readers_of
from pillarbox.core.message import Delivery, Message, decode, identity, restated
from pillarbox.errors import ConfigError, DecodeError

BODY = b'{"kind": "Placed", "order": {"id": 7, "note": null}, "a.b": 1, "list": [1]}'
MESSAGE = Message("legacy", "k-1", {"message-id": "m-1", "empty": ""}, BODY)


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("key", "k-1"),
        ("header message-id", "m-1"),
        ("header  message-id", "m-1"),
        ("header absent", None),
        ("body kind", "Placed"),
        ("body order.id", 7),
        ("body order.note", None),
        ("body order.absent.deeper", None),
        ("body list.0", None),
        ("is OrderPlaced", "OrderPlaced"),
    ],
)
def test_a_place_is_read(place: str, found: object) -> None:
    reader = reader_of("type", place)
    assert reader is not None
    assert reader(MESSAGE) == found


def test_what_is_ours_needs_no_reader() -> None:
    assert reader_of("id", "ours") is None
    assert readers_of("legacy", "ours", "ours", "ours") is None


@pytest.mark.parametrize("place", ["", "headr x", "header", "body", "body a..b", "key x", "ours x", "is", "message-id"])
def test_what_is_no_place_is_refused_with_examples(place: str) -> None:
    with pytest.raises(ConfigError, match=r'type: .* is no place in a message: write .*"header message-id"'):
        reader_of("type", place)


@pytest.mark.parametrize("setting", ["id", "key"])
def test_only_a_type_is_the_same_for_all(setting: str) -> None:
    with pytest.raises(ConfigError, match="is no place"):
        reader_of(setting, "is 7")


def test_a_key_stands_for_an_aggregate_of_its_topic() -> None:
    readers = readers_of("legacy", "ours", "ours", "body order.id")
    assert readers is not None
    assert readers.aggregate is not None
    assert read_aggregate(readers.aggregate, MESSAGE) == ("legacy", "7")
    assert read_aggregate(readers.aggregate, MESSAGE._replace(body=b"{}")) == ("", "")


@pytest.mark.parametrize(("value", "id"), [("m-1", "m-1"), (7, "7"), (UUID(int=7), str(UUID(int=7)))])
def test_an_id_is_a_text_a_whole_number_or_a_uuid(value: Any, id: str) -> None:
    assert read_id(lambda _: value, MESSAGE) == id


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "there is none, so a copy"),
        ("", "there is none, so a copy"),
        (True, "True is no text"),
        (1.5, "1.5 is no text"),
        (b"m", "b'm' is no text"),
        ("x" * 256, "256 characters"),
        ("a\0b", "NUL"),
    ],
)
def test_what_is_no_id_is_refused(value: Any, says: str) -> None:
    with pytest.raises(DecodeError, match=rf"the id of the message on 'legacy' cannot be read: .*{says}"):
        read_id(lambda _: value, MESSAGE)


def test_a_reader_that_raises_is_named_with_its_error() -> None:
    with pytest.raises(DecodeError, match="the id of the message on 'legacy' cannot be read: KeyError: 'absent'"):
        read_id(lambda message: message.headers["absent"], MESSAGE)


def test_a_body_that_is_no_json_is_refused() -> None:
    reader = reader_of("type", "body kind")
    assert reader is not None
    with pytest.raises(DecodeError, match="the type of the message on 'legacy' cannot be read: the body is not"):
        read_type(reader, MESSAGE._replace(body=b"{oops"))


@pytest.mark.parametrize("value", ["order", ("order",), ("order", None), ("", "7"), ["order", "7"]])
def test_what_is_no_aggregate_is_refused(value: Any) -> None:
    with pytest.raises(DecodeError, match="the aggregate of the message on 'legacy' cannot be read"):
        read_aggregate(lambda _: value, MESSAGE)


def test_an_aggregate_may_be_missing() -> None:
    assert read_aggregate(lambda _: None, MESSAGE) == ("", "")


ITS = {"id": "m-1", "type": "Placed", "aggregate_type": "order", "aggregate_id": "7"}


def test_restated_it_is_an_event_and_keeps_its_headers() -> None:
    event = decode(Delivery(restated(MESSAGE, ITS)))
    assert (event.type, event.aggregate, event.payload["kind"]) == ("Placed", ("order", "7"), "Placed")
    assert event.headers == {"message-id": "m-1", "empty": "", "id": "m-1"}


def test_headers_that_mean_something_in_ours_mean_nothing_in_a_message_with_an_id_elsewhere() -> None:
    message = MESSAGE._replace(headers={"number": "A-17", "occurred_at": "noon", "idempotency_key": "k", "id": "9"})
    its = identity(restated(message, ITS))
    assert (its.id, its.number) == ("m-1", None)
    event = decode(Delivery(restated(message, ITS)))
    assert (event.number, event.occurred_at, event.idempotency_key) == (None, None, None)


def test_headers_of_ours_stay_where_only_the_key_is_elsewhere() -> None:
    message = Message("t", "k", {"id": str(UUID(int=1)), "type": "Placed", "number": "3", "tenant": "blue"}, b"{}")
    event = decode(Delivery(restated(message, {"aggregate_type": "t", "aggregate_id": "k"})))
    assert (event.id, event.number, event.aggregate) == (UUID(int=1), 3, ("t", "k"))
    assert event.headers == {"tenant": "blue"}


@pytest.mark.parametrize("name", ["content-type", "content_type"])
def test_a_body_that_is_no_json_stays_bytes(name: str) -> None:
    message = Message("legacy", None, {name: "text/csv"}, b"7,42")
    event = decode(Delivery(restated(message, ITS)))
    assert (event.payload, event.content_type) == (b"7,42", "text/csv")


def test_a_replay_stays_one() -> None:
    message = MESSAGE._replace(headers={"pillarbox-replay": "again-1"})
    assert Delivery(restated(message, ITS)).replay == "again-1"


def test_an_id_that_is_no_uuid_becomes_always_the_same_one() -> None:
    ids = [decode(Delivery(Message("t", None, {"id": id, "type": "P"}, b"{}"))).id for id in ("m-1", "m-1", "m-2")]
    assert ids[0] == ids[1] == UUID("316d6ce5-c887-581c-b2ba-a80f2528acaa")
    assert ids[2] != ids[0]


def test_an_id_that_is_a_uuid_stays_and_is_no_header() -> None:
    id = UUID("9a3f2c1e-0000-5000-8000-000000000001")
    event = decode(Delivery(Message("t", None, {"id": str(id), "type": "P"}, b"{}")))
    assert (event.id, event.headers) == (id, {})
