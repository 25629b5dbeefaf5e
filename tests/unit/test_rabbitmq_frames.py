"""Messages as AMQP frames: written by us, read by the client library, and back."""

from typing import Any

import pamqp.frame
import pytest
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from pillarbox.brokers.rabbitmq.frames import Writer, ack, read
from pillarbox.core.message import Message
from pillarbox.errors import PublishRejected

PLAIN = {"id": "7", "type": "OrderPlaced", "content_type": "application/json", "aggregate_id": "42"}


def writer(frame_max: int = 131_072) -> Writer:
    return Writer("shop", mandatory=True, persistent=True, frame_max=frame_max)


def frames_of(message: Message, frame_max: int = 131_072) -> list[Any]:
    """Let the client library read what we write."""
    data, frames = writer(frame_max).frames(message, 1), []
    while data:
        size, channel, frame = pamqp.frame.unmarshal(data)
        assert channel == 1
        assert size <= frame_max
        frames.append(frame)
        data = data[size:]
    return frames


def properties_of(message: Message) -> Any:
    header = frames_of(message)[1]
    assert isinstance(header, ContentHeader)
    return header.properties


def test_a_message_is_published_mandatory_and_persistent_with_its_id() -> None:
    publish, header, body = frames_of(Message("orders", "42", PLAIN, b"{}", 1))
    assert isinstance(publish, Basic.Publish)
    assert (publish.exchange, publish.routing_key, publish.mandatory) == ("shop", "orders", True)
    properties = header.properties
    assert (properties.delivery_mode, properties.message_id) == (2, "7")
    assert (properties.content_type, properties.headers) == ("application/json", PLAIN)
    assert body.value == b"{}"


def test_an_empty_body_has_no_frame() -> None:
    assert len(frames_of(Message("orders", None, {}, b"", 1))) == 2


def test_a_large_body_comes_in_pieces() -> None:
    body = bytes(range(256)) * 100
    pieces = frames_of(Message("orders", None, {}, body, 1), frame_max=4096)[2:]
    assert len(pieces) > 1
    assert b"".join(piece.value for piece in pieces) == body


def test_a_key_that_no_header_says_has_one_of_its_own() -> None:
    assert properties_of(Message("orders", "42", {"id": "7"}, b"", 1)).headers == {"id": "7", "pillarbox-key": "42"}


def test_cloudevents_are_spelt_as_their_binding_for_rabbitmq_says() -> None:
    headers = {"ce_specversion": "1.0", "ce_id": "7", "ce_partitionkey": "42", "content-type": "text/plain"}
    properties = properties_of(Message("orders", "42", headers, b"x", 1))
    assert properties.headers == {"ce-specversion": "1.0", "ce-id": "7", "ce-partitionkey": "42"}
    assert (properties.content_type, properties.message_id) == ("text/plain", "7")


@pytest.mark.parametrize(
    "message",
    [
        Message("orders", "42", PLAIN, b"{}"),
        Message("orders", "other", PLAIN, b"{}"),
        Message("orders", None, {"id": "7", "language": "Ελληνικά", "empty": ""}, b""),
        Message("orders", "order 7/ü", {}, bytes(range(256))),
        Message("orders", "42", {"content-type": "application/cloudevents+json; charset=UTF-8"}, b"{}"),
        Message("orders", "42", {"content_type": "x" * 300, "content-type": "y"}, b"{}"),
    ],
)
def test_what_is_written_is_what_is_read(message: Message) -> None:
    properties = properties_of(message)
    assert read("orders", properties.headers, properties.content_type, message.body) == (message, 1)


def test_a_quorum_queues_count_is_the_attempt() -> None:
    message, attempt = read("orders", {"id": "7", "x-delivery-count": 2}, None, b"")
    assert (dict(message.headers), attempt) == ({"id": "7"}, 3)


def test_other_programs_headers_are_read_as_text() -> None:
    message, _ = read("orders", {"n": 7, "deep": {"a": [1]}, "raw": b"\xff"}, None, b"")
    assert dict(message.headers) == {"n": "7", "deep": '{"a": [1]}', "raw": "\\xff"}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (Message("ü" * 128, None, {}, b""), "its topic takes 256 bytes"),
        (Message("orders", None, {"x" * 256: ""}, b""), "the name of its header 'xxxx"),
        (Message("orders", None, {"big": "x" * 131_072}, b""), r"its headers take 131,\d+ bytes"),
    ],
)
def test_what_no_frame_can_hold_is_refused(message: Message, words: str) -> None:
    with pytest.raises(PublishRejected, match=words):
        writer().frames(message, 1)


def test_headers_that_just_fit_are_taken() -> None:
    message = Message("orders", None, {"big": "x" * 131_000}, b"", 1)
    assert properties_of(message).headers["big"] == "x" * 131_000


def test_an_acknowledgement_is_the_protocols() -> None:
    _, _, frame = pamqp.frame.unmarshal(ack(7, multiple=True))
    assert isinstance(frame, Basic.Ack)
    assert (frame.delivery_tag, frame.multiple) == (7, True)
