"""Write the rows of benchmarks/results/latest.json into docs/benchmarks.md: a plot and its table for each group, and
when and on what each row was measured.

python -m benchmarks.tables
"""

import json
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from benchmarks.plots import PLOTS, RESULTS, group_of
from pillarbox.bench.rows import written

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
STAMPS = "measured.json"
"""Beside the results: the day and the machine of each row, by its name."""
BEGIN, END = "<!-- rows: written by python -m benchmarks.tables -->", "<!-- end of the rows -->"
_HEAD = "| benchmark | unit | ours | reference | ratio | goal | met | run |\n|---|---|---:|---:|---:|---|---|---|"
Stamps = Mapping[str, list[str]]


def stamp(results: Path, names: Iterable[str], day: date, machine: str) -> None:
    """Note when and on what rows were measured."""
    file = results.with_name(STAMPS)
    before = json.loads(file.read_text()) if file.exists() else {}
    there = {row["name"] for row in json.loads(results.read_text())}
    stamps = before | {name: [day.isoformat(), machine] for name in names}
    kept = {name: on for name, on in stamps.items() if name in there}
    file.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n")


def write(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Put the rows in the place of those that stand on the page."""
    stamps = json.loads(results.with_name(STAMPS).read_text())
    page.write_text(renewed(page.read_text(), json.loads(results.read_text()), stamps))


def renewed(text: str, rows: list[dict[str, Any]], stamps: Stamps) -> str:
    """Give the page's text with these rows."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    runs = sorted({tuple(on) for on in stamps.values()}, reverse=True)
    mark = {name: _mark(runs.index((on[0], on[1]))) for name, on in stamps.items()}
    groups = [(name, [row for row in rows if group_of(row["name"]) == name]) for name in PLOTS]
    tables = [_table(name, belonging, mark) for name, belonging in groups if belonging]
    told = "\n".join(f"- **{_mark(place)}**: {day}, {machine}" for place, (day, machine) in enumerate(runs))
    return "\n\n".join([before + BEGIN, *tables, f"### The runs\n\n{told}", END + after])


def _mark(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else str(place)


def _table(group: str, rows: list[dict[str, Any]], mark: Mapping[str, str]) -> str:
    title = PLOTS[group][0]
    picture = f"![{title}](../benchmarks/results/{group}.svg)"
    return "\n".join([f"### {title}", "", picture, "", _HEAD, *(_line(row, mark[row["name"]]) for row in rows)])


def _line(row: dict[str, Any], run: str) -> str:
    figures = [written(row[name]) for name in ("value", "reference", "ratio")]
    met = {None: "", True: "yes", False: "**no**"}[row["met"]]
    return f"| {row['name']} | {row['unit']} | {' | '.join(figures)} | {row['goal'] or 'shown'} | {met} | {run} |"


if __name__ == "__main__":
    write()
