"""The stage of `make torture`: what is done to its servers while something else is done to them already."""

from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest

from pillarbox.torture.faults import Strike
from servers.redis import Redis
from servers.torture_stage import OwnServers


@pytest.fixture(scope="module")
def stage() -> Iterator[OwnServers]:
    with ExitStack() as servers:
        yield OwnServers(servers, "redis", "15", failover=False)


def test_a_broker_comes_back_when_nothing_keeps_it_away_any_more(stage: OwnServers) -> None:
    kill, server = stage.deeds["kill the broker"], stage._broker.server
    assert isinstance(server, Redis)
    long, short, at_once = Strike(1.0, "kill the broker", 0, 4.0), Strike(2.0, "", 0, 1.0), Strike(2.5, "", 0, 0.0)

    def runs() -> bool:
        return server.server.running

    kill.strike(long)
    kill.strike(short)
    kill.strike(at_once)
    kill.heal(short)
    assert not runs()
    kill.heal(long)
    assert runs()
    assert kill.whom(long) == "Redis"


def test_the_pooler_is_restarted_under_a_client_that_has_lost_an_answer(stage: OwnServers) -> None:
    """Nobody heals the way meanwhile: whoever strikes does one thing after the other."""
    losing, strike = stage.deeds["lose answers of the database"], Strike(1.0, "", 0, 2.0)
    with psycopg.connect(stage.way_to_database) as client:
        client.execute("SELECT 1")  # and its transaction stays open
        losing.strike(strike)
        stage.deeds["restart the pooler"].strike(strike)
        losing.heal(strike)
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")
    with psycopg.connect(stage.way_to_database) as client:
        assert client.execute("SELECT 1").fetchall() == [(1,)]
