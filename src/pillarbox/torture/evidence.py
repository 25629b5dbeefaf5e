"""The evidence of a torture run, as it lies in a directory. It imports the checker and the reckoning of
copies, and nothing else of Pillarbox.

    intents/*.jsonl   one file per writer: every change before its commit, its outcome after it, the end
    journal.jsonl     the changes whose row is in the database
    wire.jsonl        what the tap read, in the broker's order
    effects.jsonl     the ledger, in its order
    statuses.jsonl    what the tables say of each event in the end
    facts.json        what was done to the system, when it had come to rest, and what it said of itself

Every list ends with {"end": how many lines it has}: one that was cut off proves nothing.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pillarbox.torture.blame import Blame, blame, copies_of
from pillarbox.torture.checker import Change, changes_in, resolve

Event = Mapping[str, Any]
"""What is known of an event, by the names that the writers use."""
REFUSED, DEAD_LETTER = "refused", "dead letter"
"""The fates of poison: dead in the outbox, because no broker takes it; dead in the inbox, because no handler lives."""
FLUSHED = 2.0
"""Seconds until what committed without waiting for the disk is with a standby as well; three times what PostgreSQL
allows itself."""


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
    forgotten: frozenset[str] = frozenset()
    """Changes that only a primary had which a failover has taken away; whoever saw their events saw phantoms."""

    @property
    def lost_by_failover(self) -> frozenset[str]:
        """The events of what was forgotten."""
        return frozenset(event["id"] for one in self.changes if one.id in self.forgotten for event in one.events)


def read(directory: Path) -> Evidence:
    """Read the evidence in a directory."""
    unsound: list[str] = []
    changes: list[Change] = []
    logs = sorted((directory / "intents").glob("*.jsonl"))
    if not logs:
        unsound.append(f"there is no intent log in {directory}")
    done_at: dict[str, float] = {}
    for log in logs:
        entries = list(_lines(log, unsound, ends=False))
        changes += changes_in(enumerate(entries, 1), log.name, unsound)
        done_at |= {entry["change"]: entry["at"] for entry in entries if entry.get("outcome") == "done"}
    journal, wire, effects, statuses = (
        list(_lines(directory / f"{name}.jsonl", unsound)) for name in ("journal", "wire", "effects", "statuses")
    )
    facts = json.loads((directory / "facts.json").read_text())
    committed = frozenset(entry["change"] for entry in journal)
    forgotten = _forgotten(changes, done_at, committed, facts["faults"])
    changes = [one._replace(outcome=None) if one.id in forgotten else one for one in changes]
    committed_at = {
        event["id"]: done_at[one.id] for one in changes if one.outcome == "done" for event in one.events
    }  # fmt: skip
    return Evidence(changes, committed_at, committed, wire, effects, statuses, facts, tuple(unsound), forgotten)


def _forgotten(
    changes: Sequence[Change], done_at: Mapping[str, float], journal: frozenset[str], faults: Sequence[Event]
) -> frozenset[str]:
    """Give what the new primary of a failover does not have, of what may have committed while it was cut off."""
    spans = [(one["began_at"] - FLUSHED, one["ended_at"]) for one in faults if one["fault"] == "fail over"]
    gone = [one for one in changes if one.id not in journal and one.outcome != "rolled back" and one.at is not None]
    return frozenset(
        one.id
        for one in gone
        for since, until in spans
        if one.at is not None and since <= done_at.get(one.id, one.at) and one.at <= until
    )


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
        "lost_by_failover": len(evidence.lost_by_failover),
        "faults": len(evidence.facts["faults"]),
    }


def poison_log(evidence: Evidence) -> Sequence[Event]:
    """Say of each poison that was committed when it came, whom it has killed over how long, and how it ended."""
    done, _ = resolve(evidence.changes, set(evidence.journal), [])
    began = evidence.facts["began_at"]
    ended = {one["id"]: f"{one['status']} in the {one['side']}" for one in evidence.statuses}
    struck: dict[str, list[Event]] = {}
    for one in evidence.facts["deadly"]:
        struck.setdefault(one["id"], []).append(one)
    found = [
        {
            "at": round((change.at or began) - began, 2), "poison": event["poison"], "id": event["id"],
            "aggregate": event["aggregate"], "whom": [one["whom"] for one in struck.get(event["id"], ())],
            "lasted": _span([one["at"] for one in struck.get(event["id"], ())]),
            "ended": ended.get(event["id"], "without a status"),
        }
        for change in done
        for event in change.events
        if "poison" in event
    ]  # fmt: skip
    return sorted(found, key=lambda one: float(one["at"]))


def _span(times: Sequence[float]) -> float:
    return round(max(times) - min(times), 2) if times else 0.0


def blamed(evidence: Evidence) -> Blame:
    """Say how many copies each cause has made, and which none explains."""
    facts = evidence.facts
    return blame(copies_of(evidence.wire), facts["causes"], facts["barred"])


def causes(evidence: Evidence) -> Sequence[Event]:
    """Give every cause that has made copies, with how many of how many it may have made."""
    began, made = evidence.facts["began_at"], blamed(evidence).made
    return [
        {
            "at": round(cause["began_at"] - began, 2), "what": cause["what"], "whom": cause["whom"], "copies": count,
            "most": cause["most"],
        }
        for cause, count in zip(evidence.facts["causes"], made, strict=True)
        if count
    ]  # fmt: skip


def copies_come_from(evidence: Evidence) -> Mapping[str, Mapping[str, int]]:
    """Give the bound in its parts, by kinds of causes, and how much of each was used."""
    found: dict[str, dict[str, int]] = {}
    for cause, count in zip(evidence.facts["causes"], blamed(evidence).made, strict=True):
        part = found.setdefault(cause["what"], {"causes": 0, "copies": 0, "most": 0})
        part["causes"] += 1
        part["copies"] += count
        part["most"] += cause["most"]
    return dict(sorted(found.items(), key=lambda item: -item[1]["copies"]))


def latencies(evidence: Evidence) -> Sequence[tuple[float, float]]:
    """Give when each event was committed, in seconds since the start, and how long it took to the broker."""
    first: dict[str, float] = {}
    for message in evidence.wire:
        if message["at"] is not None:
            first.setdefault(message["id"], message["at"])
    began = evidence.facts["began_at"]
    return sorted(
        (at - began, max(0.0, first[id] - at))
        for id, at in evidence.committed_at.items()
        if id in first and at >= began  # what came before everybody was at work says nothing
    )
