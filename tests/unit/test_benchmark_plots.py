"""The plots of the benchmarks: every row is in one, and what misses its goal is seen."""

import json
from datetime import date
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.plots import PLOTS, RESULTS, draw, group_of
from benchmarks.tables import PAGE, STAMPS, renewed, stamp


def test_every_row_is_in_one_plot_and_every_plot_is_what_the_file_says(tmp_path: Path) -> None:
    results = tmp_path / "latest.json"
    results.write_bytes(RESULTS.read_bytes())
    drawn = draw(results)
    texts = [ElementTree.parse(file).getroot() for file in drawn]  # what is no XML fails here
    names = [element.text for root in texts for element in root if element.tag.endswith("text")]
    for row in json.loads(results.read_text()):
        assert names.count(row["name"]) == 1, row["name"]
    assert sum(file.read_text().count('fill="#a22"') for file in drawn) == RESULTS.read_text().count('"met": false')
    for file in drawn:
        assert file.read_text() == RESULTS.with_name(file.name).read_text(), "run python -m benchmarks.plots"


@pytest.mark.parametrize(
    ("row", "plot"),
    [
        ("PostgreSQL → Redis: commit → broker at 100/s, p50, beside the commits themselves", "whole"),
        ("commit → Kafka consumer at 1,000 events/s, polling, p99", "latency"),
        ("commit → Kafka consumer at 1,000 events/s, polling, beside a Debezium for low latency, p99", "debezium"),
        ("drain PostgreSQL to Kafka, beside a warm and tuned Debezium", "debezium"),
        ("drain PostgreSQL to Kafka, beside its bare client, payloads of 100 B", "brokers"),
        ("drain at a depth of 1,000,000, beside 100,000", "depth"),
        ("WAL of a transaction (two statements) with an event, beside none", "writers"),
        ("outbox.add, one event a durable commit", "writers"),
        ("an idle relay: queries a second", "rest"),
    ],
)
def test_a_row_is_where_one_looks_for_it(row: str, plot: str) -> None:
    assert group_of(row) == plot


def test_the_titles_tell_the_plots_apart() -> None:
    assert len({title for title, _ in PLOTS.values()}) == len(PLOTS)


def test_the_page_shows_the_rows_of_the_file() -> None:
    page, rows = PAGE.read_text(), json.loads(RESULTS.read_text())
    stamps = json.loads(RESULTS.with_name(STAMPS).read_text())
    assert renewed(page, rows, stamps) == page, "run python -m benchmarks.tables"
    assert all(page.count(f"| {row['name']} | {row['unit']} |") == 1 for row in rows)
    assert page.count("| **no** |") == RESULTS.read_text().count('"met": false')


def test_a_run_stamps_its_rows_and_leaves_those_of_others(tmp_path: Path) -> None:
    results = tmp_path / "latest.json"
    results.write_text(json.dumps([{"name": "a"}, {"name": "b"}]))
    results.with_name(STAMPS).write_text(json.dumps({"a": ["2026-01-01", "old"], "gone": ["2026-01-01", "old"]}))
    stamp(results, ["b"], date(2026, 2, 3), "new")
    assert json.loads(results.with_name(STAMPS).read_text()) == {"a": ["2026-01-01", "old"], "b": ["2026-02-03", "new"]}
