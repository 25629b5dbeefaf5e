"""What a message looks like in HTTP, and its signature."""

import base64
import json
from urllib.parse import unquote

import pytest

from pillarbox.brokers.webhook.signature import read_key, sign
from pillarbox.brokers.webhook.wire import id_of, pack
from pillarbox.core.message import Message

HEADERS = {
    "id": "7",
    "type": "OrderPlaced",
    "aggregate_type": "order",
    "aggregate_id": "42",
    "content_type": "application/json",
    "number": "3",
    "tenant": "Müller & Söhne",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


def test_headers_are_named_and_written_as_documented() -> None:
    assert pack(Message("order-events", "42", HEADERS, b"{}")) == {
        "pillarbox-topic": "order-events",
        "pillarbox-id": "7",
        "pillarbox-type": "OrderPlaced",
        "pillarbox-aggregate-type": "order",
        "pillarbox-aggregate-id": "42",
        "content-type": "application/json",
        "pillarbox-number": "3",
        "pillarbox-tenant": "M%C3%BCller%20&%20S%C3%B6hne",
        "traceparent": HEADERS["traceparent"],
    }


@pytest.mark.parametrize(
    "name",
    ["Tenant", "tenant_id", "aggregate-id", "topic", "key", "exact", "replay", "ten ant", "größe", "a:b", "-a", "a--b"],
)
def test_a_name_that_http_would_not_keep_goes_into_one_header(name: str) -> None:
    packed = pack(Message("t", None, {"id": "7", name: 'x "y" ü\r\nz'}, b""))
    assert json.loads(unquote(packed.pop("pillarbox-exact"))) == {"headers": {name: 'x "y" ü\r\nz'}}
    assert packed == {"pillarbox-topic": "t", "pillarbox-id": "7"}


@pytest.mark.parametrize(
    "name",
    ["host", "content-length", "transfer-encoding", "authorization", "webhook-signature", "webhook-id", "cookie"],
)
def test_an_events_own_header_cannot_pose_as_one_of_http(name: str) -> None:
    assert pack(Message("t", None, {name: "x"}, b"")) == {"pillarbox-topic": "t", f"pillarbox-{name}": "x"}


@pytest.mark.parametrize(
    "text", ["a\r\nhost: evil", "a\nb", "a\0b", " a ", "ü", "\x7f", '"', "%41", "a\u2028b", "a\tb"]
)
def test_no_value_breaks_out_of_its_header(text: str) -> None:
    headers = {"id": text, "own": text, "content_type": text, "traceparent": text, "ce_source": text}
    for value in pack(Message(text, text, headers, b"")).values():
        assert value.isascii()
        assert value.isprintable()
        assert value == value.strip()


def test_the_key_is_a_header_of_its_own_where_no_other_says_it() -> None:
    assert pack(Message("t", "k ü", {}, b""))["pillarbox-key"] == "k%20%C3%BC"
    assert "pillarbox-key" not in pack(Message("t", "42", {"aggregate_id": "42"}, b""))
    exact = pack(Message("t", None, {"aggregate_id": "42"}, b""))["pillarbox-exact"]
    assert json.loads(unquote(exact)) == {"key": None}


@pytest.mark.parametrize(
    ("headers", "body", "id"),
    [
        ({"id": "7"}, b"", "7"),
        ({"ce_id": "8", "ce_specversion": "1.0"}, b"", "8"),
        ({"content-type": "application/cloudevents+json"}, b'{"specversion":"1.0","id":"9","type":"T"}', "9"),
        ({"id": "a\r\nb"}, b"", "a%0D%0Ab"),
    ],
)
def test_the_id_is_the_events(headers: dict[str, str], body: bytes, id: str) -> None:
    assert id_of(Message("t", None, headers, body)) == id


def test_a_message_without_an_id_gets_one() -> None:
    message = Message("t", None, {"content-type": "application/cloudevents+json"}, b"no JSON")
    assert len(id_of(message)) == 32


def test_the_signature_is_the_one_of_the_specification() -> None:
    # The example that the libraries of Standard Webhooks test themselves with.
    key = read_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = sign([key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_every_active_key_signs() -> None:
    one, other = b"1" * 24, b"2" * 24
    assert sign([one, other], "7", 1, b"x").split(" ") == [sign([one], "7", 1, b"x"), sign([other], "7", 1, b"x")]


def test_a_key_is_read_with_and_without_padding() -> None:
    key = b"x" * 25
    encoded = base64.b64encode(key).decode()
    assert read_key(f"whsec_{encoded}") == read_key(f"whsec_{encoded.rstrip('=')}") == key
