"""Members of a consumer group that keep being killed, and the judgement on what was delivered to them."""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pillarbox.core.message import Message

MEMBER = Path(__file__).with_name("member.py")
KEYS = 40
Publish = Callable[[Sequence[Message]], Awaitable[None]]


class Plan(NamedTuple):
    """How many of everything."""

    messages: int
    members: int
    kills: int
    copies: int
    """How many at least, or the kills have struck nothing in flight."""


class Members:
    """The processes, and what they wrote down. Some kill themselves amid their work; others are killed at any time."""

    def __init__(self, broker: str, log: Path, plan: Plan, chance: random.Random) -> None:
        self._command = [sys.executable, str(MEMBER), broker, str(log)]
        self._log, self._plan, self._chance = log, plan, chance
        self.kills = 0
        self._processes = [self._start() for _ in range(plan.members)]

    def _start(self) -> "subprocess.Popen[bytes]":
        life = self._chance.randrange(1, 150) if self.kills < self._plan.kills else 0
        return subprocess.Popen([*self._command, str(life)])

    def replace_the_dead(self) -> bool:
        """Start those again that have died; tell whether enough have."""
        for index, process in enumerate(self._processes):
            if process.poll() is not None:
                assert process.returncode == -signal.SIGKILL
                self.kills += 1
                self._processes[index] = self._start()
        return self.kills >= self._plan.kills

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


async def kill_members(
    broker: str, log: Path, plan: Plan, chance: random.Random, publish: Publish, unacknowledged: Callable[[], int]
) -> None:
    """Publish while members work and are killed, until all is acknowledged; then judge."""
    with _working(Members(broker, log, plan, chance)) as members:
        publishing = asyncio.create_task(_publish(plan.messages, publish))
        for enough in (plan.kills // 3, 2 * plan.kills // 3):
            await until(lambda enough=enough: members.replace_the_dead() or members.kills >= enough)  # type: ignore[misc]
            members.kill_one()
        await until(members.replace_the_dead)
        await publishing
        await until(lambda: members.replace_the_dead() and unacknowledged() == 0)
    check(members.lines(), plan)


@contextmanager
def _working(members: Members) -> Iterator[Members]:
    try:
        yield members
    finally:
        members.stop()


async def _publish(count: int, publish: Publish) -> None:
    numbers = [0] * KEYS
    chance = random.Random(7)
    for first in range(0, count, 200):
        messages = []
        for ticket in range(first, first + 200):
            key = chance.randrange(KEYS)
            messages.append(
                Message("orders", f"key {key}", {"id": str(ticket)}, b"%d %d" % (key, numbers[key]), ticket)
            )
            numbers[key] += 1
        await publish(messages)


def check(lines: list[tuple[bool, int, int]], plan: Plan) -> None:
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
    assert sum(seen.values()) == plan.messages
    assert copies >= plan.copies, "the kills struck nothing in flight"


async def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what other processes do tells nobody
            await asyncio.sleep(0.01)
