"""Write the rows of benchmarks/results/latest.json into docs/benchmarks.md: a plot and its table for each group.

python -m benchmarks.tables
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.plots import PLOTS, RESULTS, group_of
from pillarbox.bench.rows import written

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- rows: written by python -m benchmarks.tables -->", "<!-- end of the rows -->"
_HEAD = "| benchmark | unit | ours | reference | ratio | goal | met |\n|---|---|---:|---:|---:|---|---|"


def write(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Put the rows in the place of those that stand on the page."""
    page.write_text(renewed(page.read_text(), json.loads(results.read_text())))


def renewed(text: str, rows: list[dict[str, Any]]) -> str:
    """Give the page's text with these rows."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    groups = [(name, [row for row in rows if group_of(row["name"]) == name]) for name in PLOTS]
    tables = [_table(name, belonging) for name, belonging in groups if belonging]
    return "\n\n".join([before + BEGIN, *tables, END + after])


def _table(group: str, rows: list[dict[str, Any]]) -> str:
    title = PLOTS[group][0]
    picture = f"![{title}](../benchmarks/results/{group}.svg)"
    return "\n".join([f"### {title}", "", picture, "", _HEAD, *map(_line, rows)])


def _line(row: dict[str, Any]) -> str:
    figures = [written(row[name]) for name in ("value", "reference", "ratio")]
    met = {None: "", True: "yes", False: "**no**"}[row["met"]]
    return f"| {row['name']} | {row['unit']} | {' | '.join(figures)} | {row['goal'] or 'shown'} | {met} |"


if __name__ == "__main__":
    write()
