"""The embedded broker's near end keeps the publisher's contract."""

import json
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.brokers import sends
from pillarbox.brokers.sqlite import SqlitePublisher
from pillarbox.core.message import Message
from pillarbox.ports import Publisher
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.contracts.publisher import PublisherContract, PublisherFeatures
from pillarbox.testing.contracts.relay import RelayContract
from pillarbox.testing.contracts.rules import check, rules_of
from tests.contracts.publish_and_die import publish_and_die

LARGEST = 300_000
SOON = 0.5
"""Seconds that are waited for an answer that is lost, beyond the timeout: there it is ten, for a disk that is slow."""


class SqlitePublisherBench:
    features = PublisherFeatures(
        prefix_safe=True, durable=True, refuses=True, goes_away=True, goes_away_midway=True, loses_answers=True
    )

    def __init__(self, path: Path) -> None:
        self.path, self._patch = path, pytest.MonkeyPatch()
        self._opened: list[SqlitePublisher] = []
        self._blocker: sqlite3.Connection | None = None
        self._losing = False
        self._heard = threading.Event()

    def publisher(self) -> Publisher:
        self._opened.append(
            SqlitePublisher(
                self.path,
                publish_timeout=timedelta(seconds=0.5),
                hooks=Hooks(self._hear),
                largest_message=LARGEST,
            )
        )
        return self._opened[-1]

    def _hear(self, moment: Moment, facts: Facts) -> None:
        if moment is Moment.STORED_BY_BROKER and self._losing:
            assert self._heard.wait(20)

    async def stored(self) -> Sequence[Message]:
        if not self.path.exists():
            return []
        with closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute("SELECT topic, key, headers, body FROM messages ORDER BY id").fetchall()
        return [Message(topic, key, json.loads(headers), body) for topic, key, headers, body in rows]

    def refused(self, message: Message) -> Message:
        return message._replace(body=message.body.ljust(LARGEST + 1))

    async def go_away(self) -> None:
        self._blocker = sqlite3.connect(self.path, isolation_level=None)
        self._blocker.execute("BEGIN EXCLUSIVE")

    async def go_away_midway(self) -> None:
        connection = self._opened[-1]._connection
        assert connection is not None
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 5}")

    async def lose_answers(self, which: Sequence[int] | None) -> None:
        assert which is None
        self._losing = True
        self._patch.setattr(sends, "GRACE", SOON)

    async def come_back(self) -> None:
        self._losing = False
        self._patch.undo()
        self._heard.set()
        if self._blocker is not None:
            self._blocker.close()

    async def publish_and_die(self, messages: Sequence[Message]) -> None:
        await publish_and_die(f"sqlite:///{self.path}", messages)

    async def close(self) -> None:
        await self.come_back()
        for publisher in self._opened:
            await publisher.close()


@pytest.mark.parametrize("rule", rules_of(PublisherContract, SqlitePublisherBench.features))
async def test_the_embedded_publisher_keeps_the_rule(rule: str, tmp_path: Path) -> None:
    await check(PublisherContract, rule, SqlitePublisherBench(tmp_path / "stream.db"))


@pytest.mark.parametrize("rule", rules_of(RelayContract, SqlitePublisherBench.features))
async def test_a_relay_over_the_embedded_broker_keeps_the_rule(rule: str, tmp_path: Path) -> None:
    await check(RelayContract, rule, SqlitePublisherBench(tmp_path / "stream.db"))
