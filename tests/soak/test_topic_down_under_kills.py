"""One topic of three that is down while relays and PostgreSQL are killed: it stops nobody else."""

import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pillarbox.stores.postgres.schema import Tables
from pillarbox.torture.bank import SCHEMA
from pillarbox.torture.writer import TOPICS
from servers.postgres import Postgres
from tests.conftest import EVERY_POSTGRES
from tests.integration.postgres_world import new_database
from tests.soak.forked_relays import LEASE
from tests.soak.killed_relays import KilledRelays, Outages, trips


@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", EVERY_POSTGRES)
async def test_while_a_topic_is_down_the_others_wait_for_no_more_than_the_lease_and_two_seconds_under_kills(
    version: str,
    own_postgres: Callable[[str], Postgres],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    server = own_postgres(version)
    url = server.url(new_database(server))
    with psycopg.connect(url) as connection:
        connection.execute(Tables(SCHEMA, "pillarbox_").sql().encode())
    down, kill = Down(tmp_path / f"down-{TOPICS[0]}"), Outages(server)
    # An eighth of the run lies before each of these: the topic is down for the middle half, the server is killed
    # before, within and after that.
    outcome = KilledRelays(url, tmp_path).go(60, [kill, down.begin, rest, kill, rest, down.end, kill])
    ways = trips(tmp_path)
    # While the server is away nobody can publish, so these seconds are left out. Those that the relays need to find
    # out that it is back are not, nor those in which the lanes of a killed relay are taken over.
    waits = sorted(
        way.arrived - way.committed - kill.within(way.committed, way.arrived) for way in ways if way.topic != TOPICS[0]
    )
    late = sum(waited >= LEASE.total_seconds() + 2 for waited in waits)
    drained = max(way.arrived for way in ways if way.topic == TOPICS[0] and way.committed < down.ended) - down.ended
    record_property(
        "says",
        f"{outcome}; {len(waits)} events of other topics waited {waits[len(waits) // 2]:.2f} s (median),"
        f" {waits[len(waits) * 99 // 100]:.2f} s (p99), {waits[-1]:.2f} s (longest), {late} too long;"
        f" the topic had caught up after {drained:.1f} s",
    )
    assert {way.topic for way in ways} - {TOPICS[0]} == set(TOPICS[1:]), "not two others"
    assert outcome.report.findings == []
    assert outcome.report.copies <= outcome.most_copies
    held = [way for way in ways if way.topic == TOPICS[0] and down.begun < way.committed < down.ended]
    assert len(held) > 500
    assert min(way.arrived for way in held) >= down.ended, "the topic was not down"
    assert waits[-1] < LEASE.total_seconds() + 2


class Down:
    """A topic that is refused as away from one moment to another."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.begun = self.ended = 0.0

    def begin(self) -> None:
        self._file.touch()
        self.begun = time.time()

    def end(self) -> None:
        self.ended = time.time()
        self._file.unlink()


def rest() -> None:
    """Strike nothing."""
