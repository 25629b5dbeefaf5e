"""A run without faults leaves no bloat and no open transactions; tests/soak has the same with a million events."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.postgres_bloat import traces_of

EVENTS = 100_000


@pytest.mark.timeout(240)
def test_a_run_without_faults_updates_no_event_and_leaves_few_dead_tuples(
    database: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    traces = traces_of(database, tmp_path, EVENTS)
    record_property("says", f"{EVENTS} events: {traces}")
    assert traces.outbox_updates == 0
    assert traces.dead_tuples < 5000 * EVENTS / 1_000_000
    assert traces.idle_in_transaction <= 1
    assert traces.looks >= 10
