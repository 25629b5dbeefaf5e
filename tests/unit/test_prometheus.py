"""Metrics: what a page says of what was told and counted."""

from datetime import timedelta

from pillarbox.ports import Stats
from pillarbox.telemetry.prometheus import RelayMetrics
from pillarbox.testing.clock import ManualClock


def test_delayed_events_whose_time_has_come_count_as_waiting() -> None:
    clock = ManualClock()
    due = {"mails": 900, "orders": 100}
    stats = Stats(
        2, True, clock.now(), 0, 0, 1_500, 0, None, overdue_by_topic=due, oldest_due_at=clock.now() - timedelta(hours=1)
    )
    page = RelayMetrics(clock).page(stats, up=True)
    assert b"pillarbox_pending_events 1002.0\n" in page
    assert b"pillarbox_oldest_pending_age_seconds 3600.0\n" in page
