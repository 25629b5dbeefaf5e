"""The evidence of a torture run, and the nine questions that are asked of it. It imports the checker, and nothing else
of Pillarbox.

    intents/*.jsonl   one file per writer: every change before its commit, its outcome after it, the end
    journal.jsonl     the changes whose row is in the database
    wire.jsonl        what the tap read, in the broker's order
    effects.jsonl     the ledger, in its order
    statuses.jsonl    what the tables say of each event in the end
    facts.json        what was done to the system, and when it had come to rest

Every list ends with {"end": how many lines it has}: one that was cut off proves nothing.
`python -m pillarbox.torture.evidence DIR` judges again what a run has left behind.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.torture.checker import Change, History, Report, Seen, check, in_commit_order, resolve

REST = 60.0
"""Within so many seconds after the last fault, everything is published and applied."""
Event = Mapping[str, Any]
"""What is known of an event, by the names that the writers use."""
SAME = ("type", "aggregate", "topic", "version", "amount", "headers")


class Judgement(NamedTuple):
    """The answer to one question: does it hold, and in a few words what was seen."""

    question: str
    title: str
    holds: bool
    seen: str
    findings: Sequence[str] = ()


@dataclass(frozen=True)
class Evidence:
    """What a run has left behind."""

    changes: Sequence[Change]
    committed_at: Mapping[str, float]
    """When the writer heard of the commit, by event; where it waited for that."""
    journal: frozenset[str]
    wire: Sequence[Event]
    effects: Sequence[Event]
    statuses: Sequence[Event]
    facts: Mapping[str, Any]
    unsound: Sequence[str] = ()


def read(directory: Path) -> Evidence:
    """Read the evidence in a directory."""
    unsound: list[str] = []
    changes: list[Change] = []
    logs = sorted((directory / "intents").glob("*.jsonl"))
    if not logs:
        unsound.append(f"there is no intent log in {directory}")
    committed_at: dict[str, float] = {}
    for log in logs:
        entries = list(_lines(log, unsound, ends=False))
        changes += _changes(entries, log.name, unsound)
        times = {entry["change"]: entry["at"] for entry in entries if entry.get("outcome") == "done"}
        committed_at |= {event["id"]: times[one.id] for one in changes if one.id in times for event in one.events}
    journal, wire, effects, statuses = (
        list(_lines(directory / f"{name}.jsonl", unsound)) for name in ("journal", "wire", "effects", "statuses")
    )
    facts = json.loads((directory / "facts.json").read_text())
    committed = frozenset(entry["change"] for entry in journal)
    return Evidence(changes, committed_at, committed, wire, effects, statuses, facts, tuple(unsound))


def _lines(file: Path, unsound: list[str], *, ends: bool = True) -> Iterator[Event]:
    """Read a list up to its end. A writer that is killed leaves none, so its own log may do without."""
    end = None
    count = 0
    for number, line in enumerate(file.read_text(errors="replace").split("\n"), start=1):
        if not line:
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            unsound.append(f"{file.name}, line {number} cannot be read: {line[:80]!r}")
            continue
        if "end" in entry:
            end = entry["end"]
            continue
        count += 1
        yield entry
    if end is None or (ends and end != count):
        unsound.append(f"{file.name} was cut off: it has {count} lines, and its end says {end}")


def _changes(entries: Sequence[Event], name: str, unsound: list[str]) -> list[Change]:
    intents: dict[str, Sequence[Event]] = {}
    outcomes: dict[str, str] = {}
    for entry in entries:
        if "outcome" in entry:
            outcomes[entry["change"]] = entry["outcome"]
        elif entry["change"] in intents:
            unsound.append(f"{name}: the change {entry['change']} was written down before")
        else:
            intents[entry["change"]] = entry["events"]
    unsound.extend(
        f"{name} has an outcome of the change {change}, but no intent"
        for change in sorted(outcomes.keys() - intents.keys())
    )
    return [Change(change, events, outcomes.get(change)) for change, events in intents.items()]


def judge(evidence: Evidence) -> Sequence[Judgement]:
    """Ask all questions; the last one is whether the evidence is worth anything."""
    unsound = list(evidence.unsound)
    done, rolled_back = resolve(evidence.changes, set(evidence.journal), unsound)
    events = {event["id"]: event for change in evidence.changes for event in change.events}
    lines = {line: [Seen(one.id) for one in seen] for line, seen in in_commit_order(done, unsound).items()}
    fated = {id for id, event in events.items() if "fate" in event}
    undone = [Seen(event["id"]) for change in rolled_back for event in change.events]
    history = History(lines, undone, wire=[Seen(message["id"]) for message in evidence.wire])
    wire = check(history)
    effects = check(
        replace(
            history,
            committed={line: [one for one in seen if one.id not in fated] for line, seen in lines.items()},
            wire=[Seen(effect["id"]) for effect in evidence.effects],
        )
    )
    unsound += [one for one in wire.findings if one.startswith("the evidence")]
    return [
        _none("C1", "nothing lost", "lost", wire, effects),
        _none("C2", "no phantom", "phantom", wire, effects),
        _none("C3", "first copies in order per aggregate", "out of order", wire),
        _few_copies(evidence, wire),
        _once(effects),
        _unchanged(evidence, events),
        _at_rest(evidence),
        _statuses(evidence, {id: events[id] for seen in lines.values() for id, _ in seen}),
        Judgement("C9", "the evidence is sound", not unsound, f"{len(evidence.changes):,} changes", unsound),
    ]


def counts(evidence: Evidence) -> dict[str, int]:
    """Count what happened, for people."""
    done, rolled_back = resolve(evidence.changes, set(evidence.journal), [])
    published = Counter(message["id"] for message in evidence.wire)
    return {
        "committed": sum(len(change.events) for change in done),
        "rolled_back": sum(len(change.events) for change in rolled_back),
        "published": len(published),
        "copies": published.total() - len(published),
        "applied": len({effect["id"] for effect in evidence.effects}),
        "dead_letters": sum(one["status"] == "dead" for one in evidence.statuses),
        "faults": len(evidence.facts["faults"]),
    }


def latencies(evidence: Evidence) -> Sequence[tuple[float, float]]:
    """Give when each event was committed, in seconds since the start, and how long it took to the broker."""
    first: dict[str, float] = {}
    for message in evidence.wire:
        first.setdefault(message["id"], message["at"])
    began = evidence.facts["began_at"]
    return sorted((at - began, max(0.0, first[id] - at)) for id, at in evidence.committed_at.items() if id in first)


def _none(question: str, title: str, fault: str, *reports: Report) -> Judgement:
    places = ("on the wire", "applied")
    findings = [
        finding.replace("on the wire", place)
        for report, place in zip(reports, places, strict=False)
        for finding in report.findings
        if finding.startswith(f"{fault}:")
    ]
    return Judgement(question, title, not findings, f"{len(findings)} {fault}", findings)


def _few_copies(evidence: Evidence, wire: Report) -> Judgement:
    """A crash repeats at most what lies after the newest tick; without a fault, nothing is repeated."""
    most = evidence.facts["most_copies"]
    seen = f"{wire.copies:,} copies of at most {most:,}"
    findings = [f"copies: {seen}"] if wire.copies > most else []
    return Judgement("C4", "copies within their bound", not findings, seen, findings)


def _once(effects: Report) -> Judgement:
    findings = [one.replace("on the wire", "applied") for one in effects.findings if one.startswith("out of order")]
    if effects.copies:
        findings.append(f"applied twice: {effects.copies} effects too many")
    return Judgement(
        "C5", "each effect once, and in order", not findings, f"{effects.published:,} effects, {effects.copies} twice",
        findings,
    )  # fmt: skip


def _unchanged(evidence: Evidence, events: Mapping[str, Event]) -> Judgement:
    findings = []
    for where, seen in (("on the wire", evidence.wire), ("applied", evidence.effects)):
        for one in seen:
            meant = events.get(one["id"])
            other = [name for name in SAME if meant is not None and name in one and one[name] != meant[name]]
            findings += [f"changed: {one['id']} is {where} with {name} {one[name]!r}" for name in other]
    return Judgement("C6", "payload and headers unchanged", not findings, f"{len(findings)} changed", findings)


def _at_rest(evidence: Evidence) -> Judgement:
    rest = evidence.facts["rest_seconds"]
    if rest is None:
        return Judgement("C7", "at rest soon after the last fault", False, "never", ["it never came to rest"])
    findings = [f"late: at rest {rest:.1f} s after the last fault"] if rest > REST else []
    return Judgement("C7", "at rest soon after the last fault", not findings, f"after {rest:.1f} s", findings)


def _statuses(evidence: Evidence, committed: Mapping[str, Event]) -> Judgement:
    """Each committed event is published; what no handler survived is a dead letter, and nothing else is."""
    findings = []
    published = {message["id"] for message in evidence.wire}
    for side, fate in (("outbox", "published"), ("inbox", "dead")):
        said = [one for one in evidence.statuses if one["side"] == side]
        meant = {id for id, event in committed.items() if side == "outbox" or "fate" in event}
        pruned = published if side == "outbox" and evidence.facts["prunes"] else set()
        times = Counter(one["id"] for one in said)
        findings += [f"status: {id} has {count} of them ({side})" for id, count in times.items() if count > 1]
        findings += [f"status: {one['id']} is {one['status']} ({side})" for one in said if one["status"] != fate]
        findings += [f"status: {id} has none ({side})" for id in sorted(meant - times.keys() - pruned)]
        findings += [f"status: {id} was never committed ({side})" for id in sorted(times.keys() - meant)]
    tables, told = evidence.facts["tables"], evidence.facts["told"]
    findings += [
        f"figures: {name} is {told.get(name)} where the tables have {value}"
        for name, value in tables.items()
        if told.get(name) != value
    ]
    return Judgement(
        "C8", "one final status each, and figures agree", not findings, f"{len(evidence.statuses):,} rows", findings
    )


def main(directory: str) -> int:
    """Judge again; give the exit code."""
    judgements = judge(read(Path(directory)))
    for one in judgements:
        print(f"{one.question}  {'holds' if one.holds else 'BROKEN':6}  {one.title}: {one.seen}")
        for finding in one.findings[:20]:
            print(f"      {finding}")
    return 0 if all(one.holds for one in judgements) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
