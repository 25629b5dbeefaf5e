"""Run the benchmarks, show the table, and write benchmarks/results/latest.json."""

import argparse
import json
import platform
import sqlite3
import sys
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks import adding, brokers, consuming, drain, latency, plots, postgres, reading, tables, whole
from benchmarks.measure import Progress as Tell
from benchmarks.measure import Row
from pillarbox.bench.rows import written
from servers.postgres import Postgres
from servers.process import STARTED

CLIENTS = ("psycopg", "confluent-kafka", "redis", "hiredis", "nats-py", "aiormq", "aio-pika")
RESULTS = Path(__file__).parent / "results" / "latest.json"


class Bench:
    """Where the benchmarks work: a directory, and a PostgreSQL that is started when the first one asks for it."""

    def __init__(self, place: Path, quick: bool, tell: Tell) -> None:
        self.place, self.quick, self.tell = place, quick, tell
        self._servers = ExitStack()

    @cached_property
    def postgres(self) -> Postgres:
        self.tell("starting PostgreSQL")
        return self._servers.enter_context(postgres.durable_server())

    def close(self) -> None:
        self._servers.close()


ALL: dict[str, Callable[[Bench], list[Row]]] = {
    "drain": lambda at: drain.rows(at.place, at.quick, at.tell),
    "adding": lambda at: adding.rows(at.place, at.quick, at.tell),
    "reading": lambda at: reading.rows(at.place, at.quick, at.tell),
    "consuming": lambda at: consuming.rows(at.place, at.quick, at.tell),
    "latency": lambda at: latency.rows(at.place, at.quick, at.tell),
    "postgres-reading": lambda at: postgres.reading_rows(at.postgres, at.quick, at.tell),
    "postgres-drain": lambda at: postgres.drain_rows(at.postgres, at.quick, at.tell),
    "postgres-depth": lambda at: postgres.depth_rows(at.postgres, at.quick, at.tell),
    "postgres-latency": lambda at: postgres.latency_rows(at.postgres, at.quick, at.tell),
    "postgres-writing": lambda at: postgres.writing_rows(at.postgres, at.quick, at.tell),
    "postgres-takeover": lambda at: postgres.takeover_rows(at.postgres, at.place, at.quick, at.tell),
    "postgres-receiving": lambda at: postgres.receiving_rows(at.postgres, at.quick, at.tell),
    "postgres-deadly": lambda at: postgres.deadly_rows(at.postgres, at.place, at.quick, at.tell),
    "postgres-operating": lambda at: postgres.operating_rows(at.postgres, at.quick, at.tell),
    "postgres-idle": lambda at: postgres.idle_rows(at.postgres, at.place, at.quick, at.tell),
    "brokers-kafka": lambda at: brokers.drain_rows(at.postgres, "kafka", at.quick, at.tell),
    "brokers-debezium": lambda at: brokers.debezium_rows(at.quick, at.tell),
    "brokers-debezium-latency": lambda at: brokers.debezium_latency_rows(at.quick, at.tell),
    "brokers-redis": lambda at: brokers.drain_rows(at.postgres, "redis", at.quick, at.tell),
    "brokers-nats": lambda at: brokers.drain_rows(at.postgres, "nats", at.quick, at.tell),
    "brokers-rabbitmq": lambda at: brokers.drain_rows(at.postgres, "rabbitmq", at.quick, at.tell),
    "whole-embedded": lambda at: whole.embedded_rows(at.place, at.quick, at.tell),
    "whole-kafka": lambda at: whole.rows(at.postgres, "kafka", at.quick, at.tell),
    "whole-redis": lambda at: whole.rows(at.postgres, "redis", at.quick, at.tell),
    "whole-nats": lambda at: whole.rows(at.postgres, "nats", at.quick, at.tell),
    "whole-rabbitmq": lambda at: whole.rows(at.postgres, "rabbitmq", at.quick, at.tell),
}
TOGETHER = {
    "sqlite": [name for name in ALL if "-" not in name],
    **{part: [name for name in ALL if name.startswith(f"{part}-")] for part in ("postgres", "brokers", "whole")},
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
        bench = Bench(place, options.quick, lambda text: progress.update(task, description=text))
        try:
            for name in _chosen(options.only):
                rows += ALL[name](bench)
        finally:
            bench.close()
    console.print(_table(rows))
    console.print(_machine(), soft_wrap=True)
    if options.quick:
        console.print("A quick run: the figures say that it works, not how fast it is. Nothing was written.")
        return 0
    if options.write or not options.only:
        before = json.loads(RESULTS.read_text()) if options.only and RESULTS.exists() else []
        RESULTS.write_text(json.dumps(_renewed(before, rows), indent=2, ensure_ascii=False) + "\n")
        tables.stamp(RESULTS, [row.name for row in rows], datetime.now(UTC).date(), _machine())
        plots.draw(RESULTS)
        tables.write()
        console.print("Written to benchmarks/results/latest.json, drawn beside it, and shown in docs/benchmarks.md")
    return 0 if all(row.met is not False for row in rows) else 1


def _renewed(before: list[dict[str, Any]], rows: list[Row]) -> list[dict[str, Any]]:
    """Put rows in the place of those of the same name, and new ones at the end."""
    return list(({row["name"]: row for row in before} | {row.name: row.as_dict() for row in rows}).values())


def _chosen(only: list[str] | None) -> list[str]:
    """Give the names in the order of the table, each once."""
    wanted = {name for one in only or TOGETHER for name in TOGETHER.get(one, [one])}
    return [name for name in ALL if name in wanted]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run of a few minutes: few events, nothing written"
    )
    parser.add_argument("--only", nargs="+", choices=[*TOGETHER, *ALL], help="run only these, and write nothing")
    parser.add_argument(
        "--write", action="store_true", help="with --only: write these rows, and leave the others as they are"
    )
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
            row.name, row.unit, written(row.value), written(row.reference), written(row.ratio), row.goal or "",
            "" if row.met is None else "yes" if row.met else "NO",
        )  # fmt: skip
    return table


def _machine() -> str:
    return (
        f"{platform.system()} {platform.release()} {platform.machine()}, {_processor()}, "
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
        + "".join(f", {server}" for server in sorted(STARTED))
        + "; "
        + ", ".join(f"{client} {version(client)}" for client in CLIENTS)
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
