"""The judge of a torture: sound evidence holds, and each planted fault breaks the question that it belongs to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox.torture.evidence import counts, judge, latencies, main, read

Lists = dict[str, list[dict[str, Any]]]


def event(id: str, account: int, version: int, **more: Any) -> dict[str, Any]:
    headers = {"writer": "0"}
    says = {"type": "Changed", "aggregate": f"account/{account}", "topic": "torture-accounts", "amount": 5}
    return {"id": id, "version": version, "headers": headers, **says, **more}


def sound() -> tuple[Lists, dict[str, Any]]:
    """Two accounts, one change rolled back, one copy after a kill, and one event that no handler survived."""
    a1, a2, b1 = event("a1", 1, 1), event("a2", 1, 2), event("b1", 2, 1)
    dead = event("d1", 9, 1, type="Deadly", fate="dead letter")
    lists: Lists = {
        "intents/writer-0": [
            {"change": "0-1", "events": [a1, b1]},
            {"change": "0-1", "outcome": "done", "at": 101.0},
            {"change": "0-2", "events": [event("x1", 1, 2)]},
            {"change": "0-2", "outcome": "rolled back", "at": 102.0},
            {"change": "0-3", "events": [a2, dead]},
        ],
        "journal": [{"change": "0-1"}, {"change": "0-3"}],
        "wire": [{**one, "at": 101.5} for one in (a1, b1, a1, a2, dead)],
        "effects": [
            {name: one[name] for name in ("id", "aggregate", "version", "amount")} for one in (a1, b1, a2)
        ],
        "statuses": [
            *({"side": "outbox", "id": id, "status": "published"} for id in ("a1", "a2", "b1", "d1")),
            {"side": "inbox", "id": "d1", "status": "dead"},
        ],
    }  # fmt: skip
    facts = {
        "seed": 1, "seconds": 60, "began_at": 100.0, "faults": [{"at": 1.0, "fault": "kill a relay", "lasts": 0.0}],
        "rest_seconds": 2.0, "most_copies": 300, "copies_come_from": {"relays that died": 300}, "prunes": False,
        "told": {"pending": 0, "dead": 0}, "tables": {"pending": 0, "dead": 0}, "words": [], "servers": [],
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
        "committed": 4, "rolled_back": 1, "published": 4, "copies": 1, "applied": 3, "dead_letters": 1, "faults": 1,
    }  # fmt: skip
    assert latencies(read(tmp_path)) == [(1.0, 0.5), (1.0, 0.5)]


def _without(name: str, id: str) -> Callable[[Lists, dict[str, Any]], None]:
    def plant(lists: Lists, facts: dict[str, Any]) -> None:
        lists[name] = [entry for entry in lists[name] if entry.get("id") != id]

    return plant


def _lose(lists: Lists, facts: dict[str, Any]) -> None:
    for name in ("wire", "effects"):
        _without(name, "a2")(lists, facts)


def _invent(lists: Lists, facts: dict[str, Any]) -> None:
    lists["wire"].append({**event("x1", 1, 2), "at": 103.0})


def _reorder(lists: Lists, facts: dict[str, Any]) -> None:
    lists["wire"].sort(key=lambda entry: -entry["version"])


def _repeat(lists: Lists, facts: dict[str, Any]) -> None:
    facts["most_copies"] = 0


def _apply_twice(lists: Lists, facts: dict[str, Any]) -> None:
    lists["effects"].append(lists["effects"][0])


def _apply_out_of_order(lists: Lists, facts: dict[str, Any]) -> None:
    lists["effects"].reverse()


def _change_payload(lists: Lists, facts: dict[str, Any]) -> None:
    lists["wire"][1]["amount"] = 6


def _change_headers(lists: Lists, facts: dict[str, Any]) -> None:
    lists["wire"][1]["headers"] = {}


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


def _contradict(lists: Lists, facts: dict[str, Any]) -> None:
    lists["journal"].append({"change": "0-2"})


@pytest.mark.parametrize(
    ("question", "plant"),
    [
        ("C1", _lose), ("C2", _invent), ("C3", _reorder), ("C4", _repeat), ("C5", _apply_twice),
        ("C5", _apply_out_of_order), ("C6", _change_payload), ("C6", _change_headers), ("C7", _never_rest),
        ("C7", _rest_late), ("C8", _leave_pending), ("C8", _say_twice), ("C8", _tell_other_figures),
        ("C8", _without("statuses", "a1")), ("C9", _contradict),
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
