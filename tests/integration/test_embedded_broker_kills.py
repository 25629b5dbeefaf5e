"""The embedded broker under kill -9: four processes share the work, and keep being killed."""

import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.brokers.sqlite import SqlitePublisher
from pillarbox.core.message import Message
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.contracts.publisher import answers
from tests.integration.members import Plan, kill_members

PLAN = Plan(messages=6000, members=4, kills=24, copies=22)


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_and_every_key_keeps_its_order_while_members_are_killed(
    tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "stream.db"
    publisher = SqlitePublisher(path, publish_timeout=timedelta(seconds=20), hooks=Hooks())

    async def publish(messages: Sequence[Message]) -> None:
        publisher.send(messages)
        assert all(outcome.error is None for outcome in await answers(publisher, len(messages)))

    def unacknowledged() -> int:
        with closing(sqlite3.connect(path)) as connection:
            (count,) = connection.execute(
                "SELECT count(*) FROM messages LEFT JOIN positions USING (topic, partition)"
                " WHERE position IS NULL OR id > position"
            ).fetchone()
        return int(count)

    log, chance = tmp_path / "deliveries", random.Random(seed)
    await kill_members(f"sqlite:///{path}", log, PLAN, chance, publish, unacknowledged)
    await publisher.close()
