"""Writers, relays and PostgreSQL itself are killed, and every promise holds. The long run is in the soak."""

from collections.abc import Callable
from pathlib import Path

import pytest

from servers.postgres import Postgres
from tests.integration.postgres_torture import Torture, kill_and_start
from tests.integration.postgres_world import migrate, new_database, run


@pytest.mark.timeout(180)
async def test_nothing_is_lost_invented_or_out_of_order_under_kills(
    own_postgres: Callable[[str], Postgres], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    server = own_postgres("15")
    url = server.url(new_database(server))
    await migrate(url)
    outcome = Torture(url, tmp_path).go(15, 3 * [kill_and_start(server)])
    record_property("says", str(outcome))
    assert outcome.faults == []
    assert outcome.report.committed > 500
    assert outcome.report.copies <= outcome.most_copies


@pytest.mark.soak
@pytest.mark.timeout(180)
async def test_retention_under_load_and_kills_removes_nothing_that_is_not_settled(
    own_postgres: Callable[[str], Postgres], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    server = own_postgres("15")
    url = server.url(new_database(server))
    await migrate(url)
    torture = Torture(url, tmp_path, prunes=True)
    outcome = torture.go(15, [kill_and_start(server)])
    [[left]] = run(url, "SELECT count(*) FROM pillarbox_outbox")
    says = f"{left} rows left of {outcome.report.committed}, {torture.pruners_killed} pruners killed"
    record_property("says", f"{outcome}, {says}")
    assert outcome.faults == []
    assert torture.pruners_killed > 0
    assert left < outcome.report.committed, "nothing was pruned, so it could not show anything"
