"""The embedded broker under kill -9: four processes share the work, and keep being killed."""

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox.brokers.sqlite import SqlitePublisher
from pillarbox.core.message import Message
from pillarbox.telemetry.hooks import Hooks
from pillarbox.testing.contracts.publisher import answers

MEMBER = Path(__file__).with_name("embedded_member.py")
MESSAGES, KEYS, MEMBERS, KILLS = 6000, 40, 4, 24


class Members:
    """The processes, and what they wrote down. Some kill themselves amid their work; others are killed at any time."""

    def __init__(self, path: Path, log: Path, chance: random.Random) -> None:
        self._command = [sys.executable, str(MEMBER), str(path), str(log)]
        self._log, self._chance = log, chance
        self.kills = 0
        self._processes = [self._start() for _ in range(MEMBERS)]

    def _start(self) -> "subprocess.Popen[bytes]":
        life = self._chance.randrange(1, 150) if self.kills < KILLS else 0
        return subprocess.Popen([*self._command, str(life)])

    def replace_the_dead(self) -> bool:
        """Start those again that have died; tell whether enough have."""
        for index, process in enumerate(self._processes):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL
                self.kills += 1
                self._processes[index] = self._start()
        return self.kills >= KILLS

    def kill_one(self) -> None:
        self._chance.choice(self._processes).kill()

    def lines(self) -> list[tuple[bool, int, int]]:
        """Give what was delivered, in order: whether it was marked, its key, its number within the key."""
        rows = [line.split() for line in self._log.read_text().splitlines()]
        return [(marked == "1", int(key), int(number)) for marked, key, number in rows]

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what other processes do tells nobody
            await asyncio.sleep(0.01)


async def publish(path: Path) -> None:
    publisher = SqlitePublisher(path, publish_timeout=timedelta(seconds=20), hooks=Hooks())
    numbers = [0] * KEYS
    chance = random.Random(7)
    for first in range(0, MESSAGES, 200):
        messages = []
        for ticket in range(first, first + 200):
            key = chance.randrange(KEYS)
            messages.append(
                Message("orders", f"key {key}", {"id": str(ticket)}, b"%d %d" % (key, numbers[key]), ticket)
            )
            numbers[key] += 1
        publisher.send(messages)
        assert all(outcome.error is None for outcome in await answers(publisher, 200))
    await publisher.close()


def unacknowledged(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute(
            "SELECT count(*) FROM messages LEFT JOIN positions USING (topic, partition)"
            " WHERE position IS NULL OR id > position"
        ).fetchone()
    return int(count)


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_lost_and_every_key_keeps_its_order_while_members_are_killed(
    tmp_path: Path, seed: int
) -> None:
    path, chance = tmp_path / "stream.db", random.Random(seed)
    members = Members(path, tmp_path / "deliveries", chance)
    publishing = asyncio.create_task(publish(path))
    try:
        for enough in (KILLS // 3, 2 * KILLS // 3):
            await until(lambda enough=enough: members.replace_the_dead() or members.kills >= enough)  # type: ignore[misc]
            members.kill_one()
        await until(members.replace_the_dead)
        await publishing
        await until(lambda: members.replace_the_dead() and unacknowledged(path) == 0)
    finally:
        members.stop()
    check(members.lines())


def check(lines: list[tuple[bool, int, int]]) -> None:
    """Look at everything that was delivered, in order."""
    seen = dict.fromkeys(range(KEYS), 0)
    copies = 0
    for marked, key, number in lines:
        assert number <= seen[key], f"key {key}: {number} was delivered before {seen[key]}"
        if number < seen[key]:
            copies += 1
            assert marked, f"key {key}: {number} came again without its mark"
        else:
            seen[key] += 1
    assert sum(seen.values()) == MESSAGES
    assert copies >= KILLS - 2, "the kills struck nothing in flight"
