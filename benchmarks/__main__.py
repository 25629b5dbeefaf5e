"""Run the benchmarks, show the table, and write benchmarks/results/latest.json."""

import argparse
import json
import platform
import sqlite3
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import adding, consuming, drain, latency, reading
from benchmarks.measure import Row

RESULTS = Path(__file__).parent / "results" / "latest.json"
ALL = {
    "drain": drain.rows,
    "adding": adding.rows,
    "reading": reading.rows,
    "consuming": consuming.rows,
    "latency": latency.rows,
}


def main() -> int:
    """Give 0 if every goal was met, 1 if not; a quick run judges nothing."""
    options = _options()
    place = options.directory.resolve()
    place.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    console = Console()
    columns = SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("")
        for name in options.only or ALL:
            rows += ALL[name](place, options.quick, lambda text: progress.update(task, description=text))
    console.print(_table(rows))
    console.print(_machine())
    if options.quick:
        console.print("A quick run: the figures say that it works, not how fast it is. Nothing was written.")
        return 0
    if not options.only:
        RESULTS.write_text(json.dumps([row.as_dict() for row in rows], indent=2, ensure_ascii=False) + "\n")
        console.print("Written to benchmarks/results/latest.json")
    return 0 if all(row.met is not False for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of a minute: few events, nothing written")
    parser.add_argument("--only", nargs="+", choices=list(ALL), help="run only these, and write nothing")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("build"),
        help="where the files go; a real disk, not memory (default: build)",
    )
    return parser.parse_args()


def _table(rows: list[Row]) -> Table:
    table = Table("benchmark", "unit", title="Medians of three rounds in turns")
    for name in ("ours", "reference", "ratio", "goal", "met"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.name, row.unit, _figure(row.value), _figure(row.reference), _figure(row.ratio), row.goal or "",
            "" if row.met is None else "yes" if row.met else "NO",
        )  # fmt: skip
    return table


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"


def _machine() -> str:
    return (
        f"{platform.system()} {platform.release()} {platform.machine()}, {_processor()}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} cores of {names[0]}" if names else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
