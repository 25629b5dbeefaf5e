"""Writing down what a run has left: what the journal, the broker, the ledger and Pillarbox itself have in the end."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from pillarbox.torture import answers
from pillarbox.torture.bank import bank_at
from pillarbox.torture.stage import Stage
from pillarbox.torture.taps import Caught, tap_at
from pillarbox.torture.writer import TOPICS

EFFECTS = "SELECT event_id, aggregate, contents FROM {p}ledger ORDER BY id"
PARKED = "SELECT event_id, state FROM {p}pillarbox_inbox_parked"


class Recording:
    """The evidence of one run, in its directory; the writers have written their own."""

    def __init__(self, stage: Stage, directory: Path) -> None:
        self._stage, self._directory = stage, directory

    def write_lists(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Write every list, each with its end; give them."""
        bank, ledger = bank_at(self._stage.database), bank_at(self._stage.ledger)
        statuses = asyncio.run(answers.statuses(self._stage.database))
        with closing(bank.connect()) as connection, closing(ledger.connect()) as other:
            journal = bank.run(connection, "SELECT change FROM {p}journal")
            effects = ledger.run(other, EFFECTS)
            parked = ledger.run(other, PARKED)
        lists = {
            "journal": [{"change": change} for (change,) in journal],
            "effects": [{"id": id, "aggregate": line, **json.loads(says)} for id, line, says in effects],
            "statuses": [*statuses, *({"side": "inbox", "id": str(id), "status": state} for id, state in parked)],
            "wire": [_told(message) for message in tap_at(self._stage.broker).messages(TOPICS)],
        }
        for name, entries in lists.items():
            self._write(name, entries)
        return lists

    def write_facts(self, facts: Mapping[str, Any]) -> None:
        (self._directory / "facts.json").write_text(json.dumps(facts, indent=1))

    def _write(self, name: str, entries: Iterable[Mapping[str, Any]]) -> None:
        with (self._directory / f"{name}.jsonl").open("w") as file:
            count = 0
            for entry in entries:
                file.write(json.dumps(entry) + "\n")
                count += 1
            file.write(json.dumps({"end": count}) + "\n")


def counted(statuses: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Count the events of the outbox by their status."""
    states = Counter(one["status"] for one in statuses if one["side"] == "outbox")
    return {name: states[name] for name in ("pending", "retrying", "blocked", "dead")}


def pruned(logs: Path) -> int:
    """Count the rows that operators have pruned, by the commands' own word."""
    return sum(said["pruned"] for log in logs.glob("prune-*.log") for said in _lines(log) if "pruned" in said)


def deadly(logs: Path) -> list[dict[str, Any]]:
    """Say which consumer an event has killed and when, by that one's last words."""
    found = [
        {"id": said["deadly"], "at": said["deadly_at"], "whom": log.stem}
        for log in logs.glob("consumer-*.log")
        for said in _lines(log)
        if "deadly" in said
    ]
    return sorted(found, key=lambda one: float(one["at"]))


def _lines(log: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of JSON; who is killed may leave half a line, and so may a clock's library."""
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith("{") and line.endswith("}"):
            yield json.loads(line)


def _told(message: Caught) -> dict[str, Any]:
    """Write down a message as the broker has it; what is no text will differ from what was meant."""
    headers = message.headers
    return {
        "id": headers.get("id"), "at": message.at, "topic": message.topic, "key": message.key,
        "headers": headers, "body": message.body.decode(errors="backslashreplace"),
    }  # fmt: skip
