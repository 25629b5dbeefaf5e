"""The stdout broker: what a line looks like, and what a stream's troubles mean."""

import asyncio
import base64
import io
import json
import os
import resource
from datetime import timedelta
from pathlib import Path
from typing import TextIO, cast

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


def opened(file: Path, mode: str, encoding: str = "utf-8") -> TextIO:
    """Open a file as a shell does for the output of a command."""
    return cast(TextIO, file.open(mode, encoding=encoding))


class NarrowPipe:
    """A pipe whose writing end does not block, without a buffer in Python: what others make of our output."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        self.stream = io.TextIOWrapper(io.FileIO(self._writing, "w"), encoding="utf-8", write_through=True)

    def read(self) -> bytes:
        """Read all that is there."""
        read = b""
        while True:
            try:
                part = os.read(self._reading, 1 << 20)
            except BlockingIOError:
                return read
            if not part:
                return read
            read += part

    def close(self) -> None:
        """Close both ends."""
        self.stream.close()
        os.close(self._reading)


def payloads(text: bytes) -> list[str]:
    """Read the payload of every line; each must be whole."""
    *lines, unfinished = text.split(b"\n")
    assert unfinished == b""
    return [base64.b64decode(json.loads(line)["payload_base64"]).decode().rstrip(".") for line in lines]


def short_of_patience(stream: TextIO) -> StdoutPublisher:
    """Open a publisher that soon gives up waiting for a reader."""
    return StdoutPublisher(stream, publish_timeout=timedelta(seconds=0.2))


@pytest.mark.parametrize("padding", [100, 9_000])
async def test_a_pipe_that_is_full_takes_nothing_for_written_and_tears_no_line(padding: int) -> None:
    pipe = NarrowPipe()
    publisher = short_of_patience(pipe.stream)
    publisher.send(batch("a" * 2_000, padding=padding))
    outcomes = await answers(publisher, 2_000)
    assert {type(outcome.error) for outcome in outcomes} == {BrokerUnavailable}
    text, failed = pipe.read(), True
    while failed:  # what the writing thread still had to say may take the room of this
        publisher.send(batch("b", first=2_001))
        (outcome,) = await answers(publisher, 1)
        failed = outcome.error is not None
        text += pipe.read()
    seen = payloads(text)
    assert seen[-1] == "b2001"
    assert [name for name in seen if name != "b2001"] == [f"a{number}" for number in range(1, seen.index("b2001") + 1)]
    await publisher.close()
    pipe.close()


async def test_a_slow_reader_gets_every_line() -> None:
    pipe = NarrowPipe()
    publisher = StdoutPublisher(pipe.stream)
    publisher.send(batch("a" * 2_000, padding=500))
    waiting = asyncio.create_task(answers(publisher, 2_000))
    text = b""
    while not waiting.done():
        text += pipe.read()
        await asyncio.sleep(0.001)
    assert set(errors(waiting.result()).values()) == {None}
    assert payloads(text + pipe.read()) == [f"a{number}" for number in range(1, 2_001)]
    await publisher.close()
    pipe.close()


async def test_a_reader_that_hangs_does_not_keep_the_stream_itself() -> None:
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    publisher = short_of_patience(stream)
    publisher.send(batch("a" * 2_000, padding=500))
    await asyncio.to_thread(os.read, reading, 1)  # it has begun
    async with asyncio.timeout(10):
        await asyncio.to_thread(stream.flush)  # as a process does that is told to end at once
    assert set(errors(await answers(publisher, 2_000)).values()) == {BrokerUnavailable}
    await publisher.close()
    os.close(reading)
    stream.close()


async def test_a_line_that_a_full_disk_has_torn_is_ended_by_what_comes_next(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(tmp_path / "events", "w") as stream:
        publisher = StdoutPublisher(stream)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
            publisher.send(batch("ab", padding=800))
            assert set(errors(await answers(publisher, 2)).values()) == {BrokerUnavailable}
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        publisher.send(batch("ab", padding=800))
        assert set(errors(await answers(publisher, 2)).values()) == {None}
        await publisher.close()
    assert payloads((tmp_path / "events").read_bytes()) == ["a1", "a1", "b2"]


@pytest.mark.parametrize("mode", ["a", "r+"])
async def test_a_line_that_another_process_has_torn_is_ended_first(tmp_path: Path, mode: str) -> None:
    file = tmp_path / "events"
    file.write_text('{"topic": "ord')
    with opened(file, mode) as stream:
        stream.seek(0, os.SEEK_END)
        publisher = StdoutPublisher(stream)
        publisher.send(batch("a"))
        await answers(publisher, 1)
        await publisher.close()
    torn, rest = file.read_bytes().split(b"\n", 1)
    assert torn == b'{"topic": "ord'
    assert payloads(rest) == ["a1"]


async def test_a_file_that_ends_with_a_whole_line_is_gone_on_with(tmp_path: Path) -> None:
    for number in (1, 2):
        with opened(tmp_path / "events", "a") as stream:
            publisher = StdoutPublisher(stream)
            publisher.send(batch("a", first=number))
            await answers(publisher, 1)
            await publisher.close()
    assert payloads((tmp_path / "events").read_bytes()) == ["a1", "a2"]


async def test_a_file_has_utf_8_whatever_the_locale_says(tmp_path: Path) -> None:
    with opened(tmp_path / "events", "w", encoding="ascii") as stream:
        publisher = StdoutPublisher(stream)
        publisher.send([Message("orders", "\u00fc", {}, b"{}", 1)])
        assert errors(await answers(publisher, 1)) == {1: None}
        await publisher.close()
    assert json.loads((tmp_path / "events").read_bytes())["key"] == "\u00fc"
