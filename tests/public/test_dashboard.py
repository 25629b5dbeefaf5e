"""The dashboard is one that Grafana can lay out, asks only its own data source, and shows every metric there is."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.public.test_alerts import served

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "deploy" / "grafana" / "pillarbox.json").read_text()
)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
METRIC = re.compile(r"pillarbox_\w+")
SHOWN = [panel for panel in PANELS if panel["type"] != "row"]


def test_its_panels_have_numbers_of_their_own_and_places_that_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = [panel["gridPos"] for panel in PANELS]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert [(a, b) for a, b in combinations(places, 2) if overlap(a, b)] == []


def overlap(a: dict[str, int], b: dict[str, int]) -> bool:
    return all(a[at] < b[at] + b[size] and b[at] < a[at] + a[size] for at, size in (("x", "w"), ("y", "h")))


def test_its_data_source_is_a_variable_everywhere() -> None:
    source, job = DASHBOARD["templating"]["list"]
    assert (source["name"], source["type"], source["query"]) == ("datasource", "datasource", "prometheus")
    askers = [job, *SHOWN, *(target for panel in SHOWN for target in panel["targets"])]
    assert [asker for asker in askers if asker["datasource"] != {"type": "prometheus", "uid": "${datasource}"}] == []


def test_a_panel_says_what_it_shows_in_which_unit() -> None:
    for panel in SHOWN:
        assert panel["title"]
        assert panel["description"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
        assert panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"]


def test_it_shows_every_metric() -> None:
    shown = {name for panel in SHOWN for target in panel["targets"] for name in METRIC.findall(target["expr"])}
    assert shown == served()
