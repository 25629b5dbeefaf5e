"""The stdout broker: what a line looks like, and what a stream's troubles mean."""

import base64
import io
import json
import os

import pytest

from pillarbox.brokers.stdout import StdoutPublisher, line_of
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishError
from pillarbox.testing.contracts.publisher import answers, batch, errors


def test_a_line_holds_topic_key_headers_and_payload() -> None:
    line = line_of(Message("orders", "7", {"id": "1", "content_type": "application/json"}, b'{"total": 42}'))
    assert line.endswith("\n")
    assert json.loads(line) == {
        "topic": "orders",
        "key": "7",
        "headers": {"id": "1", "content_type": "application/json"},
        "payload": {"total": 42},
    }


def test_numbers_keep_their_digits() -> None:
    assert '"payload": {"price": 1.10, "big": 12345678901234567890.5}}' in line_of(
        Message("orders", None, {}, b'{"price": 1.10, "big": 12345678901234567890.5}')
    )


def test_json_over_several_lines_becomes_one_line() -> None:
    line = line_of(Message("orders", None, {}, '{\r\n  "name": "Gr\u00fc\u00dfe\\n"\n}'.encode()))
    assert line.count("\n") == 1
    assert json.loads(line)["payload"] == {"name": "Gr\u00fc\u00dfe\n"}


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/avro", b'{"looks": "like JSON"}'),
        ("application/json", b"{broken"),
        ("application/json", b"\xff"),
        ("application/json", b"NaN"),
        ("application/json", b""),
    ],
)
def test_what_is_not_json_is_written_in_base64(content_type: str, body: bytes) -> None:
    line = json.loads(line_of(Message("orders", None, {"content_type": content_type}, body)))
    assert "payload" not in line
    assert base64.b64decode(line["payload_base64"]) == body


async def test_every_send_is_flushed() -> None:
    class Stream(io.StringIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed += 1

    stream = Stream()
    publisher = StdoutPublisher(stream)
    publisher.send(batch("abc"))
    await answers(publisher, 3)
    assert stream.flushed == 1
    assert stream.getvalue().count("\n") == 3
    await publisher.close()


async def test_a_pipe_without_a_reader_is_away() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w")
    publisher = StdoutPublisher(stream)
    publisher.send(batch("ab"))
    outcomes = await answers(publisher, 2)
    assert errors(outcomes) == {1: BrokerUnavailable, 2: BrokerUnavailable}
    assert "Broken pipe" in str(outcomes[0].error)
    await publisher.close()
    with pytest.raises(BrokenPipeError):
        stream.close()


async def test_a_closed_stream_is_away() -> None:
    stream = io.StringIO()
    stream.close()
    publisher = StdoutPublisher(stream)
    publisher.send(batch("a"))
    assert errors(await answers(publisher, 1)) == {1: BrokerUnavailable}
    await publisher.close()


async def test_a_stream_that_cannot_write_a_character_names_the_cure() -> None:
    publisher = StdoutPublisher(io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    publisher.send([Message("orders", "ü", {}, b"{}", 1)])
    (outcome,) = await answers(publisher, 1)
    assert type(outcome.error) is PublishError
    assert "PYTHONIOENCODING=utf-8" in str(outcome.error)
    await publisher.close()
