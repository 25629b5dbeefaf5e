"""PostgreSQL under kills, crashes and failovers for minutes; judged by the checker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from servers.postgres import Postgres
from tests.conftest import installed, skip_unless_ours
from tests.integration.postgres_torture import Torture, kill_and_start
from tests.integration.postgres_world import QUIET, Pair, migrate, new_database


@pytest.mark.timeout(600)
@pytest.mark.parametrize("major", ["15", "17", "18"])
async def test_nothing_is_lost_invented_or_out_of_order_under_kills_for_a_minute(
    major: str,
    own_postgres: Callable[[str], Postgres],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    # For a topic that is down: more TOPICS in postgres_writer.py, and a broker in postgres_relays.py that refuses one.
    server = own_postgres(major)
    url = server.url(new_database(server))
    await migrate(url)
    outcome = Torture(url, tmp_path).go(60, 3 * [kill_and_start(server)])
    record_property("says", f"PostgreSQL {major}: {outcome}")
    assert outcome.faults == []
    assert outcome.report.committed > 5_000
    assert outcome.report.copies <= outcome.most_copies


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["pooled", "direct"])
async def test_a_failover_with_writers_at_work_loses_nothing_that_the_new_primary_has(
    way: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    skip_unless_ours()
    with installed(lambda: Postgres("15", settings=QUIET)) as primary:
        name = new_database(primary)
        await migrate(primary.url(name))
        pair = Pair(primary, name)
        try:
            pair.start()
            torture = Torture(getattr(pair, way), tmp_path, may_lose_commits=True)
            outcome = torture.go(20, [pair.part, pair.fail_over])
        finally:
            pair.close()
    record_property("says", f"failover, {way}: {outcome}")
    assert outcome.faults == []
    assert outcome.report.phantom > 0, "nothing was lost in the failover, so it could not show anything"
    assert outcome.report.copies <= outcome.most_copies
