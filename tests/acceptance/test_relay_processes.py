"""Relays as processes on one SQLite file: one that is told twice to stop, and one that takes over from a killed one."""

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pillarbox import Event
from tests.acceptance.test_systemd import manager

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

Until = Callable[[Callable[[], bool]], None]
WAITS = {
    "a coroutine": "async def publish(messages):\n    hangs.touch()\n    await asyncio.Event().wait()",
    "a thread": "def publish(messages):\n    hangs.touch()\n    threading.Event().wait()",
}
RELAY = """
import asyncio, threading
from pathlib import Path
from pillarbox import Relay

hangs = Path("it-hangs")

{publish}

Relay(database="sqlite:///shop.db", publish=publish).run_forever()
"""


@pytest.mark.parametrize("what", WAITS)
def test_a_second_signal_stops_a_relay_at_once_and_its_event_is_published_by_the_next(
    what: str, migrated: "Shop", until: Until
) -> None:
    id = migrated.placed()
    with manager(str(migrated.directory / "notify")) as systemd:
        process = subprocess.Popen(
            [sys.executable, "-c", RELAY.format(publish=WAITS[what])],
            cwd=migrated.directory,
            env=migrated.environment | systemd.environment(),
        )
        try:
            until((migrated.directory / "it-hangs").exists)
            process.send_signal(signal.SIGTERM)
            systemd.until("STOPPING=1")
            assert process.poll() is None  # it waits for the answer
            process.send_signal(signal.SIGTERM)
            assert process.wait(5) == 1
        finally:
            process.kill()
            process.wait()
    (left,) = migrated.json(f"pillarbox events list --json --database {migrated.database}")
    assert (left["event_id"], left["status"]) == (id, "pending")
    migrated.type(f"pillarbox relay once --database {migrated.database} --broker {migrated.broker}")
    assert migrated.received() == [id]


def test_a_second_relay_on_one_file_takes_over_at_once_when_the_first_is_killed(migrated: "Shop", until: Until) -> None:
    """Long before the lease of the first has run out."""
    run = f"pillarbox relay run --database {migrated.database} --broker {migrated.broker} --set relay.lease='10 min'"
    ids: dict[int, list[str]] = {order: [] for order in range(7)}

    def add() -> None:
        events = [Event("Changed", {"n": n}, aggregate=("order", order)) for n in range(3) for order in ids]
        for event, id in zip(events, migrated.add(*events), strict=True):
            assert event.aggregate is not None
            ids[int(event.aggregate[1])].append(id)

    first = migrated.start(run)
    try:
        add()
        until(lambda: len(migrated.received()) == 21)
        with migrated.running(run):
            until(lambda: any("waits, and holds no lanes" in line for line in migrated.status()))
            for _ in range(10):
                add()
            first.kill()
            for _ in range(10):
                add()
            until(lambda: len(set(migrated.received())) == sum(map(len, ids.values())))
            until(lambda: migrated.status()[0] == "✓ all is well: nothing is waiting")
    finally:
        first.kill()
        first.communicate()
    once = list(dict.fromkeys(migrated.received()))  # what was on its way when the first died may have a copy
    assert {order: [id for id in once if id in set(its)] for order, its in ids.items()} == ids
