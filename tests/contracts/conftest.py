"""What the contract tests share: one database for all benches of doors on PostgreSQL, and how long outages take."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest

from pillarbox.testing.contracts import relay
from servers.postgres import RunningPostgres
from tests.integration.postgres_shop import made

SHORTER = (0.5, 1.0, 2.5)
"""Seconds. How a relay's pauses grow to their longest is no broker's business: that is seen on the memory broker, whose
time costs nothing, and in the soak, on Kafka and Valkey. That a broker is found again after some of them is."""


@pytest.fixture(autouse=True)
def outages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers be away for a shorter time, where it is real time and somebody waits for the result."""
    if request.path.stem != "test_relay_memory" and request.node.get_closest_marker("soak") is None:
        monkeypatch.setattr(relay, "OUTAGES", SHORTER)


@pytest.fixture(scope="session")
def doors(postgres: RunningPostgres) -> Iterator[str]:
    """The URL of a database with our tables, and `effects` for business writes."""
    name = f"doors_{uuid.uuid4().hex}"
    url = made(postgres.create_database(name))
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE effects (what text NOT NULL)")
    yield url
    postgres.drop_database(name)
