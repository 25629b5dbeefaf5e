"""What may have repeated what, when, and how much at most: the causes of copies, from which C4 takes its bound."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pillarbox.torture.deeds import DONE, PAUSE, REPEAT_NOTHING, Command
from pillarbox.torture.faults import FAILOVER, LEASE, PUBLISH_TIMEOUT, named
from pillarbox.torture.programs import BATCH, RELAYS

AT_ONCE = 3 * BATCH
"""What lies after the newest tick at most: this batch, the next one, which is read meanwhile, and one being settled."""
REPLAY = "replay"
LOOK_EVERY = 0.5
UNNOTICED = LEASE + PUBLISH_TIMEOUT
"""Seconds that a relay may not know that it has lost its lanes: another one may have repeated what it sent by then."""
BARRING = (named({"relay", "database", "broker", "network"}) | {PAUSE}) - {
    "hold a write transaction", "hold a snapshot", "kill the ledger's database", "flush the hint",
}  # fmt: skip
"""Faults that keep events from their way for as long as they last."""


class Losses:
    """When relays said that they had lost their lanes. By our clock, for theirs may be an hour wrong."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._read: dict[Path, int] = {}
        self._looked_at = 0.0
        self.seen: list[tuple[float, str]] = []
        """The time, and the relay."""

    def look(self, *, now: bool = False) -> None:
        """Read what relays have said since, every now and then."""
        if not now and time.monotonic() < self._looked_at + LOOK_EVERY:
            return
        self._looked_at = time.monotonic()
        for log in self._logs.glob("relay-*.log"):
            with log.open("rb") as file:
                file.seek(self._read.get(log, 0))
                *lines, rest = file.read().split(b"\n")
                self._read[log] = file.tell() - len(rest)
            self.seen += [(time.time(), log.stem) for line in lines if b'"lanes lost"' in line]


def causes_of(
    faults: Sequence[Mapping[str, Any]], relays_died: Iterable[tuple[float, str]],
    lanes_lost: Iterable[tuple[float, str]], commands: Iterable[Command], stored_at: Iterable[float | None],
) -> list[dict[str, Any]]:  # fmt: skip
    """Give what may have repeated something. A crash, a lost lease or a lost acknowledgement repeats at most what lies
    after the newest tick, of each relay; a replay what it says; a failover what was stored since the standby was cut
    off. Without a fault nothing is repeated."""
    if not faults:
        return []
    found = [_cause("a relay that died", whom, at, at, AT_ONCE) for at, whom in relays_died]
    found += [_cause("lanes that were lost", whom, at - UNNOTICED, at, AT_ONCE) for at, whom in lanes_lost]
    stored = list(stored_at)
    for one in faults:
        name, span = one["fault"], (one["began_at"], one["ended_at"])
        if name == FAILOVER:
            found.append(_cause(name, one["whom"], *span, _stored_since_parted(span, stored)))
        elif name not in REPEAT_NOTHING:
            found.append(_cause(name, one["whom"], *span, RELAYS * AT_ONCE))
    found += [
        _cause(REPLAY, one.process, one.began_at, one.ended_at, count)
        for one in commands
        if (count := replayed(one.log))
    ]
    return sorted(found, key=lambda cause: float(cause["began_at"]))


def _cause(what: str, whom: str, began: float, ended: float, most: int) -> dict[str, Any]:
    return {"what": what, "whom": whom, "began_at": began, "ended_at": ended, "most": most}


def barred(faults: Sequence[Mapping[str, Any]], commands: Sequence[Command]) -> list[tuple[float, float]]:
    """Give the spans in which something kept events from their way. A pause is over when somebody's resume has
    worked, which may be late: the database may be away when it is typed."""
    spans = [(one["began_at"], one["ended_at"]) for one in faults if one["fault"] in BARRING and one["lasts"]]
    for pause in commands:
        if pause.words[0] == "pause":
            ends = [one.ended_at for one in commands if _resumes(one, pause)]
            spans += [(pause.began_at, min(ends))] if ends else []
    return sorted(spans)


def _resumes(command: Command, pause: Command) -> bool:
    return (
        command.words[:2] == ("resume", pause.words[1])
        and command.code in DONE
        and command.began_at >= pause.began_at
    )  # fmt: skip


def replayed(log: Path) -> int:
    """Count what a command has replayed, by its own word."""
    return sum(
        int(json.loads(line).get("replayed", 0))
        for line in log.read_text(errors="replace").splitlines()
        if line.startswith("{") and line.endswith("}")
    )


def _stored_since_parted(span: tuple[float, float], stored_at: Sequence[float | None]) -> int:
    """Count what was stored from right before the standby was cut off; all of it, where a broker does not say when."""
    since, until = span[0] - PUBLISH_TIMEOUT, span[1]
    return sum(at is None or since <= at <= until for at in stored_at)
