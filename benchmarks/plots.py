"""Draw benchmarks/results/latest.json: a plot for each group of rows, beside it.

python -m benchmarks.plots
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pillarbox.bench.plot import Bar, plot

RESULTS = Path(__file__).parent / "results" / "latest.json"
_Belongs = Callable[[str], bool]
PLOTS: dict[str, tuple[str, _Belongs]] = {
    "whole": (
        "The whole way: from the commit to the broker and to the effect",
        lambda name: "→ " in name and ": " in name,
    ),
    "debezium": ("Beside Debezium", lambda name: "Debezium" in name),
    "latency": (
        "From the commit on",
        lambda name: name.startswith(("commit →", "delivery latency", "takeover", "other ")),
    ),
    "brokers": ("To a broker, beside its bare client", lambda name: name.startswith("drain PostgreSQL to")),
    "depth": ("At depth, under a snapshot, with several relays", lambda name: name.startswith("drain")),
    "writers": (
        "What an event costs who writes it",
        lambda name: name.startswith(("a transaction", "WAL of a transaction", "outbox.add")),
    ),
    "receiving": ("On the receiving side", lambda name: name.startswith(("consume", "handle"))),
    "rest": ("Reading, operating, waiting", lambda name: True),
}
"""By the name of its file: the title, and what belongs to it; a row belongs to the first that takes it."""


def draw(results: Path) -> list[Path]:
    """Draw all rows; give the files."""
    groups: dict[str, list[Bar]] = {name: [] for name in PLOTS}
    for row in json.loads(results.read_text()):
        groups[group_of(row["name"])].append(_bar(row))
    drawn = []
    for name, bars in groups.items():
        if bars:
            drawn.append(results.with_name(f"{name}.svg"))
            drawn[-1].write_text(plot(PLOTS[name][0], bars))
    return drawn


def group_of(row: str) -> str:
    """Say which plot shows a row."""
    return next(name for name, (_, belongs) in PLOTS.items() if belongs(row))


def _bar(row: dict[str, Any]) -> Bar:
    return Bar(row["name"], row["value"], row["unit"], row["reference"], row["met"] is False)


if __name__ == "__main__":
    for file in draw(RESULTS):
        print(file)
