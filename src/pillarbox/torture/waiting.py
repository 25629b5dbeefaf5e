"""What has not gone its way when a run is judged: where each event waits, and whether anything still moves. It imports
the checker and the evidence, and nothing else of Pillarbox."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from pillarbox.torture.checker import resolve
from pillarbox.torture.evidence import DEAD_LETTER, REFUSED, Evidence

STANDSTILL = 10.0
"""Seconds without any progress in which even a lane that is taken over, or an event that is tried again, had moved."""


def waiting(evidence: Evidence) -> Mapping[str, int]:
    """Count the committed events that are not where they belong, by the place where they wait or have ended."""
    done, _ = resolve(evidence.changes, set(evidence.journal), [])
    status = {(one["side"], one["id"]): one["status"] for one in evidence.statuses}
    wire, applied = ({one["id"] for one in seen} for seen in (evidence.wire, evidence.effects))
    places = Counter[str]()
    for event in (event for change in done for event in change.events):
        id, fate = event["id"], event.get("fate")
        outbox, inbox = status.get(("outbox", id)), status.get(("inbox", id))
        if outbox == "pending":
            places["pending in the outbox"] += 1
        elif outbox == "dead":
            places["dead in the outbox"] += fate != REFUSED
        elif outbox not in ("published", None):
            places["parked in the outbox"] += 1
        elif id not in wire:
            places["neither in the outbox nor at the broker"] += 1
        elif id in applied:
            pass
        elif inbox == "dead":
            places["dead in the inbox"] += fate != DEAD_LETTER
        elif inbox not in (None, "suspect"):  # of that one there is a note, and the broker has it
            places["parked in the inbox"] += 1
        else:
            places["at the broker, not consumed"] += 1
    return {place: count for place, count in places.most_common() if count}


def pace(waited: Sequence[tuple[float, int]]) -> str:
    """Tell a standstill from mere slowness by how much waited when: seconds since the last fault, and a count."""
    if not waited:
        return "nobody has looked how much waits"
    end, left = waited[-1]
    moved = [at for (_, before), (at, count) in pairwise(waited) if count < before]
    since = end - max(moved, default=waited[0][0])
    if left and since >= STANDSTILL:
        return f"a standstill: nothing has moved for {since:.0f} s, and {left:,} wait"
    before = next(count for at, count in waited if at >= end - STANDSTILL)
    span = f"{min(end, STANDSTILL):.0f} s"
    return f"slow, and it moves: {before - left:,} of {before:,} in the last {span}, and {left:,} wait"
