"""Streams of Redis or Valkey."""

from collections.abc import Iterator, Sequence
from typing import Any

from redis import Redis

from pillarbox.torture.taps.caught import Caught, text


class RedisTap:
    """Streams of Redis or Valkey."""

    def __init__(self, url: str) -> None:
        self._client: Any = Redis.from_url(url)

    def prepare(self, topics: Sequence[str]) -> None:
        self.remove(topics)

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        for topic in topics:
            start = "-"
            while page := self._client.xrange(topic, start, count=1000):
                for place, fields in page:
                    headers = {text(name): text(value) for name, value in fields.items() if name != b"body"}
                    key = headers.pop("key", None)
                    yield Caught(topic, key, headers, fields[b"body"], int(place.split(b"-")[0]) / 1e3)
                start = "(" + page[-1][0].decode()

    def remove(self, topics: Sequence[str]) -> None:
        self._client.delete(*topics)
