"""Writers, relays and PostgreSQL itself are killed, and every promise holds. The long run is in the soak."""

from collections.abc import Callable
from pathlib import Path

import pytest

from servers.postgres import Postgres
from tests.integration.postgres_torture import Torture, kill_and_start
from tests.integration.postgres_world import migrate, new_database


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
