"""Alerts fire in a real Prometheus that scrapes a real relay in which the trouble was made."""

from pathlib import Path

from pillarbox import Event
from tests.acceptance.watched_shop import RULES, WatchedShop, kill, quicker, until


def test_the_quicker_rules_differ_only_in_their_durations() -> None:
    rules = quicker(RULES.read_text(), 60)
    assert "max by (job) (pillarbox_pending_events) > 1000\n        for: 5s\n" in rules
    assert "max by (job) (pillarbox_oldest_pending_age_seconds) > 5.0\n" in rules
    assert "sum by (job) (rate(pillarbox_delivery_latency_seconds_count[5s])) > 0.5\n        for: 5s\n" in rules
    assert "(pillarbox_dead_total unless pillarbox_dead_total offset 1440s) > 0\n" in rules
    assert "max_over_time(pillarbox_last_prune_timestamp_seconds[1440s])) > 1440.0\n" in rules
    assert "(pillarbox_slot_retained_bytes) > 5e9\n" in rules
    assert quicker(RULES.read_text(), 1).replace(".0\n", "\n").count(" > 1000\n") == 1


def test_alerts_fire_for_what_befalls_a_relay(tmp_path: Path) -> None:
    with WatchedShop(tmp_path, times=30) as shop:
        relay = shop.relay()
        shop.place(range(3))
        shop.until_value("pillarbox_published_total", 3)
        shop.until_value("count_over_time(pillarbox_relay_up[1m])", 3)
        until(lambda: shop.prometheus.alerts() == {}, shop.prometheus.alerts)

        shop.refuse("mails")
        shop.add(Event("MailWanted", {}, aggregate=("customer", 7), topic="mails"))
        shop.until_firing("PillarboxDead", "PillarboxFailure")
        assert "rejected" in [labels["reason"] for labels in shop.prometheus.alerts()["PillarboxFailure"]]

        shop.redis.kill()
        shop.place(range(1001))
        shop.until_firing("PillarboxBacklog", "PillarboxOldestPending", "PillarboxErrors", "PillarboxSuccess")
        assert "away" in [labels["reason"] for labels in shop.prometheus.alerts()["PillarboxFailure"]]

        kill(relay)
        shop.until_firing("PillarboxRelayAbsent")
        assert shop.prometheus.alerts()["PillarboxRelayAbsent"][0]["job"] == "shop"
