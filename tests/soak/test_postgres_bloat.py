"""A million events without faults: no event updated, few dead tuples, no transaction left open."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.postgres_bloat import traces_of

EVENTS = 1_000_000


@pytest.mark.timeout(1500)
def test_a_million_events_leave_no_bloat(
    database: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    traces = traces_of(database, tmp_path, EVENTS)
    record_property("says", f"{EVENTS} events: {traces}")
    assert traces.outbox_updates == 0
    assert traces.dead_tuples < 5000
    assert traces.idle_in_transaction <= 1
