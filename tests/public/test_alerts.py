"""The alert rules fire when they should and not before, name metrics that are there, and a runbook that is written."""

import re
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pillarbox.ports import CanarySeen, SlotSeen, Stats
from pillarbox.telemetry.prometheus import ConsumerMetrics, RelayMetrics
from pillarbox.testing.clock import ManualClock
from servers.prometheus import promtool
from tests.conftest import installed

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "deploy" / "prometheus"
HEAD, *ALERTS = re.split(r"^(?= +- alert: )", (PLACE / "pillarbox.rules.yml").read_text(), flags=re.MULTILINE)
TESTS = sorted(PLACE.glob("*.test.yml"))
GUIDES = ROOT / "docs" / "guides"

PROMISED = """
    oldest_pending_age_seconds pending_events delivery_latency_seconds published_total publish_failures_total
    dead_events dead_total fenced_total relay_up relay_last_loop_timestamp_seconds lanes_held slot_retained_bytes
    table_bytes pruned_total last_prune_timestamp_seconds canary_age_seconds
    canary_received_timestamp_seconds inbox_total inbox_duration_seconds build_info
"""
"""The metrics, without `pillarbox_`: other people's rules and dashboards ask for them, so a new name breaks those."""


def name_of(rule: str) -> str:
    return rule.split()[2]


each_rule = pytest.mark.parametrize("rule", ALERTS, ids=name_of)


def pages() -> tuple[bytes, bytes]:
    """Give what a relay and a consumer serve."""
    slot = SlotSeen("s", None, True, 0, 0, False, datetime(2026, 1, 1, tzinfo=UTC))
    canary = CanarySeen("id", slot.watched_at, "published")
    stats = Stats(0, True, None, 0, 0, 0, 0, None, slot=slot, canary=canary, table_bytes={"file": 1})
    return RelayMetrics(ManualClock()).page(stats, up=True), ConsumerMetrics(lambda: {"handled": 1}).page()


def served() -> set[str]:
    """Give the names of the metrics that a relay and a consumer serve."""
    return {
        sample.name
        for page in pages()
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_the_rules_fire_when_they_should_and_not_just_below() -> None:
    tested = installed(lambda: promtool("test", "rules", *TESTS))
    assert tested.returncode == 0, tested.stdout


@each_rule
def test_a_rule_that_fired_too_early_too_late_or_never_would_be_found(rule: str, tmp_path: Path) -> None:
    made = {}
    for number, (how, wrong) in enumerate([("as it is", rule), *wrongs(rule)]):
        (tmp_path / f"{number}.rules.yml").write_text(HEAD + wrong)
        for source in TESTS:
            if cases := cases_of(name_of(rule), source.read_text()):
                file = tmp_path / f"{number}.{source.name}"
                file.write_text(cases.replace("pillarbox.rules.yml", f"{number}.rules.yml"))
                made[file] = how
    told = re.split(r"^Unit Testing: +", installed(lambda: promtool("test", "rules", *made)).stdout, flags=re.MULTILINE)
    found = {made[Path(words.split("\n")[0])] for words in told[1:] if "FAILED" in words}
    assert found == set(made.values()) - {"as it is"}


def wrongs(rule: str) -> Iterator[tuple[str, str]]:
    """Give the ways in which a rule might be wrong, and the rule as it would be then."""
    yield "never fires", rule.replace("alert: Pillarbox", "alert: Other")
    for sign, looser in ((">", 0.95), ("<", 1.0005)):
        for bound in set(re.findall(rf" {sign} ([\d.e]+)\n", rule)):
            worse = f"{float(bound) * looser or -1:f}"
            yield f"fires by {sign} {worse}", rule.replace(f" {sign} {bound}\n", f" {sign} {worse}\n")
    if " == 1" in rule:
        yield "fires by == 0", rule.replace(" == 1", " >= 0")
    if after := re.search(r"for: (\d+)m\n", rule):
        yield "fires at once", rule.replace(after[0], "for: 0m\n")
        yield "fires later", rule.replace(after[0], f"for: {2 * int(after[1])}m\n")


def cases_of(alert: str, tests: str) -> str | None:
    """Give a file of tests with only the cases in which an alert is asked for, and only what is asked about it."""
    head, *cases = re.split(r"^(?=  - name: )", tests, flags=re.MULTILINE)
    kept = []
    for case in cases:
        series, *questions = re.split(r"^(?=      - alertname: )", case, flags=re.MULTILINE)
        asked = [question for question in questions if question.startswith(f"      - alertname: {alert}\n")]
        kept += [series + "".join(asked)] if asked else []
    return head + "".join(kept) if kept else None


@each_rule
def test_a_rule_asks_for_metrics_that_are_served(rule: str) -> None:
    asked = set(re.findall(r"pillarbox_\w+", rule))
    assert asked
    assert asked <= served()


@each_rule
def test_a_rule_has_a_severity_a_summary_and_a_runbook(rule: str) -> None:
    assert re.search(r"severity: (info|warning|critical)\n", rule)
    assert re.search(r'summary: ".+"\n', rule)
    assert f"runbook: docs/guides/alerts.md#{name_of(rule).lower()}\n" in rule


def test_the_guide_has_a_section_for_every_alert_and_no_other() -> None:
    sections = re.findall(r"^## (Pillarbox\w+)$", (GUIDES / "alerts.md").read_text(), flags=re.MULTILINE)
    assert sections == [name_of(rule) for rule in ALERTS]


def test_the_guide_lists_the_metrics_that_are_served() -> None:
    listed = re.findall(r"^\| `(pillarbox_\w+)", (GUIDES / "operating.md").read_text(), flags=re.MULTILINE)
    assert set(listed) == {re.sub(r"_(bucket|sum|count)$", "", name) for name in served()}


def test_the_configuration_in_the_guide_loads_the_rules(tmp_path: Path) -> None:
    [shown] = re.findall(r"^```yaml\n(.*?)^```", (GUIDES / "alerts.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "prometheus.yml").write_text(shown)
    shutil.copy(PLACE / "pillarbox.rules.yml", tmp_path)
    checked = installed(lambda: promtool("check", "config", tmp_path / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout
    assert f"SUCCESS: {len(ALERTS)} rules found" in checked.stdout


def test_the_metrics_keep_their_names() -> None:
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in served()}
    assert names == {f"pillarbox_{name}" for name in PROMISED.split()}


@pytest.mark.parametrize("page", pages(), ids=["relay", "consumer"])
def test_promtool_has_nothing_against_the_metrics(page: bytes) -> None:
    checked = installed(lambda: promtool("check", "metrics", text=page.decode()))
    assert (checked.returncode, checked.stdout) == (0, "")
