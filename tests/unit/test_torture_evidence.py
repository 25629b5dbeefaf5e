"""The judge of a torture: sound evidence holds, and each planted fault breaks the question that it belongs to."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pillarbox.torture.blame import REACH
from pillarbox.torture.evidence import causes, copies_come_from, counts, latencies, read
from pillarbox.torture.judge import judge, main
from pillarbox.torture.report import as_json, show
from pillarbox.torture.waiting import waiting

Lists = dict[str, list[dict[str, Any]]]


def event(id: str, account: int, version: int, **more: Any) -> dict[str, Any]:
    says = {"version": version, "amount": 5, "note": "Zürich"}
    names = {"type": "Changed", "aggregate": f"account/{account}", "topic": "torture-accounts"}
    return {"id": id, **names, "version": version, "amount": 5, "payload": says, "headers": {"writer": "0"}, **more}


def message(one: dict[str, Any], at: float, **more: str) -> dict[str, Any]:
    """Give an event as a broker has it."""
    kind, _, account = one["aggregate"].partition("/")
    names = {"content_type": "application/json", "aggregate_type": kind, "aggregate_id": account}
    headers = {"id": one["id"], "type": one["type"], **names, **one["headers"], **more}
    body = json.dumps(one["payload"], ensure_ascii=False)
    return {"id": one["id"], "at": at, "topic": one["topic"], "key": account, "headers": headers, "body": body}


def effect(one: dict[str, Any]) -> dict[str, Any]:
    """Give an event as a handler booked it."""
    return {name: one[name] for name in ("id", "aggregate", "type", "topic", "payload", "headers")}


def fault(name: str, began: float, *, ended: float | None = None) -> dict[str, Any]:
    at = {"began_at": began, "ended_at": ended or began, "lasts": (ended or began) - began}
    return {"at": began - 100.0, "fault": name, "whom": "relay-1", **at}


def cause(what: str, began: float, *, ended: float | None = None, **more: Any) -> dict[str, Any]:
    span = {"began_at": began, "ended_at": ended or began}
    return {"what": what, "whom": "relay-1", **span, "most": 300, **more}


DEADLY, REFUSED = {"fate": "dead letter", "poison": "deadly"}, {"fate": "refused", "poison": "too large"}


def sound() -> tuple[Lists, dict[str, Any]]:
    """Two accounts, one change rolled back, one copy after a kill, one event that no handler survived, and one that no
    broker takes."""
    a1, a2, b1 = event("a1", 1, 1), event("a2", 1, 2), event("b1", 2, 1)
    dead, refused = event("d1", 9, 1, type="Deadly", **DEADLY), event("r1", 8, 1, **REFUSED)
    lists: Lists = {
        "intents/writer-0": [
            {"change": "0-1", "at": 100.9, "events": [a1, b1]},
            {"change": "0-1", "outcome": "done", "at": 101.0},
            {"change": "0-2", "events": [event("x1", 1, 2)]},
            {"change": "0-2", "outcome": "rolled back", "at": 102.0},
            {"change": "0-3", "at": 102.5, "events": [a2, dead, refused]},
        ],
        "journal": [{"change": "0-1"}, {"change": "0-3"}],
        "wire": [message(one, 101.5) for one in (a1, b1, a1, a2, dead)],
        "effects": [effect(one) for one in (a1, b1, a2)],
        "statuses": [
            *({"side": "outbox", "id": id, "status": "published"} for id in ("a1", "a2", "b1", "d1")),
            {"side": "outbox", "id": "r1", "status": "dead"},
            {"side": "inbox", "id": "d1", "status": "dead"},
        ],
    }  # fmt: skip
    facts = {
        "seed": 1, "seconds": 60, "began_at": 100.0, "faults": [fault("kill a relay", 101.0)],
        "rest_seconds": 2.0, "waited": [[0.1, 5], [2.0, 0]], "unended": [],
        "causes": [cause("a relay that died", 101.0)], "barred": [], "replayed": 0,
        "told": {"pending": 0, "dead": 1}, "tables": {"pending": 0, "dead": 1}, "words": [], "servers": [],
        "prunes": False, "pruned": 0, "left_out": [], "deadly": [],
        "counts_are_whole": ["consumers"],
        "metrics": {
            "relays": [
                {"process": f"relay-{n}", "pending_events": 0.0, "dead_events": 1.0, "published_total": 1.0 + n}
                for n in (1, 2)
            ],
            "consumers": [{"process": f"consumer-{n}", "inbox_total handled": 1.0 + n} for n in (0, 1)],
        },
    }  # fmt: skip
    return lists, facts


def write(directory: Path, lists: Lists, facts: dict[str, Any], *, cut: str = "") -> Path:
    (directory / "intents").mkdir()
    for name, entries in lists.items():
        ends = [] if name == cut else [{"end": len(entries)}]
        lines = [json.dumps(entry) + "\n" for entry in [*entries, *ends]]
        (directory / f"{name}.jsonl").write_text("".join(lines))
    (directory / "facts.json").write_text(json.dumps(facts))
    return directory


def broken(directory: Path) -> list[str]:
    return [one.question for one in judge(read(directory)) if not one.holds]


def test_sound_evidence_holds(tmp_path: Path) -> None:
    write(tmp_path, *sound())
    assert broken(tmp_path) == []
    assert main(str(tmp_path)) == 0
    assert counts(read(tmp_path)) == {
        "committed": 5, "rolled_back": 1, "published": 4, "copies": 1, "applied": 3, "dead_letters": 2,
        "lost_by_failover": 0, "faults": 1,
    }  # fmt: skip
    assert latencies(read(tmp_path)) == [(1.0, 0.5), (1.0, 0.5)]
    died = "a relay that died"
    assert copies_come_from(read(tmp_path)) == {died: {"causes": 1, "copies": 1, "most": 300}}
    assert causes(read(tmp_path)) == [{"at": 1.0, "what": died, "whom": "relay-1", "copies": 1, "most": 300}]


def _without(name: str, id: str) -> Callable[[Lists, dict[str, Any]], None]:
    def plant(lists: Lists, facts: dict[str, Any]) -> None:
        lists[name] = [entry for entry in lists[name] if entry.get("id") != id]

    return plant


def _lose(lists: Lists, facts: dict[str, Any]) -> None:
    for name in ("wire", "effects"):
        _without(name, "a2")(lists, facts)


def _invent(lists: Lists, facts: dict[str, Any]) -> None:
    lists["wire"].append(message(event("x1", 1, 2), 103.0))


def _reorder(lists: Lists, facts: dict[str, Any]) -> None:
    lists["wire"].reverse()


def _repeat(lists: Lists, facts: dict[str, Any]) -> None:
    facts["causes"] = []


def _repeat_too_late(lists: Lists, facts: dict[str, Any]) -> None:
    lists["wire"][2]["at"] = 101.0 + REACH + 0.1


def _repeat_too_early(lists: Lists, facts: dict[str, Any]) -> None:
    lists["wire"][2]["at"] = 99.9


def _repeat_too_much(lists: Lists, facts: dict[str, Any]) -> None:
    """Much may be repeated later, but not now."""
    facts["causes"] = [cause("a relay that died", 101.0, most=0), cause("lanes that were lost", 150.0, most=900)]


def _apply_twice(lists: Lists, facts: dict[str, Any]) -> None:
    lists["effects"].append(lists["effects"][0])


def _apply_out_of_order(lists: Lists, facts: dict[str, Any]) -> None:
    lists["effects"].reverse()


def _change(name: str, value: object, where: str = "wire") -> Callable[[Lists, dict[str, Any]], None]:
    """Change one thing of the second message, or of the second effect; None takes it away."""

    def plant(lists: Lists, facts: dict[str, Any]) -> None:
        one, _, header = name.partition(" ")
        place = lists[where][1][one] if header else lists[where][1]
        place[header or one] = value
        if value is None:
            del place[header or one]

    return plant


def _never_rest(lists: Lists, facts: dict[str, Any]) -> None:
    facts["rest_seconds"] = None


def _rest_late(lists: Lists, facts: dict[str, Any]) -> None:
    facts["rest_seconds"] = 61.0


def _leave_pending(lists: Lists, facts: dict[str, Any]) -> None:
    lists["statuses"][0]["status"] = "pending"


def _say_twice(lists: Lists, facts: dict[str, Any]) -> None:
    lists["statuses"].append(lists["statuses"][0])


def _tell_other_figures(lists: Lists, facts: dict[str, Any]) -> None:
    facts["told"]["pending"] = 1


def _publish_what_no_broker_takes(lists: Lists, facts: dict[str, Any]) -> None:
    lists["wire"].append(message(event("r1", 8, 1), 103.0))


def _forget_a_refusal(lists: Lists, facts: dict[str, Any]) -> None:
    next(one for one in lists["statuses"] if one["id"] == "r1")["status"] = "published"


def _gauge(name: str) -> Callable[[Lists, dict[str, Any]], None]:
    def plant(lists: Lists, facts: dict[str, Any]) -> None:
        facts["metrics"]["relays"][1][name] += 1

    return plant


def _count(who: str, name: str, by: int) -> Callable[[Lists, dict[str, Any]], None]:
    def plant(lists: Lists, facts: dict[str, Any]) -> None:
        facts["metrics"][who][0][name] += by

    return plant


def _say_nothing(lists: Lists, facts: dict[str, Any]) -> None:
    facts["metrics"]["relays"][0] = {"process": "relay-1"}


def _count_too_few(lists: Lists, facts: dict[str, Any]) -> None:
    facts["counts_are_whole"] = ["relays", "consumers"]
    facts["metrics"]["relays"][0] |= {"published_total": 0.0, "dead_total": 1.0}


def _count_no_death(lists: Lists, facts: dict[str, Any]) -> None:
    facts["counts_are_whole"] = ["relays"]
    facts["metrics"]["relays"][0] |= {"published_total": 1.0, "dead_total": 0.0}


def _contradict(lists: Lists, facts: dict[str, Any]) -> None:
    lists["journal"].append({"change": "0-2"})


@pytest.mark.parametrize(
    ("question", "plant"),
    [
        ("C1", _lose), ("C2", _invent), ("C3", _reorder), ("C4", _repeat),
        ("C4", _repeat_too_late), ("C4", _repeat_too_early), ("C4", _repeat_too_much), ("C5", _apply_twice),
        ("C5", _apply_out_of_order), ("C6", _change("body", '{"version":1,"amount":6,"note":"Zürich"}')),
        ("C6", _change("body", '{"version":1,"amount":5.0,"note":"Zürich"}')), ("C6", _change("body", '{"version":1')),
        ("C6", _change("body", '{"version":1,"amount":5,"note":"Zürich","more":1}')),
        ("C6", _change("body", '{"version":1,"amount":5}')), ("C6", _change("key", "1")), ("C6", _change("key", "")),
        ("C6", _change("topic", "torture-more")), ("C6", _change("headers writer", "1")),
        ("C6", _change("headers writer", None)), ("C6", _change("headers content_type", "text/plain")),
        ("C6", _change("headers type", "Other")), ("C6", _change("headers aggregate_id", "1")),
        ("C6", _change("headers surplus", "x")), ("C6", _change("headers pillarbox-replay", "r")),
        ("C6", _change("payload", {"version": 1, "amount": 6, "note": "Zürich"}, "effects")),
        ("C6", _change("headers", {}, "effects")), ("C6", _change("type", "Other", "effects")),
        ("C6", _change("topic", "torture-more", "effects")), ("C6", _change("aggregate", "account/1", "effects")),
        ("C7", _never_rest),
        ("C7", _rest_late), ("C8", _leave_pending), ("C8", _say_twice), ("C8", _tell_other_figures),
        ("C8", _without("statuses", "a1")), ("C2", _publish_what_no_broker_takes), ("C8", _forget_a_refusal),
        ("C8", _gauge("pending_events")), ("C8", _gauge("dead_events")), ("C8", _say_nothing),
        ("C8", _count("relays", "published_total", 1)), ("C8", _count("consumers", "inbox_total handled", 1)),
        ("C8", _count("consumers", "inbox_total handled", -1)), ("C8", _count_too_few), ("C8", _count_no_death),
        ("C9", _contradict),
    ],
)  # fmt: skip
def test_a_planted_fault_is_found(
    question: str, plant: Callable[[Lists, dict[str, Any]], None], tmp_path: Path
) -> None:
    lists, facts = sound()
    plant(lists, facts)
    write(tmp_path, lists, facts)
    assert question in broken(tmp_path)
    assert main(str(tmp_path)) == 1


@pytest.mark.parametrize("cut", ["intents/writer-0", "journal", "wire", "effects", "statuses"])
def test_a_list_that_was_cut_off_proves_nothing(cut: str, tmp_path: Path) -> None:
    write(tmp_path, *sound(), cut=cut)
    assert "C9" in broken(tmp_path)


def test_what_was_pruned_has_no_status_any_more(tmp_path: Path) -> None:
    lists, facts = sound()
    _without("statuses", "a1")(lists, facts)
    write(tmp_path, lists, {**facts, "prunes": True})
    assert broken(tmp_path) == []


def test_where_nobody_was_started_again_counters_have_counted_everything(tmp_path: Path) -> None:
    lists, facts = sound()
    relays = [
        {**one, "published_total": 2.0 + n, "dead_total": 1.0 - n} for n, one in enumerate(facts["metrics"]["relays"])
    ]
    facts |= {"metrics": {**facts["metrics"], "relays": relays}, "counts_are_whole": ["relays"], "replayed": 1}
    write(tmp_path, lists, facts)
    assert broken(tmp_path) == []


def test_without_metrics_the_figures_are_compared_and_that_is_said(tmp_path: Path) -> None:
    lists, facts = sound()
    facts["metrics"] = {"relays": [{"process": "relay-1"}], "consumers": []}
    write(tmp_path, lists, facts)
    assert broken(tmp_path) == []
    assert "metrics of 0 processes" in next(one.seen for one in judge(read(tmp_path)) if one.question == "C8")


def failed_over(**change: Any) -> tuple[Lists, dict[str, Any]]:
    """A standby was cut off at 110, took over at 112, and lacks a change that its writer heard of at 111."""
    lists, facts = sound()
    lost = event("f1", 2, 2)
    lists["intents/writer-0"] += [
        {"change": "0-4", "at": 110.9, "events": [lost], **change},
        {"change": "0-4", "outcome": "done", "at": 111.0},
    ]
    lists["wire"].append(message(lost, 111.1))
    facts["faults"].append(fault("fail over", 110.0, ended=112.0))
    return lists, facts


def test_what_a_failover_lost_is_a_phantom_that_is_listed_apart(tmp_path: Path) -> None:
    write(tmp_path, *failed_over())
    assert broken(tmp_path) == []
    assert counts(read(tmp_path))["lost_by_failover"] == 1
    seen = next(one.seen for one in judge(read(tmp_path)) if one.question == "C2")
    assert seen == "0 phantom; apart from 1 of commits that the failover lost"


@pytest.mark.parametrize(
    ("at", "done"),
    [(104.0, 105.0), (112.5, 113.0)],
    ids=["before the standby was cut off", "after it took over"],
)
def test_what_is_lost_at_another_time_is_no_failovers_doing(at: float, done: float, tmp_path: Path) -> None:
    lists, facts = failed_over(at=at)
    lists["intents/writer-0"][-1]["at"] = done
    write(tmp_path, lists, facts)
    assert "C9" in broken(tmp_path)


def test_what_was_rolled_back_is_a_phantom_in_a_failover_too(tmp_path: Path) -> None:
    lists, facts = failed_over()
    lists["intents/writer-0"][-1]["outcome"] = "rolled back"
    write(tmp_path, lists, facts)
    assert broken(tmp_path) == ["C2"]


def test_the_report_has_each_fault_and_each_poison_with_whom_it_struck_and_for_how_long(tmp_path: Path) -> None:
    lists, facts = sound()
    facts["faults"].append(fault("freeze a relay", 103.0, ended=107.5))
    facts["deadly"] = [{"id": "d1", "at": 103.0, "whom": "consumer-2"}, {"id": "d1", "at": 104.5, "whom": "consumer-4"}]
    facts["left_out"] = [{"what": "faults of clock", "faults": ["set a clock"], "reason": "there is one clock"}]
    facts["pruned"] = 17
    write(tmp_path, lists, facts)
    evidence = read(tmp_path)
    said = json.loads(as_json(evidence, judge(evidence), "pillarbox torture --seed 1"))
    assert (said["left_out"], said["pruned"], said["repeat_with"]) == (
        facts["left_out"],
        17,
        "pillarbox torture --seed 1",
    )
    assert [(one["at"], one["fault"], one["whom"], one["lasts"]) for one in said["fault_log"]] == [
        (1.0, "kill a relay", "relay-1", 0.0), (3.0, "freeze a relay", "relay-1", 4.5)
    ]  # fmt: skip
    told = ("at", "poison", "id", "whom", "lasted", "ended")
    assert [tuple(one[name] for name in told) for one in said["poison_log"]] == [
        (2.5, "deadly", "d1", ["consumer-2", "consumer-4"], 1.5, "dead in the inbox"),
        (2.5, "too large", "r1", [], 0.0, "dead in the outbox"),
    ]  # fmt: skip
    shown = Console(record=True, width=160, file=io.StringIO())
    show(shown, evidence, judge(evidence))
    text = " ".join(shown.export_text().split())
    for words in (
        "3.00 s │ freeze a relay │ relay-1 │ 4.5 s", "consumer-2, consumer-4 │ 1.5 s │ dead in the inbox",
        "too large │ r1 │ nobody", "left out: faults of clock: there is one clock",
    ):  # fmt: skip
        assert words in text


def _stuck(lists: Lists, facts: dict[str, Any]) -> None:
    """Let one event wait at each place where one can."""
    ids = {
        "p1": "pending", "k1": "retrying", "k2": "blocked", "o1": "dead", "n1": "published", "c1": "published",
        "i1": "published", "i2": "published",
    }  # fmt: skip
    events = [event(id, 20 + n, 1) for n, id in enumerate(ids)]
    lists["intents/writer-0"].append({"change": "0-9", "at": 103.0, "events": events})
    lists["journal"].append({"change": "0-9"})
    lists["wire"] += [message(one, 103.5) for one in events if one["id"] in ("c1", "i1", "i2")]
    lists["statuses"] += [{"side": "outbox", "id": id, "status": status} for id, status in ids.items()]
    parked = {"i1": "retrying", "i2": "dead", "c1": "suspect"}
    lists["statuses"] += [{"side": "inbox", "id": id, "status": status} for id, status in parked.items()]


def test_what_waits_is_told_by_its_place(tmp_path: Path) -> None:
    lists, facts = sound()
    _stuck(lists, facts)
    write(tmp_path, lists, {**facts, "rest_seconds": None})
    evidence = read(tmp_path)
    places = {
        "pending in the outbox": 1, "parked in the outbox": 2, "dead in the outbox": 1, "dead in the inbox": 1,
        "neither in the outbox nor at the broker": 1, "at the broker, not consumed": 1, "parked in the inbox": 1,
    }  # fmt: skip
    assert waiting(evidence) == places
    findings = next(one.findings for one in judge(evidence) if one.question == "C7")
    assert set(findings[1:]) == {f"waits: {count} {place}" for place, count in places.items()}
    assert json.loads(as_json(evidence, judge(evidence), ""))["waiting"] == places


def test_a_command_that_has_not_ended_is_named(tmp_path: Path) -> None:
    lists, facts = sound()
    write(tmp_path, lists, {**facts, "rest_seconds": None, "unended": ["resume torture-more"]})
    findings = next(one.findings for one in judge(read(tmp_path)) if one.question == "C7")
    assert findings[1:] == ["waits: the operator, for `resume torture-more` to end"]


def test_where_all_is_well_nothing_waits(tmp_path: Path) -> None:
    write(tmp_path, *sound())
    assert waiting(read(tmp_path)) == {}


@pytest.mark.parametrize(
    ("waited", "says"),
    [
        ([(1.0, 50), (60.0, 40), (75.0, 40), (180.0, 40)], "a standstill: nothing has moved for 120 s, and 40 wait"),
        ([(1.0, 50), (180.0, 50)], "a standstill: nothing has moved for 179 s, and 50 wait"),
        (
            [(1.0, 500), (169.0, 90), (171.0, 80), (175.0, 80), (180.0, 60)],
            "it moves: 20 of 80 in the last 10 s",
        ),
        ([(1.0, 50), (20.0, 50), (75.0, 0)], "slow, and it moves: 0 of 0 in the last 10 s, and 0 wait"),
        ([], "nobody has looked"),
    ],
    ids=["since long", "from the beginning", "slowly", "all gone in the end", "nobody"],
)
def test_a_standstill_is_told_from_slowness(waited: list[tuple[float, int]], says: str, tmp_path: Path) -> None:
    lists, facts = sound()
    write(tmp_path, lists, {**facts, "rest_seconds": None, "waited": waited})
    [finding] = [one.findings[0] for one in judge(read(tmp_path)) if one.question == "C7"]
    assert finding.startswith("it never came to rest; ")
    assert says in finding
