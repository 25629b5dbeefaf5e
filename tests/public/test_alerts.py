"""The alert rules name metrics that are there, and a runbook that is written; the guide lists the metrics there are."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pillarbox.ports import SlotSeen, Stats
from pillarbox.telemetry.prometheus import ConsumerMetrics, RelayMetrics
from pillarbox.testing.clock import ManualClock

ROOT = Path(__file__).parents[2]
RULES = (ROOT / "deploy" / "prometheus" / "pillarbox.rules.yml").read_text()
GUIDES = ROOT / "docs" / "guides"
ALERTS = re.split(r"^ +- alert: ", RULES, flags=re.MULTILINE)[1:]


def served() -> set[str]:
    """Give the names of the metrics that a relay and a consumer serve."""
    slot = SlotSeen("s", None, True, 0, 0, False, datetime(2026, 1, 1, tzinfo=UTC))
    stats = Stats(0, True, None, 0, 0, 0, 0, None, slot=slot, table_bytes={"file": 1})
    pages = (RelayMetrics(ManualClock()).page(stats, up=True), ConsumerMetrics(lambda: {"handled": 1}).page())
    return {
        sample.name
        for page in pages
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.split()[0])
def test_a_rule_asks_for_metrics_that_are_served(rule: str) -> None:
    asked = set(re.findall(r"pillarbox_\w+", rule))
    assert asked
    assert asked <= served()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule.split()[0])
def test_a_rule_has_a_severity_a_summary_and_a_runbook(rule: str) -> None:
    name = rule.split()[0]
    assert re.search(r"severity: (info|warning|critical)\n", rule)
    assert re.search(r'summary: ".+"\n', rule)
    assert f"runbook: docs/guides/alerts.md#{name.lower()}\n" in rule


def test_the_guide_has_a_section_for_every_alert_and_no_other() -> None:
    sections = re.findall(r"^## (\w+)$", (GUIDES / "alerts.md").read_text(), flags=re.MULTILINE)
    assert sections == [rule.split()[0] for rule in ALERTS]


def test_the_guide_lists_the_metrics_that_are_served() -> None:
    listed = re.findall(r"^\| `(pillarbox_\w+)", (GUIDES / "operating.md").read_text(), flags=re.MULTILINE)
    assert set(listed) == {re.sub(r"_(bucket|sum|count)$", "", name) for name in served()}
