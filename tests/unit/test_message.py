"""Messages: what an entry looks like on the wire in each format, and that it is read back as the same event."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from cloudevents.core.bindings import http, kafka
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core.entry import Entry
from pillarbox.core.event import RESERVED_HEADERS, RESERVED_PREFIXES, Event
from pillarbox.core.message import REPLAY_HEADER, Delivery, Message, decode, encode, encode_all, identity, instant
from pillarbox.errors import DecodeError, EncodeError
from tests.unit.refusals import read_or_refused

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
WHEN = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
ADDED = datetime(2026, 3, 4, 6, tzinfo=UTC)
FORMATS = ["plain", "cloudevents", "cloudevents-structured"]


def entry_of(event: Event[Any], **changes: Any) -> Entry:
    """Store an event, as a store would."""
    kind, id = event.aggregate or ("", "")
    headers = json.dumps(dict(event.headers)) if event.headers else None
    return Entry(
        1, str(event.id), kind, id, event.type, event.topic or "orders", event.data, event.content_type, headers,
        event.idempotency_key, event.number, None, event.occurred_at, ADDED,
    )._replace(**changes)  # fmt: skip


def order(**changes: Any) -> Entry:
    event = Event(
        "OrderPlaced", {"total": 42}, aggregate=("order", 7), id=ID, headers={"tenant": "acme", "traceparent": "00-1"},
        idempotency_key="k", occurred_at=WHEN, number=3,
    )  # fmt: skip
    return entry_of(event, **changes)


def test_a_plain_message_has_the_payload_as_its_body_and_the_rest_in_headers() -> None:
    assert encode(order(), 9) == Message(
        topic="orders",
        key="7",
        headers={
            "id": str(ID),
            "type": "OrderPlaced",
            "content_type": "application/json",
            "aggregate_type": "order",
            "aggregate_id": "7",
            "number": "3",
            "idempotency_key": "k",
            "occurred_at": "2026-03-04T05:06:07.000089Z",
            "tenant": "acme",
            "traceparent": "00-1",
        },
        body=b'{"total":42}',
        ticket=9,
    )


def test_an_event_without_an_aggregate_has_no_key_and_only_the_headers_that_say_something() -> None:
    message = encode(entry_of(Event("Ping", {}, id=ID)), 1)
    assert message.key is None
    assert message.headers == {"id": str(ID), "type": "Ping", "content_type": "application/json"}


def test_a_cloudevent_has_its_attributes_in_headers_and_the_same_body() -> None:
    message = encode(order(), 9, "cloudevents")
    assert (message.topic, message.key, message.body, message.ticket) == ("orders", "7", b'{"total":42}', 9)
    assert message.headers == {
        "ce_specversion": "1.0",
        "ce_id": str(ID),
        "ce_source": "/order",
        "ce_type": "OrderPlaced",
        "ce_time": "2026-03-04T05:06:07.000089Z",
        "ce_subject": "7",
        "ce_aggregatetype": "order",
        "ce_partitionkey": "7",
        "ce_number": "3",
        "ce_idempotencykey": "k",
        "content-type": "application/json",
        "tenant": "acme",
        "traceparent": "00-1",
    }


def test_a_structured_cloudevent_holds_the_payload_as_it_stands() -> None:
    message = encode(order(data='{"total": 42.00}'), 9, "cloudevents-structured")
    assert message.headers["content-type"] == "application/cloudevents+json; charset=UTF-8"
    assert message.body.endswith(b',"data":{"total": 42.00}}')
    assert json.loads(message.body)["data"] == {"total": 42.0}
    assert json.loads(message.body)["datacontenttype"] == "application/json"


def test_a_structured_cloudevent_holds_bytes_in_base64() -> None:
    message = encode(order(data=b"\x00\xff", content_type="application/avro"), 9, "cloudevents-structured")
    assert json.loads(message.body)["data_base64"] == "AP8="


def test_the_time_of_a_cloudevent_is_when_it_was_added_unless_it_says_when_it_occurred() -> None:
    message = encode(order(occurred_at=None), 9, "cloudevents")
    assert message.headers["ce_time"] == "2026-03-04T06:00:00.000000Z"


def test_a_plain_insert_needs_no_content_type() -> None:
    for format in FORMATS:
        message = encode(order(content_type=None), 1, format)
        assert decode(Delivery(message)).content_type == "application/json"


def test_headers_of_a_plain_insert_become_texts_and_cannot_replace_ours() -> None:
    own = {"n": 5, "yes": True, "deep": {"a": 1}, "id": "x", "Content-Type": "x", "ce_id": "x"}
    for format in FORMATS:
        message = encode(order(headers=json.dumps(own)), 1, format)
        assert decode(Delivery(message)).id == ID
        assert decode(Delivery(message)).headers == {"n": "5", "yes": "true", "deep": '{"a": 1}'}


@pytest.mark.parametrize("headers", ["{", "[]", "5", '"x"', "[" * 100_000])
def test_headers_that_are_no_json_object_cannot_be_encoded(headers: str) -> None:
    with pytest.raises(EncodeError, match=f"event {ID}: its headers are no JSON object"):
        encode(order(headers=headers), 1)


@pytest.mark.parametrize("data", ["{", "", "NaN", b"\xff", "[" * 100_000])
def test_a_payload_that_is_no_json_cannot_be_put_into_a_structured_cloudevent(data: str | bytes) -> None:
    with pytest.raises(EncodeError, match=f"event {ID}: its payload is not application/json"):
        encode(order(data=data), 1, "cloudevents-structured")


@dataclass
class Placed:
    total: int


@pytest.mark.parametrize("format", FORMATS)
def test_a_message_is_read_into_the_model_of_its_type(format: str) -> None:
    message = encode(order(), 1, format)
    event = decode(Delivery(message), {"OrderPlaced": Placed}.get)
    assert event.payload == Placed(42)
    with pytest.raises(DecodeError, match="does not fit Placed"):
        decode(Delivery(encode(order(data="{}"), 1, format)), {"OrderPlaced": Placed}.get)


@pytest.mark.parametrize("format", FORMATS)
def test_identity_is_read_without_the_payload(format: str) -> None:
    assert identity(encode(order(), 1, format)) == (str(ID), "OrderPlaced", "order", "7", order().number)
    assert identity(encode(entry_of(Event("Ping", {}, id=ID)), 1, format)) == (str(ID), "Ping", "", "", None)


def test_identity_of_a_message_that_is_not_ours_is_empty() -> None:
    assert identity(Message("t", None, {}, b"")) == ("", "", "", "", None)


def test_a_delivery_knows_its_topic_and_its_replay() -> None:
    delivery = Delivery(Message("t", None, {REPLAY_HEADER: "r1", "id": str(ID), "type": "X"}, b"{}"))
    assert (delivery.topic, delivery.replay) == ("t", "r1")
    event = decode(delivery)
    assert event.delivery is delivery
    assert event.headers == {}
    assert Delivery(Message("t", None, {}, b"")).replay is None


@pytest.mark.parametrize("format", FORMATS)
def test_the_id_of_a_replay_comes_out_on_the_other_side(format: str) -> None:
    replayed, first = (encode(order(replay=id), 1, format) for id in ("20260131-120000-0a1b2c", ""))
    assert Delivery(replayed).replay == "20260131-120000-0a1b2c"
    assert decode(Delivery(replayed)).headers == decode(Delivery(first)).headers
    assert REPLAY_HEADER not in first.headers


@pytest.mark.parametrize("format", FORMATS)
def test_no_event_can_pose_as_a_replay(format: str) -> None:
    posing = order(headers='{"pillarbox-replay": "mine", "Pillarbox-Replay": "mine"}')
    assert Delivery(encode(posing, 1, format)).replay is None
    assert Delivery(encode(posing._replace(replay="r1"), 1, format)).replay == "r1"


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
names = text.filter(
    lambda name: (
        name.isprintable() and name.lower() not in RESERVED_HEADERS and not name.lower().startswith(RESERVED_PREFIXES)
    )
)
payloads = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def events(draw: st.DrawFn) -> Event[Any]:
    payload, content_type = draw(
        st.tuples(payloads, st.sampled_from([None, "application/vnd.a+json"]))
        | st.tuples(st.binary(max_size=30), st.sampled_from(["application/avro", "text/plain", "x/y; charset=UTF-8"]))
    )
    aggregate = draw(st.none() | st.tuples(text, text | st.integers() | st.uuids()))
    return Event(
        draw(text), payload, aggregate=aggregate, topic=draw(text), content_type=content_type,
        headers=draw(st.dictionaries(names, text | st.just(""), max_size=3)),
        idempotency_key=draw(st.none() | text),
        occurred_at=draw(st.none() | st.datetimes(min_value=datetime(1000, 1, 1), timezones=st.just(UTC))),
        number=draw(st.none() | st.integers(0, 2**63 - 1)) if aggregate else None,
    )  # fmt: skip


@given(events(), st.sampled_from(FORMATS))
def test_an_event_comes_back_as_it_was(event: Event[Any], format: str) -> None:
    message = encode(entry_of(event), 1, format)
    if format != "cloudevents-structured":
        assert message.body == (event.data if isinstance(event.data, bytes) else event.data.encode())
    received = decode(Delivery(message))
    time = event.occurred_at if format == "plain" else event.occurred_at or ADDED
    assert received.occurred_at == time
    same = [name for name in Event.__slots__ if name not in ("occurred_at", "delivery", "data")]
    assert {n: getattr(received, n) for n in same} == {n: getattr(event, n) for n in same}
    assert json_or_bytes(received) == json_or_bytes(event)


token = st.text("abcdefghij0123456789!#$&^_.+-", min_size=1, max_size=12)
kinds = st.tuples(token, token, st.sampled_from(["", "; charset=UTF-8", ";x=y"])).map("{0[0]}/{0[1]}{0[2]}".format)


@given(
    kinds | st.sampled_from(["application/cloudevents+json", "Application/CloudEvents+JSON ; charset=UTF-8"]),
    payloads | st.fixed_dictionaries({"specversion": st.just("1.0"), "id": st.uuids().map(str), "type": text}),
    st.sampled_from(FORMATS),
)
def test_an_event_of_any_content_type_keeps_its_identity_and_its_payload(
    content_type: str, payload: object, format: str
) -> None:
    data = json.dumps(payload).encode()
    sent = order(data=data, content_type=content_type)
    received = decode(Delivery(encode(sent, 1, format)))
    assert identity(encode(sent, 1, format)) == (str(ID), "OrderPlaced", "order", "7", order().number)
    assert (received.id, received.type, received.content_type) == (ID, "OrderPlaced", content_type)
    assert received.payload == (payload if "+json" in content_type.lower() or "/json" in content_type else data)


@pytest.mark.parametrize("format", ["plain", "cloudevents"])
def test_a_cloudevent_of_somebody_else_can_be_a_payload(format: str) -> None:
    theirs = {"specversion": "1.0", "id": "theirs", "type": "Theirs", "source": "/order", "data": 1}
    message = encode(order(data=json.dumps(theirs), content_type="application/cloudevents+json"), 1, format)
    assert identity(message) == (str(ID), "OrderPlaced", "order", "7", order().number)
    assert decode(Delivery(message)).payload == theirs


def test_a_body_that_only_says_that_it_is_a_cloudevent_leaves_the_event_its_identity() -> None:
    message = encode(order(data=b"{", content_type="application/cloudevents+json"), 1, "cloudevents")
    assert identity(message) == (str(ID), "OrderPlaced", "order", "7", order().number)
    with pytest.raises(DecodeError):
        decode(Delivery(message))


def test_a_structured_cloudevent_may_repeat_its_attributes_as_headers() -> None:
    message = encode(order(), 1, "cloudevents-structured")
    repeated = encode(order(), 1, "cloudevents").headers
    event = decode(Delivery(message._replace(headers={**repeated, **message.headers})))
    assert (event.id, event.payload, event.content_type) == (ID, {"total": 42}, "application/json")


def json_or_bytes(event: Event[Any]) -> object:
    return event.data if isinstance(event.data, bytes) else json.loads(event.data)


@given(events())
def test_the_cloudevents_sdk_reads_what_we_write(event: Event[Any]) -> None:
    for format in ("cloudevents", "cloudevents-structured"):
        message = encode(entry_of(event), 1, format)
        headers = {name: value.encode() for name, value in message.headers.items()}
        read = kafka.from_kafka_event(kafka.KafkaMessage(headers, message.key, message.body))
        assert (read.get_id(), read.get_type(), read.get_specversion()) == (str(event.id), event.type, "1.0")
        assert read.get_time() == (event.occurred_at or ADDED)
        assert read.get_subject() == (event.aggregate[1] if event.aggregate else None)
        assert read.get_extension("aggregatetype") == (event.aggregate[0] if event.aggregate else None)
        assert read.get_datacontenttype() == event.content_type
        if isinstance(event.payload, bytes):
            assert as_bytes(read.get_data()) == event.payload
        else:
            assert read.get_data() == event.payload


def as_bytes(data: Any) -> bytes:
    """The SDK gives bytes as text if they happen to be UTF-8, and nothing if there are none."""
    return data.encode() if isinstance(data, str) else data or b""


@pytest.mark.parametrize("binding", [kafka, http])
@pytest.mark.parametrize(
    ("content_type", "data", "payload"),
    [
        ("application/json", {"total": [42, "ü"]}, {"total": [42, "ü"]}),
        ("application/json", None, None),
        ("text/plain", "grüß", "grüß".encode()),
        ("application/avro", b"\x00\xff", b"\x00\xff"),
    ],
)
def test_we_read_what_the_cloudevents_sdk_writes(binding: Any, content_type: str, data: Any, payload: Any) -> None:
    attributes = {
        "id": str(ID), "type": "OrderPlaced", "source": "/shop", "time": WHEN, "datacontenttype": content_type,
        "subject": "7", "aggregatetype": "order", "partitionkey": "7", "number": 3,
    }  # fmt: skip
    written = CloudEvent(attributes, data)
    for message in (binding.to_binary_event(written), binding.to_structured_event(written)):
        headers = {n: v.decode() if isinstance(v, bytes) else v for n, v in message.headers.items()}
        body = message.value if binding is kafka else message.body
        event = decode(Delivery(Message("orders", "7", headers, body)))
        assert (event.id, event.type, event.aggregate, event.number) == (ID, "OrderPlaced", ("order", "7"), 3)
        assert (event.occurred_at, event.payload, event.content_type) == (WHEN, payload, content_type)


@pytest.mark.parametrize("prefix", ["ce_", "ce-", "cloudEvents:", "cloudEvents_"])
def test_a_cloudevent_is_recognised_in_every_spelling(prefix: str) -> None:
    headers = {
        f"{prefix}specversion": "1.0",
        f"{prefix}id": str(ID),
        f"{prefix}type": "X",
        "content-type": "text/plain",
    }
    event = decode(Delivery(Message("t", None, headers, b"hello")))
    assert (event.id, event.type, event.payload, event.headers) == (ID, "X", b"hello", {})


def test_a_structured_cloudevent_with_text_in_another_format_gives_its_bytes() -> None:
    document = {"specversion": "1.0", "id": str(ID), "type": "X", "datacontenttype": "text/plain", "data": "grüß"}
    assert decode(structured(document)).payload == "grüß".encode()


def test_null_attributes_of_a_structured_cloudevent_are_absent() -> None:
    document = {"id": str(ID), "type": "X", "time": None, "number": None, "datacontenttype": None, "data_base64": None}
    event = decode(structured(document))
    assert (event.occurred_at, event.number, event.content_type, event.payload) == (
        None,
        None,
        "application/json",
        None,
    )


def test_the_time_is_read_in_utc() -> None:
    event = decode(plain(occurred_at="2026-03-04T07:06:07.000089+02:00"))
    assert event.occurred_at == WHEN
    assert event.occurred_at.utcoffset() == timedelta(0)


def plain(body: bytes = b"{}", **headers: str) -> Delivery:
    return Delivery(Message("orders", None, {"id": str(ID), "type": "X"} | headers, body))


def structured(document: object) -> Delivery:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Delivery(Message("orders", None, {"content-type": "application/cloudevents+json"}, body))


@pytest.mark.parametrize(
    ("delivery", "words"),
    [
        (Delivery(Message("orders", None, {}, b"{}")), "on 'orders' has no 'id' header, so it is not an event"),
        (Delivery(Message("orders", None, {"id": str(ID)}, b"{}")), "has no 'type' header"),
        (plain(id=""), "a header of the message on 'orders' is malformed: the id is empty"),
        (plain(number="x"), "the number 'x' is not a whole number"),
        (plain(number="-1"), "not a whole number"),
        (plain(number="٣"), "not a whole number"),
        (plain(number=str(2**63)), "not a whole number"),
        (plain(number="9" * 5000), "not a whole number"),
        (plain(occurred_at="yesterday"), "Invalid isoformat"),
        (plain(occurred_at="2026-03-04T05:06:07"), "has no time zone"),
        (plain(occurred_at="0001-01-01T00:00:00+14:00"), "malformed"),
        (plain(b"{"), "the body is not application/json"),
        (plain(b""), "the body is not application/json"),
        (plain("{}".encode("utf-16")), "the body is not application/json"),
        (plain(b'"\xed\xa0\x80"'), "the body is not application/json"),
        (structured(b"{"), "on 'orders' is no CloudEvent"),
        (structured([1]), "is no CloudEvent: it is not an object"),
        (structured({"data_base64": "%"}), "is no CloudEvent"),
        (structured({"data_base64": 5}), "is no CloudEvent"),
        (structured({"data_base64": "ü"}), "is no CloudEvent"),
        (structured({"data": "\ud800"}), "is no CloudEvent"),
        (structured(b'{"data":NaN}'), "is no CloudEvent"),
        (structured(b'{"data":' + b"[" * 100_000), "is no CloudEvent"),
        (structured({"id": str(ID)}), "has no 'type' header"),
        (structured({"id": "", "type": "X"}), "malformed"),
        (structured({"id": str(ID), "type": "X", "number": True}), "not a whole number"),
    ],
)
def test_a_malformed_message_is_a_decode_error(delivery: Delivery, words: str) -> None:
    with pytest.raises(DecodeError) as raised:
        decode(delivery)
    assert words in str(raised.value)


fuzz = st.text(max_size=12) | st.sampled_from(
    [str(ID), "1.0", "5", "application/json", "application/cloudevents+json", "x/y", "2026-03-04T05:06:07Z", ""]
)
header_names = st.sampled_from(
    ["id", "type", "number", "occurred_at", "content_type", "content-type", "aggregate_id", "ce_specversion", "ce_id",
     "ce_type", "ce_time", "ce_number", "ce-specversion", "pillarbox-headers", "other"]
)  # fmt: skip
documents = st.dictionaries(
    st.sampled_from(["id", "type", "time", "number", "data", "data_base64", "datacontenttype", "specversion", "x"]),
    fuzz | st.none() | st.integers() | st.lists(fuzz) | st.floats(),
).map(lambda document: json.dumps(document).encode())


@given(st.dictionaries(header_names, fuzz), st.binary(max_size=20) | documents)
def test_no_message_raises_anything_but_a_decode_error(headers: dict[str, str], body: bytes) -> None:
    delivery = Delivery(Message("t", None, headers, body))
    assert isinstance(read_or_refused(decode, delivery), Event | DecodeError)
    assert isinstance(read_or_refused(identity, delivery.message), tuple | DecodeError)


def test_an_instant_is_written_with_a_z() -> None:
    assert instant(WHEN) == "2026-03-04T05:06:07.000089Z"


@pytest.mark.parametrize("microsecond", [0, 100_000, 10])
def test_an_instant_always_has_six_digits_behind_the_second_as_debezium_writes_it(microsecond: int) -> None:
    assert instant(WHEN.replace(microsecond=microsecond)) == f"2026-03-04T05:06:07.{microsecond:06}Z"


def test_an_instant_of_another_zone_is_written_in_utc() -> None:
    assert instant(WHEN.astimezone(timezone(timedelta(hours=2)))) == instant(WHEN)


def packed(headers: str, **more: str) -> Delivery:
    return plain(b"{}", **{"pillarbox-headers": headers} | more)


def test_headers_that_debezium_packed_into_one_are_the_events_own_again() -> None:
    own = {"tenant": "acme", "n": 5, "deep": {"a": 1}, "id": "forged", "Pillarbox-Headers": "{}", "ce_id": "1"}
    event = decode(packed(json.dumps(own), number="7"))
    assert event.headers == {"tenant": "acme", "n": "5", "deep": '{"a": 1}'}
    assert (event.id, event.number) == (ID, 7)


def test_both_carriers_give_the_same_headers() -> None:
    text = json.dumps({"tenant": "acme", "empty": "", "name": "Zoë", "n": None, "pillarbox-replay": "r1"})
    by_relay = decode(Delivery(encode(order(headers=text), 1)))
    assert (
        decode(packed(text)).headers == by_relay.headers == {"tenant": "acme", "empty": "", "name": "Zoë", "n": "null"}
    )


def test_a_header_that_came_beside_the_packed_ones_stays() -> None:
    assert decode(packed('{"tenant": "acme"}', hop="1", tenant="other")).headers == {"hop": "1", "tenant": "acme"}


@pytest.mark.parametrize("headers", ["", "{", "[]", "5", '"x"', "null", "[" * 100_000])
def test_packed_headers_that_are_no_json_object_are_a_decode_error(headers: str) -> None:
    with pytest.raises(
        DecodeError, match="the headers in pillarbox-headers of the message on 'orders' are no JSON obj"
    ):
        decode(packed(headers))


def test_packed_headers_with_half_a_character_are_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="on 'orders' hold a lone surrogate, which is no text"):
        decode(packed('{"a": "\\ud800"}'))


def test_an_event_with_malformed_packed_headers_still_has_its_identity() -> None:
    assert identity(packed("{").message) == (str(ID), "X", "", "", None)


@pytest.mark.parametrize("headers", ['{"a": "\\ud800"}', '{"\\udfff": "a"}', '{"a": "\udcff"}'])
def test_headers_with_half_a_character_cannot_be_encoded(headers: str) -> None:
    with pytest.raises(EncodeError, match="lone surrogate"):
        encode(order(headers=headers), 1)


def test_headers_with_a_whole_character_in_two_escapes_can() -> None:
    assert encode(order(headers='{"a": "\\ud83d\\ude00"}'), 1).headers["a"] == "\U0001f600"


@pytest.mark.parametrize("column", ["data", "topic", "event_type", "aggregate_id"])
def test_text_that_is_no_utf8_cannot_be_encoded(column: str) -> None:
    odd = entry_of(Event("Placed", 1, aggregate=("order", 1)), **{column: "a\udce4b"})
    with pytest.raises(EncodeError, match=r"it has text that is no UTF-8: '\\udce4"):
        encode(odd, 0)


PLAIN_ENTRIES = st.builds(
    lambda kind, id, type, topic, text, content_type: order(
        aggregate_type=kind, aggregate_id=id, event_type=type, topic=topic, data=text, content_type=content_type,
        headers=None, idempotency_key=None, number=None, occurred_at=None,
    ),
    st.sampled_from(["order", "börse"]), st.sampled_from(["7", "8", "ä", ""]), st.sampled_from(["OrderPlaced", "\1"]),
    st.sampled_from(["orders", "päckchen"]), st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from([None, "application/json"]),
)  # fmt: skip
ODD_CHANGES = st.sampled_from(
    [{}, {}, {}, {"data": b"\xff"}, {"headers": '{"tenant":"acme"}'}, {"number": 3}, {"idempotency_key": "k"},
     {"occurred_at": WHEN}, {"replay": "r"}, {"available_at": WHEN}]
)  # fmt: skip


@given(
    st.lists(st.builds(lambda entry, changes: entry._replace(**changes), PLAIN_ENTRIES, ODD_CHANGES)), st.integers(1, 9)
)
def test_many_are_encoded_as_one_by_one(entries: list[Entry], first: int) -> None:
    assert encode_all(entries, first) == [encode(entry, ticket) for ticket, entry in enumerate(entries, first)]


@pytest.mark.parametrize(
    "change",
    [{"headers": "[]"}, {"topic": "\ud800"}, {"event_type": "\ud800"}, {"data": "\ud800"}, {"content_type": "\ud800"},
     {"topic": "a\0b"}, {"event_type": "a\0b"}, {"aggregate_type": "a\0b"}, {"aggregate_id": "a\0b"}],
)  # fmt: skip
def test_what_cannot_be_encoded_is_refused_among_many_too(change: dict[str, Any]) -> None:
    plain = order(headers=None, idempotency_key=None, number=None, occurred_at=None)
    with pytest.raises(EncodeError):
        encode_all([plain, plain._replace(**change), plain], 1)
