"""The embedded broker's file."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from pillarbox.torture.directory import remove_file
from pillarbox.torture.taps.caught import Caught


class SqliteTap:
    """The embedded broker's file."""

    def __init__(self, url: str) -> None:
        self._file = Path(url.removeprefix("sqlite:///"))

    def prepare(self, topics: Sequence[str]) -> None:
        """There is nothing to make."""

    def messages(self, topics: Sequence[str]) -> Iterator[Caught]:
        with closing(sqlite3.connect(f"{self._file.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as stream:
            for topic, key, headers, body, at in stream.execute(
                "SELECT topic, key, headers, body, at FROM messages"
                " WHERE topic IN (SELECT value FROM json_each(?)) ORDER BY id",
                [json.dumps(topics)],
            ):
                yield Caught(topic, key, json.loads(headers), body, at / 1e6)

    def remove(self, topics: Sequence[str]) -> None:
        """The file is the run's own."""
        remove_file(self._file)
