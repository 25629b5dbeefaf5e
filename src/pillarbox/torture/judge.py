"""The judge: nine questions, asked of the evidence alone. It imports the checker, and nothing else of Pillarbox.

`python -m pillarbox.torture.judge DIR` judges again what a run has left behind.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox.torture.checker import History, Report, Seen, check, in_commit_order, resolve
from pillarbox.torture.evidence import DEAD_LETTER, REFUSED, Event, Evidence, blamed, read
from pillarbox.torture.waiting import pace, waiting

REST = 60.0
"""Within so many seconds after the last fault, everything is published and applied."""
MOST_FINDINGS = 20


class Judgement(NamedTuple):
    """The answer to one question: does it hold, and in a few words what was seen."""

    question: str
    title: str
    holds: bool
    seen: str
    findings: Sequence[str] = ()


def judge(evidence: Evidence) -> Sequence[Judgement]:
    """Ask all questions; the last one is whether the evidence is worth anything."""
    unsound = list(evidence.unsound)
    done, rolled_back = resolve(evidence.changes, set(evidence.journal), unsound)
    events = {event["id"]: event for change in evidence.changes for event in change.events}
    lines = {line: [one.id for one in seen] for line, seen in in_commit_order(done, unsound).items()}
    fates = {id: event["fate"] for id, event in events.items() if "fate" in event}
    history = History(
        {line: [Seen(id) for id in ids if fates.get(id) != REFUSED] for line, ids in lines.items()},
        [Seen(event["id"]) for one in rolled_back if one.id not in evidence.forgotten for event in one.events],
        unknown=[Seen(id) for id in sorted(evidence.lost_by_failover)],
        wire=[Seen(message["id"]) for message in evidence.wire],
    )
    wire = check(history)
    effects = check(
        replace(
            history,
            committed={line: [Seen(id) for id in ids if id not in fates] for line, ids in lines.items()},
            wire=[Seen(effect["id"]) for effect in evidence.effects],
        )
    )
    unsound += [one for one in wire.findings if one.startswith("the evidence")]
    return [
        _none("C1", "nothing lost", "lost", wire, effects),
        _no_phantom(evidence, wire, effects),
        _none("C3", "first copies in order per aggregate", "out of order", wire),
        _few_copies(evidence),
        _once(effects),
        _unchanged(evidence, events),
        _at_rest(evidence),
        _statuses(evidence, {id: events[id] for ids in lines.values() for id in ids}),
        Judgement("C9", "the evidence is sound", not unsound, f"{len(evidence.changes):,} changes", unsound),
    ]


def _none(question: str, title: str, fault: str, *reports: Report) -> Judgement:
    places = ("on the wire", "applied")
    findings = [
        finding.replace("on the wire", place)
        for report, place in zip(reports, places, strict=False)
        for finding in report.findings
        if finding.startswith(f"{fault}:")
    ]
    return Judgement(question, title, not findings, f"{len(findings)} {fault}", findings)


def _no_phantom(evidence: Evidence, *reports: Report) -> Judgement:
    """An asynchronous standby that takes over lacks commits of which others have heard: those are listed apart."""
    found = _none("C2", "no phantom", "phantom", *reports)
    if not evidence.forgotten:
        return found
    heard = evidence.lost_by_failover & {message["id"] for message in evidence.wire}
    return found._replace(seen=f"{found.seen}; apart from {len(heard):,} of commits that the failover lost")


def _few_copies(evidence: Evidence) -> Judgement:
    """Each copy is near a cause that may have made it, and no cause has made more than it may; without a fault there
    is no cause."""
    most = sum(cause["most"] for cause in evidence.facts["causes"])
    made, unexplained = blamed(evidence)
    copies = sum(made) + len(unexplained)
    share = f" ({copies / most:.1%})" if most else ""
    began = evidence.facts["began_at"]
    findings = [f"copies: {copies:,} of at most {most:,}"] if copies > most else []
    for one in unexplained:
        when = "at some time" if one.at is None else f"{one.at - began:.1f} s after the start"
        findings.append(f"copies: {one.id} came once more {when}, and no fault around explains it")
    return Judgement(
        "C4", "copies within their bounds", not findings, f"{copies:,} copies of at most {most:,}{share}", findings
    )


def _once(effects: Report) -> Judgement:
    findings = [one.replace("on the wire", "applied") for one in effects.findings if one.startswith("out of order")]
    if effects.copies:
        findings.append(f"applied twice: {effects.copies} effects too many")
    return Judgement(
        "C5", "each effect once, and in order", not findings, f"{effects.published:,} effects, {effects.copies} twice",
        findings,
    )  # fmt: skip


def _unchanged(evidence: Evidence, events: Mapping[str, Event]) -> Judgement:
    """Compare all that a message is made of, and all that a handler was given, with what its writer meant."""
    findings = []
    for message in evidence.wire:
        if (id := message["id"]) in events:
            headers = message["headers"]
            said = {
                "topic": message["topic"],
                "key": message["key"],
                "headers": headers,
                "body": _value(message["body"]),
            }
            findings += _changes(id, "on the wire", said, _meant_message(events[id]))
    for effect in evidence.effects:
        if (meant := events.get(effect["id"])) is not None:
            findings += _changes(effect["id"], "applied", effect, {name: meant[name] for name in effect})
    compared = f"{len(evidence.wire):,} messages and {len(evidence.effects):,} effects, {len(findings)} changed"
    return Judgement("C6", "payload and headers unchanged", not findings, compared, findings)


def _meant_message(event: Event) -> dict[str, Any]:
    """Say what the broker must have of an event: nothing less, nothing else."""
    kind, _, account = event["aggregate"].partition("/")
    headers = {
        "id": event["id"], "type": event["type"], "content_type": "application/json",
        "aggregate_type": kind, "aggregate_id": account, **event["headers"],
    }  # fmt: skip
    return {"topic": event["topic"], "key": account, "headers": headers, "body": event["payload"]}


def _changes(id: str, where: str, said: Mapping[str, Any], meant: Mapping[str, Any]) -> list[str]:
    return [
        f"changed: {id} is {where} with {name} {said[name]!r}, and {meant[name]!r} was meant"
        for name in said
        if json.dumps(said[name], sort_keys=True)
        != json.dumps(meant[name], sort_keys=True)  # 1 is neither 1.0 nor true
    ]


def _value(body: str) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return f"what is no JSON: {body[:80]}"


def _at_rest(evidence: Evidence) -> Judgement:
    """Where it took too long, tell what waits where, and whether anything still moves."""
    rest, title = evidence.facts["rest_seconds"], "at rest soon after the last fault"
    if rest is not None and rest <= REST:
        return Judgement("C7", title, True, f"after {rest:.1f} s")
    seen = "never" if rest is None else f"after {rest:.1f} s"
    came = "it never came to rest" if rest is None else f"late: at rest {rest:.1f} s after the last fault"
    where = [f"waits: {count:,} {place}" for place, count in waiting(evidence).items()]
    where += [f"waits: the operator, for `{words}` to end" for words in evidence.facts["unended"]]
    return Judgement("C7", title, False, seen, [f"{came}; {pace(evidence.facts['waited'])}", *where])


def _statuses(evidence: Evidence, committed: Mapping[str, Event]) -> Judgement:
    """Each committed event is published, or dead where that is its fate; figures and metrics say what tables say."""
    outbox = {id: "dead" if event.get("fate") == REFUSED else "published" for id, event in committed.items()}
    inbox = {id: "dead" for id, event in committed.items() if event.get("fate") == DEAD_LETTER}
    pruned = {message["id"] for message in evidence.wire} if evidence.facts["prunes"] else set()
    findings = [*_one_each(evidence, "outbox", outbox, pruned), *_one_each(evidence, "inbox", inbox, set())]
    tables, told = evidence.facts["tables"], evidence.facts["told"]
    findings += [
        f"figures: {name} is {told.get(name)} where the tables have {value}"
        for name, value in tables.items()
        if told.get(name) != value
    ]
    findings += _metrics(evidence)
    asked = sum(len(one) > 1 for said in evidence.facts["metrics"].values() for one in said)
    seen = f"{len(evidence.statuses):,} rows, metrics of {asked} processes"
    return Judgement("C8", "one final status each; figures and metrics agree", not findings, seen, findings)


def _one_each(evidence: Evidence, side: str, meant: Mapping[str, str], pruned: set[str]) -> list[str]:
    gone = evidence.lost_by_failover
    here = [one for one in evidence.statuses if one["side"] == side and one["id"] not in gone]
    # What else an inbox has parked waits for something, which C7 sees, or is a note about what was applied.
    said = [one for one in here if side == "outbox" or one["status"] == "dead"]
    times = Counter(one["id"] for one in said)
    findings = [f"status: {id} has {count} of them ({side})" for id, count in times.items() if count > 1]
    findings += [
        f"status: {one['id']} is {one['status']} ({side})" for one in said if one["status"] != meant.get(one["id"])
    ]
    return findings + [f"status: {id} has none ({side})" for id in sorted(meant.keys() - times.keys() - pruned)]


def _metrics(evidence: Evidence) -> list[str]:
    """Compare what relays and consumers say over HTTP with the tables, the wire and the ledger.

    A counter begins at 0 in each process. Where nobody was started again and the database was never away, all of them
    together have counted everything; else they have counted no more than there is.
    """
    facts = evidence.facts
    metrics, whole = facts["metrics"], facts["counts_are_whole"]
    if not any(len(one) > 1 for said in metrics.values() for one in said):
        return []  # the extra that writes them is not installed; how many were asked is told
    findings = [
        f"metrics: {name} is {one.get(f'{name}_events')} at {one['process']} where the tables have {value}"
        for one in metrics["relays"]
        for name, value in facts["tables"].items()
        if name in ("pending", "dead") and one.get(f"{name}_events") != value
    ]
    wire = [message["id"] for message in evidence.wire]
    published = len(set(wire)) if "relays" in whole else len(wire)
    counters = [
        ("relays", "published_total", published + facts["replayed"]),
        ("consumers", "inbox_total handled", len(evidence.effects)),
    ]
    if "relays" in whole and not any(one["fault"] == "retry dead events" for one in facts["faults"]):
        counters.append(("relays", "dead_total", facts["tables"]["dead"]))
    return findings + [
        finding
        for who, name, there in counters
        if (finding := _counter(metrics[who], name, there, whole=who in whole)) is not None
    ]


def _counter(said: Sequence[Mapping[str, Any]], name: str, there: int, *, whole: bool) -> str | None:
    counted = sum(one.get(name, 0) for one in said)
    if counted == there or (not whole and counted < there):
        return None
    return f"metrics: {name} is {counted:g} where there {'are' if whole else 'are only'} {there}"


def main(directory: str) -> int:
    """Judge again; give the exit code."""
    judgements = judge(read(Path(directory)))
    for one in judgements:
        print(f"{one.question}  {'holds' if one.holds else 'BROKEN':6}  {one.title}: {one.seen}")
        for finding in one.findings[:MOST_FINDINGS]:
            print(f"      {finding}")
    return 0 if all(one.holds for one in judgements) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
