"""The checker: what was committed against what was seen. It judges the demo, the tests and the torture kit.

It imports nothing of ours and never looks at the outbox: the truth is what the writers themselves wrote down and the
business rows in their database. Run it over a directory that holds the evidence: `python checker.py DIR [--json]`.

    intents/*.jsonl   one file per writer, append-only: every change before its commit, and its outcome after it
    shop.db           journal(change): a business row per change, so it is there if and only if the change committed
    stream.db         messages, in the order in which the broker stored them
    billing.db        ledger, one row per effect, in the order in which the consumer applied them

A promise is broken by an event that is lost (committed, but not on the wire or never applied), by a phantom (on the
wire or applied, but never committed, or with other contents), by one applied twice, or by one out of order (its first
copy, or its effect, came before that of an earlier event of its aggregate). Copies on the wire are allowed and counted.
Evidence that contradicts itself proves nothing, so it fails the check as well.
"""

import argparse
import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Seen(NamedTuple):
    """An event as somebody saw it: its id, and what it says (None where that was not recorded)."""

    id: str
    contents: str | None = None


@dataclass(frozen=True)
class History:
    """What happened. Sequences are in the order in which things happened."""

    committed: Mapping[str, Sequence[Seen]]
    """Per aggregate, in commit order."""
    rolled_back: Sequence[Seen] = ()
    unknown: Sequence[Seen] = ()
    """Whether they committed nobody knows: they may be seen, and need not be."""
    wire: Sequence[Seen] = ()
    """Every copy that the broker stored."""
    applied: Sequence[Seen] | None = None
    """Every effect of the consumer; None if there was no consumer."""
    unsound: Sequence[str] = ()
    """Where the evidence contradicts itself."""


@dataclass(frozen=True)
class Report:
    """The verdict: counts of distinct events (`copies` counts messages), and a sentence for each fault."""

    committed: int
    rolled_back: int
    published: int
    copies: int
    applied: int
    lost: int
    phantom: int
    applied_twice: int
    out_of_order: int
    findings: Sequence[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    def counts(self) -> dict[str, int]:
        """Give the numbers without the sentences."""
        return {name: value for name, value in asdict(self).items() if name != "findings"}


def check(history: History) -> Report:
    """Judge a history."""
    committed = {event.id: line for line, events in history.committed.items() for event in events}
    truth = {event.id: event for events in [*history.committed.values(), history.unknown] for event in events}
    wire = _Sight("on the wire", history.wire, truth)
    applied = None if history.applied is None else _Sight("applied", history.applied, truth)
    sights = [wire] if applied is None else [wire, applied]

    lost = {id: sight.name for sight in reversed(sights) for id in committed if id not in sight.first}
    phantom = {id: why for sight in reversed(sights) for id, why in sight.phantoms.items()}
    if applied is not None:
        for id in applied.first.keys() - wire.first.keys() - committed.keys():
            phantom.setdefault(id, "was applied, but was never on the wire")
    twice = {} if applied is None else {id: times for id, times in applied.times.items() if times > 1}
    disorder = {id: why for sight in reversed(sights) for id, why in _disorder(history.committed, sight)}

    def name(id: str) -> str:
        return f"{id} of {committed[id]}" if id in committed else id

    findings = [f"the evidence contradicts itself: {sentence}" for sentence in [*_doubles(history), *history.unsound]]
    findings += [f"lost: {name(id)} was committed, but is not {where}" for id, where in lost.items()]
    findings += [f"phantom: {name(id)} {why}" for id, why in phantom.items()]
    findings += [f"applied twice: {name(id)} was applied {times} times" for id, times in twice.items()]
    findings += [f"out of order: {name(id)} {why}" for id, why in disorder.items()]
    return Report(
        committed=len(committed),
        rolled_back=len({event.id for event in history.rolled_back}),
        published=len(wire.times),
        copies=wire.times.total() - len(wire.times),
        applied=0 if applied is None else len(applied.times),
        lost=len(lost),
        phantom=len(phantom),
        applied_twice=len(twice),
        out_of_order=len(disorder),
        findings=findings,
    )


class _Sight:
    """What was seen in one place: how often, where first, and what should never have been there."""

    def __init__(self, name: str, seen: Iterable[Seen], truth: Mapping[str, Seen]) -> None:
        self.name = name
        self.times: Counter[str] = Counter()
        self.first: dict[str, int] = {}
        """Where each event that could be there was first seen with its own contents."""
        self.phantoms: dict[str, str] = {}
        for place, event in enumerate(seen):
            self.times[event.id] += 1
            if (known := truth.get(event.id)) is None:
                self.phantoms.setdefault(event.id, f"is {name}, but was never committed")
            elif None not in (known.contents, event.contents) and known.contents != event.contents:
                said = f"it says {event.contents}, and {known.contents} was committed"
                self.phantoms.setdefault(event.id, f"is {name} with other contents: {said}")
            else:
                self.first.setdefault(event.id, place)


def _disorder(committed: Mapping[str, Sequence[Seen]], sight: _Sight) -> Iterator[tuple[str, str]]:
    for events in committed.values():
        latest, latest_id = -1, ""
        for event in events:
            place = sight.first.get(event.id)
            if place is None:
                continue
            if place < latest:
                yield event.id, f"was first {sight.name} before {latest_id}, which was committed earlier"
            else:
                latest, latest_id = place, event.id


def _doubles(history: History) -> Iterator[str]:
    everything = [event for events in history.committed.values() for event in events]
    for id, times in Counter(event.id for event in [*everything, *history.rolled_back, *history.unknown]).items():
        if times > 1:
            yield f"the event {id} was written down {times} times"


# --- The evidence on disk ---


class Change(NamedTuple):
    """One transaction of a writer, as its intent log has it. Outcome: "done", "rolled back", or None if unknown."""

    id: str
    events: Sequence[Mapping[str, Any]]
    outcome: str | None
    at: float | None = None
    """When the intent was written, if the writer says so."""


def read(directory: Path, *, consumer: bool = True) -> History:
    """Read a history from the files in `directory`; without a consumer there is no billing.db."""
    unsound: list[str] = []
    changes = list(_read_intents(directory / "intents", unsound))
    journal = {row[0] for row in _rows(directory / "shop.db", "SELECT change FROM journal")}
    done, rolled_back = resolve(changes, journal, unsound)
    return History(
        committed=in_commit_order(done, unsound),
        rolled_back=[_seen(event) for change in rolled_back for event in change.events],
        wire=_read_wire(directory / "stream.db"),
        applied=_read_effects(directory / "billing.db") if consumer else None,
        unsound=unsound,
    )


def _read_intents(directory: Path, unsound: list[str]) -> Iterator[Change]:
    logs = sorted(directory.glob("*.jsonl"))
    if not logs:
        unsound.append(f"there is no intent log in {directory}")
    for log in logs:
        yield from _read_intent_log(log, unsound)


def _read_intent_log(log: Path, unsound: list[str]) -> Iterator[Change]:
    entries: list[tuple[int, Mapping[str, Any]]] = []
    *lines, torn = log.read_bytes().split(b"\n")
    # A writer that dies may leave half a line at the end. An intent like that was not committed: the commit comes after
    # it. An outcome like that is unknown. In both cases the journal knows.
    del torn
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            if "end" in entry:  # how a writer that was not killed says that it wrote nothing more
                continue
            entry["change"], entry["outcome"] if "outcome" in entry else entry["events"]
        except (ValueError, KeyError, TypeError):
            unsound.append(f"{log.name}, line {number} cannot be read: {line[:80]!r}")
        else:
            entries.append((number, entry))
    yield from changes_in(entries, log.name, unsound)


def changes_in(entries: Iterable[tuple[int, Mapping[str, Any]]], log: str, unsound: list[str]) -> Iterator[Change]:
    """Bring intents and outcomes of one log together; each entry comes with the number of its line."""
    intents: dict[str, Mapping[str, Any]] = {}
    outcomes: dict[str, str] = {}
    for number, entry in entries:
        change = entry["change"]
        if "outcome" in entry:
            outcomes[change] = entry["outcome"]
        elif change in intents:
            unsound.append(f"{log}, line {number}: the change {change} was written down before")
        else:
            intents[change] = entry
    orphans = sorted(outcomes.keys() - intents.keys())
    unsound.extend(f"{log} has an outcome of the change {change}, but no intent" for change in orphans)
    for change, intent in intents.items():
        yield Change(change, intent["events"], outcomes.get(change), intent.get("at"))


def resolve(
    changes: Sequence[Change], journal: set[str], unsound: list[str]
) -> tuple[Sequence[Change], Sequence[Change]]:
    """Part the changes into those that committed and those that did not; the journal decides where the log does not."""
    for change in changes:
        if change.outcome == "done" and change.id not in journal:
            unsound.append(f"the change {change.id} was committed, and its row is gone from the journal")
        if change.outcome == "rolled back" and change.id in journal:
            unsound.append(f"the change {change.id} was rolled back, and its row is in the journal")
    strangers = sorted(journal - {change.id for change in changes})
    unsound.extend(f"the change {id} is in the journal, but in no intent log" for id in strangers)

    def committed(change: Change) -> bool:
        return change.id in journal if change.outcome is None else change.outcome == "done"

    return [one for one in changes if committed(one)], [one for one in changes if not committed(one)]


def in_commit_order(changes: Sequence[Change], unsound: list[str]) -> Mapping[str, Sequence[Seen]]:
    """Order each aggregate's events by the version that its row had in the transaction; versions have no gaps."""
    versions: dict[str, list[tuple[int, Seen]]] = {}
    for change in changes:
        for event in change.events:
            versions.setdefault(event["aggregate"], []).append((event["version"], _seen(event)))
    for aggregate, events in versions.items():
        events.sort(key=lambda pair: pair[0])
        if [version for version, _ in events] != list(range(1, len(events) + 1)):
            unsound.append(f"the versions of {aggregate} have gaps or doubles: {[version for version, _ in events]}")
    return {aggregate: [event for _, event in events] for aggregate, events in versions.items()}


def _seen(event: Mapping[str, Any]) -> Seen:
    return Seen(event["id"], _contents(event["aggregate"], event["version"], event["amount"]))


def _contents(aggregate: object, version: object, amount: object) -> str:
    return f"{aggregate} version {version} amount {amount}"


def _read_wire(stream: Path) -> Sequence[Seen]:
    wire = []
    for place, headers, body in _rows(stream, "SELECT id, headers, body FROM messages ORDER BY id"):
        known = json.loads(headers)
        aggregate = f"{known.get('aggregate_type')}/{known.get('aggregate_id')}"
        try:
            says = json.loads(body)
            contents = _contents(aggregate, says["version"], says["amount"])
        except (ValueError, KeyError, TypeError):
            contents = f"something unreadable: {body[:80]!r}"
        wire.append(Seen(known.get("id", f"message {place}, which has no event id"), contents))
    return wire


def _read_effects(billing: Path) -> Sequence[Seen]:
    rows = _rows(billing, "SELECT event_id, aggregate, version, amount FROM ledger ORDER BY id")
    return [Seen(id, _contents(aggregate, version, amount)) for id, aggregate, version, amount in rows]


def _rows(database: Path, sql: str) -> Sequence[Sequence[Any]]:
    with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
        return connection.execute(sql).fetchall()


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the evidence in a directory, print the verdict, and give the exit code: 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="checker", description="Judge what a demo or a torture run left behind.")
    parser.add_argument("directory", type=Path, help="holds intents/, shop.db, stream.db and billing.db")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--without-consumer", action="store_true", help="judge the wire alone; there is no billing.db")
    options = parser.parse_args(arguments)
    try:
        report = check(read(options.directory, consumer=not options.without_consumer))
    except (OSError, sqlite3.Error) as error:
        print(f"the evidence in {options.directory} cannot be read: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({**report.counts(), "findings": report.findings}))
    else:
        print("\n".join([*(f"{name:>15} {value:>9,}" for name, value in report.counts().items()), *report.findings]))
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
