"""The report of a run: tables for people, one JSON object for programs."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from pillarbox.torture.evidence import Event, Evidence, causes, copies_come_from, counts, latencies, poison_log
from pillarbox.torture.judge import Judgement
from pillarbox.torture.waiting import waiting


def show(console: Console, evidence: Evidence, judgements: Sequence[Judgement]) -> None:
    """Show what happened, what was done, and whether what must hold does."""
    struck = Counter(one["fault"] for one in evidence.facts["faults"])
    console.print(_pairs({name.replace("_", " "): value for name, value in counts(evidence).items()}))
    if struck:
        console.print(_pairs(dict(sorted(struck.items())), "faults that struck"))
        console.print(_fault_log(evidence))
    if poisons := poison_log(evidence):
        console.print(_poison_log(poisons))
    for one in evidence.facts["left_out"]:
        console.print(f"left out: {one['what']}: {one['reason']}", highlight=False)
    if came := copies_come_from(evidence):
        console.print(_copies(came))
    console.print(_judged(judgements))


def as_json(evidence: Evidence, judgements: Sequence[Judgement], command: str) -> str:
    """Write everything as one object."""
    took, facts = sorted(took for _, took in latencies(evidence)), evidence.facts
    return json.dumps({
        "ok": all(one.holds for one in judgements),
        "seed": facts["seed"],
        "seconds": facts["seconds"],
        "repeat_with": command,
        **counts(evidence),
        "questions": {
            one.question: {"title": one.title, "holds": one.holds, "seen": one.seen, "findings": list(one.findings)}
            for one in judgements
        },
        "latency_seconds": {name: _percentile(took, share) for name, share in (("p50", 0.5), ("p99", 0.99))},
        "fault_log": facts["faults"],
        "poison_log": poison_log(evidence),
        "left_out": facts["left_out"],
        "rest_seconds": facts["rest_seconds"],
        "waiting": waiting(evidence),
        "waited": facts["waited"],
        "pruned": facts["pruned"],
        "most_copies": sum(cause["most"] for cause in facts["causes"]),
        "copies_come_from": copies_come_from(evidence),
        "copies_by_cause": causes(evidence),
        "metrics": facts["metrics"],
        "ended_by_themselves": facts["words"],
        "servers": facts["servers"],
    })  # fmt: skip


def _percentile(values: Sequence[float], share: float) -> float | None:
    return round(values[int(len(values) * share)], 4) if values else None


def _pairs(values: Mapping[str, int], title: str | None = None) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    table.add_column(min_width=18)
    table.add_column(justify="right", min_width=8)
    for name, value in values.items():
        table.add_row(name, f"{value:,}")
    return table


def _copies(came: Mapping[str, Mapping[str, int]]) -> Table:
    table = Table(title="copies, and what may have made them", title_justify="left")
    table.add_column("cause")
    for column in ("times", "copies", "at most", "share"):
        table.add_column(column, justify="right")
    for name, one in came.items():
        share = f"{one['copies'] / one['most']:.1%}" if one["most"] else ""
        table.add_row(name, f"{one['causes']:,}", f"{one['copies']:,}", f"{one['most']:,}", share)
    return table


def _fault_log(evidence: Evidence) -> Table:
    table = Table(title="fault log", title_justify="left")
    for column in ("at", "what", "whom", "for"):
        table.add_column(column)
    for one in evidence.facts["faults"]:
        lasted = one["ended_at"] - one["began_at"] if one["lasts"] else 0.0
        table.add_row(f"{one['at']:.2f} s", one["fault"], one["whom"], f"{lasted:.1f} s" if lasted else "at once")
    return table


def _poison_log(poisons: Sequence[Event]) -> Table:
    table = Table(title="events that are poison", title_justify="left")
    for column in ("at", "what", "event", "killed", "for", "ended"):
        table.add_column(column)
    for one in poisons:
        killed, lasted = ", ".join(one["whom"]) or "nobody", f"{one['lasted']:.1f} s" if one["lasted"] else ""
        table.add_row(f"{one['at']:.2f} s", one["poison"], one["id"], killed, lasted, one["ended"])
    return table


def _judged(judgements: Sequence[Judgement]) -> Table:
    table = Table(title="judged by the evidence alone", title_justify="left")
    for column in ("", "what must hold", "", "seen"):
        table.add_column(column)
    for one in judgements:
        style = "green" if one.holds else "bold red"
        table.add_row(one.question, one.title, "holds" if one.holds else "BROKEN", one.seen, style=style)
    return table
