"""Every expression of the dashboard is asked of a real Prometheus that scrapes a real relay and a real consumer."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pillarbox import Event
from tests.acceptance.watched_shop import WatchedShop, until

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "pillarbox.json"
VARIABLES = {"$job": "shop|billing", "$__rate_interval": "1m"}
WITHOUT_DATA = {
    "pillarbox_slot_retained_bytes": "only where the reader of a replication slot carries the events",
}
"""What may have nothing to say here, and why."""
BOUNDED = {
    "reason": {"away", "timeout", "rejected", "other"},
    "result": {"handled", "copies", "ignored", "retried", "dead"},
    "table": {"file"},
}
"""All that a label of ours can say on SQLite; `le` and `version` are fixed where a daemon is built."""


def test_every_expression_of_the_dashboard_is_answered(tmp_path: Path) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    with WatchedShop(tmp_path) as shop:
        shop.refuse("mails")
        shop.relay("--set", "health.canary=1 s")
        shop.consumer("--topic", "pillarbox-canary")
        shop.until_value("pillarbox_relay_up", 1)
        shop.until_value('pillarbox_inbox_total{result="handled"} + 1', 1)
        shop.place(range(10, 15))
        shop.add(Event("MailWanted", {}, aggregate=("customer", 7), topic="mails"))
        shop.until_value('pillarbox_inbox_total{result="handled"}', 4)
        shop.until_firing("PillarboxDead", "PillarboxInboxDead")
        expressions = [asked(expression) for expression in expressions_of(dashboard)]
        assert len(expressions) == DASHBOARD.read_text().count('"expr":')
        for expression in expressions:
            if any(metric in expression for metric in WITHOUT_DATA):
                assert shop.prometheus.query(expression) == {}
            else:
                until_it_has_numbers(shop, expression)
        [*_, job] = dashboard["templating"]["list"]
        [[metric, label]] = re.findall(r"^label_values\((\w+), (\w+)\)$", job["query"]["query"])
        assert shop.prometheus.ask(f"label/{label}/values", **{"match[]": metric}) == ["billing", "shop"]
        for name, values in labels_of(shop).items():
            assert values <= BOUNDED[name]


def expressions_of(part: Any) -> Iterator[str]:
    """Find every expression, wherever it stands."""
    if isinstance(part, dict):
        if isinstance(part.get("expr"), str):
            yield part["expr"]
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from expressions_of(inner)


def asked(expression: str) -> str:
    """Put in what Grafana puts in for its variables."""
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def until_it_has_numbers(shop: WatchedShop, expression: str) -> None:
    until(lambda: not all(map(math.isnan, shop.prometheus.query(expression).values())), lambda: expression)


def labels_of(shop: WatchedShop) -> dict[str, set[str]]:
    """Give what the labels of our metrics say, but for those of Prometheus and those that are fixed."""
    found: dict[str, set[str]] = {}
    for series in shop.prometheus.ask("series", **{"match[]": '{__name__=~"pillarbox_.+"}'}):
        for name in series.keys() - {"__name__", "job", "instance", "le", "version"}:
            found.setdefault(name, set()).add(series[name])
    return found
