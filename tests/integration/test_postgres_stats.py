"""Stats, health and lists on PostgreSQL: read from a long log without walking over it, as the server's plans tell."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial

import psycopg
import pytest

from pillarbox import Relay, Settings
from pillarbox.admin import looking
from pillarbox.admin.admin import Admin
from pillarbox.ports import Query
from pillarbox.stores.postgres.connection import Connection
from pillarbox.wiring import open_admin
from servers.postgres import RunningPostgres
from tests.conftest import skip_unless_ours
from tests.integration.health_shop import nowhere
from tests.integration.postgres_plans import Step, explained, listening
from tests.integration.postgres_shop import made

SETTLED, PENDING, STRETCH = 20_000, 12_000, 2_000
LOG = "pillarbox_outbox"
ADD = (
    "INSERT INTO pillarbox_outbox (topic, aggregate_type, aggregate_id, event_type, payload)"
    " SELECT 'order-events', 'order', i, 'Placed', '{}' FROM generate_series(1, %s) i"
)


LOOKS: dict[str, Callable[[Admin, Settings], Awaitable[object]]] = {
    "stats": lambda admin, _: admin.figures(),
    "health": lambda admin, settings: admin.report(settings),
    "events list": lambda admin, _: admin.look_for(Query()),
    **{
        f"events list {name}": partial(lambda query, admin, _: admin.look_for(query), query)
        for name, query in {
            "--type": Query(type="Unknown"),
            "--topic --oldest-first": Query(topic="unknown", newest_first=False),
            "--aggregate": Query(aggregate=("order", "7")),
            "--since": Query(since=datetime(2000, 1, 1, tzinfo=UTC), type="Unknown"),
            "--status pending": Query(status=("pending",)),
            "--status dead": Query(status=("dead",)),
            "--status published": Query(status=("published",)),
        }.items()
    },
}


@pytest.fixture(scope="module")
def long_log(postgres: RunningPostgres) -> Iterator[str]:
    """A database in which much is published, and much is pending."""
    skip_unless_ours()
    url = made(postgres.create_database("long_log"))
    with psycopg.connect(url, autocommit=True) as writer:
        writer.execute(ADD, [SETTLED])
        assert asyncio.run(Relay(database=url, publish=nowhere).run_once()) == SETTLED
        writer.execute(ADD, [PENDING])
        writer.execute("VACUUM ANALYZE pillarbox_outbox")
    yield url
    postgres.drop_database("long_log")


async def test_stats_count_up_to_a_bound_and_estimate_the_rest(long_log: str) -> None:
    async with open_admin(Settings(database=long_log)) as admin:
        stats = await admin.stats()
    assert (stats.pending, stats.pending_exact) == (10_000, False)
    assert stats.pending_about == pytest.approx(PENDING, rel=0.05)
    assert stats.published_lately == SETTLED
    assert stats.table_bytes["outbox"] > 1_000_000


def walks(steps: list[Step]) -> list[Step]:
    """Choose the steps that walk over the log: by an index, too, if they read more of it than what is pending."""
    return [step for step in steps if step.table == LOG and (step.kind == "Seq Scan" or step.rows > PENDING + STRETCH)]


@pytest.mark.parametrize("look", LOOKS)
async def test_they_never_walk_over_the_log(long_log: str, look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "STRETCH", STRETCH)
    settings = Settings(database=explained(long_log))
    with listening(monkeypatch) as steps:
        async with open_admin(settings) as admin:
            await LOOKS[look](admin, settings)
    assert any(step.table == LOG for step in steps), "the plans are told"
    assert walks(steps) == []


async def test_a_count_of_a_rare_type_looks_at_a_stretch_at_a_time(
    long_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "STRETCH", STRETCH)
    with listening(monkeypatch) as steps:
        async with open_admin(Settings(database=explained(long_log))) as admin:
            assert await admin.count(Query(status=("published",), type="Unknown")) == 0
    assert walks(steps) == []
    assert max(step.rows for step in steps if step.table == LOG) <= STRETCH


@pytest.mark.parametrize("where", ["", " WHERE id > 0", " WHERE topic = 'order-events'"])
async def test_a_count_over_the_log_would_be_seen(long_log: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(explained(long_log), "test")
    with listening(monkeypatch) as steps:
        assert await connection.run(f"SELECT count(*) FROM {LOG}{where}") == [(SETTLED + PENDING,)]
        await connection.run("SET enable_seqscan = off")
        await connection.run(f"SELECT count(*) FROM {LOG}{where}")
    await connection.close()
    assert len(walks(steps)) == 2, steps


async def test_what_a_function_reads_is_told_too(long_log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(explained(long_log), "test")
    with listening(monkeypatch) as steps:
        await connection.run("SELECT count(*) FROM pillarbox_pending(5000, 100000)")
    await connection.close()
    assert any(step.table == LOG and step.rows >= 5000 for step in steps)
