"""The stdout broker: one JSON line per event, for pipes, containers and curious people."""

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TextIO

from pillarbox.brokers.calls import Calls
from pillarbox.brokers.given import Given, Publishers
from pillarbox.brokers.lines import Lines
from pillarbox.brokers.worker import Worker
from pillarbox.core.message import Message
from pillarbox.core.payload import JSON, check_json, is_json
from pillarbox.errors import BrokerUnavailable, EncodeError, PublishError
from pillarbox.ports import Outcome


@contextmanager
def stream_errors() -> Iterator[None]:
    """Turn the stream's errors into ours."""
    try:
        yield
    except UnicodeEncodeError as error:
        raise PublishError(
            f"the output cannot be written as {error.encoding}: set PYTHONIOENCODING=utf-8 and start again"
        ) from error
    except (OSError, ValueError) as error:  # a broken pipe, a full disk, no room in time; ValueError: it is closed
        raise BrokerUnavailable(
            f"the output cannot be written: {error}; nobody reads it, or its disk is full"
        ) from error


class StdoutPublisher:
    """Writes events to a stream, whole lines of UTF-8. Written means published: a pipe knows no acknowledgement.

    A reader that does not read holds the writing up, in a thread of its own, until the publish timeout.
    """

    # Prefix-safe: one stream, written in order; after the place where it broke there is nothing.
    prefix_safe = True

    def __init__(self, stream: TextIO | None = None, *, publish_timeout: timedelta = timedelta(seconds=10)) -> None:
        self._stream = sys.stdout if stream is None else stream
        self._lines = _lines_to(self._stream, publish_timeout.total_seconds())
        self._worker = Worker("stdout")
        self._calls = Calls("writing to the output", self._write, publish_timeout)

    def send(self, messages: Sequence[Message]) -> None:
        self._calls.send(messages)

    async def outcomes(self) -> Sequence[Outcome]:
        return await self._calls.outcomes()

    async def close(self) -> None:
        await self._calls.close()
        self._worker.stop()

    async def _write(self, messages: list[Message]) -> None:
        await self._worker.do(lambda: self._write_lines(messages))

    def _write_lines(self, messages: list[Message]) -> None:
        text = "".join(map(line_of, messages))
        with stream_errors():
            if self._lines is None:
                self._stream.write(text)
            self._stream.flush()  # of what others have printed
            if self._lines is not None:
                self._lines.write(text.encode())


def _lines_to(stream: TextIO, patience: float) -> Lines | None:
    """Go around Python's own layers to the file or pipe; None if a stream is neither."""
    try:
        return Lines(stream.fileno(), patience)
    except (OSError, ValueError):  # in memory, or closed
        return None


def line_of(message: Message) -> str:
    """Write a message as a line: `payload` if it is JSON, else `payload_base64`."""
    head = json.dumps(
        {"topic": message.topic, "key": message.key, "headers": dict(message.headers)}, ensure_ascii=False
    )
    payload = _json_text(message)
    if payload is None:
        return f'{head[:-1]}, "payload_base64": "{base64.b64encode(message.body).decode()}"}}\n'
    return f'{head[:-1]}, "payload": {payload}}}\n'


def _json_text(message: Message) -> str | None:
    """Give the payload's own text on one line, or None if it is not JSON."""
    content_type = message.headers.get("content_type") or message.headers.get("content-type") or JSON
    if not is_json(content_type):
        return None
    try:
        text = message.body.decode()
        check_json(text)
    except (UnicodeDecodeError, EncodeError):
        return None
    # In JSON a line break stands between tokens only, so this changes no value.
    return text.replace("\n", " ").replace("\r", " ")


def open_publisher(given: Given) -> Publishers:
    return lambda: StdoutPublisher(sys.stdout, publish_timeout=given.publish_timeout)
