"""`pillarbox relay once` beside a relay that runs, through the real commands."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.acceptance.conftest import Shop


@pytest.fixture
def relays(migrated: "Shop") -> "Callable[[], list[str]]":
    """Give the relays that hold lanes."""

    def holders() -> list[str]:
        seen = migrated.json(f"pillarbox status --json --database {migrated.database}")["stats"]["relays"]
        return [relay["owner"] for relay in seen if relay["lanes"]]

    return holders


def test_beside_a_running_relay_it_says_whom_it_waits_for(
    migrated: "Shop", relays: "Callable[[], list[str]]", until: "Callable[[Callable[[], bool]], None]"
) -> None:
    ends = f"--database {migrated.database} --broker {migrated.broker}"
    with migrated.running(f"pillarbox relay run {ends}"):
        until(lambda: bool(relays()))
        short = "--set 'relay.lease=2 s' --set 'relay.publish_timeout=1 s'"
        done = migrated.type(f"pillarbox relay once {ends} {short}", code=1)
        [owner] = relays()
    assert done.stderr.splitlines()[0] == f"waits up to 3 s for relay {owner}, now at work on this outbox"


def test_it_tells_copies_that_are_yet_to_go_from_delayed_events(migrated: "Shop") -> None:
    ends = f"--database {migrated.database} --broker {migrated.broker}"
    migrated.placed()
    migrated.placed()
    migrated.type(f"pillarbox relay once {ends}")
    migrated.type(f"pillarbox replay --all --rate 1 --yes --database {migrated.database}")
    migrated.type(f"pillarbox pause order-events --database {migrated.database}")
    assert "left: 2 to be replayed; `pillarbox status" in migrated.type(f"pillarbox relay once {ends}").stderr
