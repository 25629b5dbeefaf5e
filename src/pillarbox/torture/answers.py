"""What Pillarbox says of itself in the end: of each event, in figures, and in metrics. The judge compares it."""

import re
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pillarbox.admin.admin import Admin
from pillarbox.ports import Query
from pillarbox.settings import Settings
from pillarbox.torture.bank import SCHEMA
from pillarbox.torture.processes import Process
from pillarbox.wiring import open_admin

PAGE = 5_000
PATIENCE = 5.0
"""Seconds that metrics may take to say what the tables say: a page shows figures that are up to a second old."""
LOOK_EVERY = 0.2
FIGURES = ("pending", "retrying", "blocked", "delayed", "dead")
_PLACE = re.compile(r"http://(127\.0\.0\.1:\d+)")
_SAMPLE = re.compile(r'^pillarbox_(\w+?)(?:\{result="(\w+)"\})? ([0-9.e+-]+)$', re.MULTILINE)


def open_tables(database: str) -> Admin:
    flags = {"database": database} | ({} if database.startswith("sqlite:") else {"outbox.schema": SCHEMA})
    return open_admin(Settings.load(environment={}, flags=flags))


async def statuses(database: str) -> list[dict[str, Any]]:
    """Ask what `pillarbox events list` says of every event."""
    found: list[dict[str, Any]] = []
    query = Query(newest_first=False, limit=PAGE)
    async with open_tables(database) as admin:
        while page := await admin.find(query):
            found += ({"side": "outbox", "id": str(one.event_id), "status": one.status} for one in page)
            query = replace(query, after=page[-1].position)
    return found


async def figures(database: str) -> dict[str, int]:
    """Ask what `pillarbox stats` says."""
    async with open_tables(database) as admin:
        said = await admin.figures()
    return {name: said.pending if name == "pending" else int(getattr(said.stats, name)) for name in FIGURES}


def metrics(
    processes: Sequence[Process], agree: Callable[[Mapping[str, float]], bool] = lambda said: True
) -> list[dict[str, Any]]:
    """Ask each process for its metrics; again for a while where its figures are not yet those of the tables."""
    deadline = time.monotonic() + PATIENCE
    said = [_metrics_of(one) for one in processes]
    while not all(map(agree, said)) and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
        said = [_metrics_of(one) for one in processes]
    return [{"process": one.name, **samples} for one, samples in zip(processes, said, strict=True)]


def _metrics_of(process: Process) -> dict[str, float]:
    """Ask one process; a counter with results gives one number for each."""
    place = _PLACE.search(process.log.read_text(errors="replace"))
    if place is None:
        return {}
    try:
        with urllib.request.urlopen(f"http://{place[1]}/metrics", timeout=PATIENCE) as answer:
            text = answer.read().decode()
    except OSError:
        return {}  # it has none, or it is gone: the judge sees that it has said nothing
    return {f"{name} {result}".strip(): float(value) for name, result, value in _SAMPLE.findall(text)}
