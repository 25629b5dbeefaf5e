"""How many copies faults may have made, by what made them: the bound of C4."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pillarbox.torture.cast import Cast
from pillarbox.torture.deeds import REPEAT_NOTHING
from pillarbox.torture.faults import FAILOVER, PUBLISH_TIMEOUT
from pillarbox.torture.programs import BATCH, RELAYS

AT_ONCE = 3 * BATCH
"""What lies after the newest tick at most: this batch, the next one, which is read meanwhile, and one being settled."""


def copies_come_from(
    faults: Sequence[Mapping[str, Any]], cast: Cast, logs: Path, stored_at: Iterable[float | None]
) -> dict[str, int]:
    """Say what may have repeated how much: a crash, a lost lease or a lost acknowledgement at most what lies after the
    newest tick, a replay what it replays, a failover what was stored since the standby was cut off. Without a fault
    nothing is repeated."""
    if not faults:
        return {}
    broken = sum(one["fault"] not in REPEAT_NOTHING | {FAILOVER} for one in faults)
    failovers = [one for one in faults if one["fault"] == FAILOVER]
    return {
        "relays that died": len(cast.relays_died_at) * AT_ONCE,
        "lanes that were lost": _lanes_lost(logs) * AT_ONCE,
        "answers that may have been lost": RELAYS * broken * AT_ONCE,
        "replays": replayed(logs),
        "ticks that a failover lost": _since_parted(failovers, stored_at),
    }


def may_repeat(fault: str) -> bool:
    """Tell whether something may be published again after a fault of this name."""
    return fault not in REPEAT_NOTHING or fault in ("kill a relay", "stop a relay", "replay")


def replayed(logs: Path) -> int:
    """Count what was replayed, by the commands' own word."""
    return sum(
        json.loads(line)["replayed"]
        for log in logs.glob("replay-*.log")
        for line in log.read_text().splitlines()
        if line.startswith("{")
    )


def _lanes_lost(logs: Path) -> int:
    return sum(line.count('"lanes lost"') for log in logs.glob("relay-*.log") for line in log.open(errors="replace"))


def _since_parted(failovers: Sequence[Mapping[str, Any]], stored_at: Iterable[float | None]) -> int:
    """Count what was stored from right before the standby was cut off; all of it, where a broker does not say when."""
    spans = [(one["began_at"] - PUBLISH_TIMEOUT, one["ended_at"]) for one in failovers]
    return sum(any(at is None or since <= at <= until for since, until in spans) for at in stored_at)
