"""Judges a simulated history: lost, phantom, first copies out of order, effects twice or out of order."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from pillarbox.core.routing import Line
from tests.simulation.world import History


def faults(history: History) -> list[str]:
    """Name everything that is wrong with a history; empty if the promise was kept."""
    seen, effects = set(history.wire), Counter(history.applied)
    found = [f"lost: {id}" for id in history.committed if id not in seen and id not in history.dropped]
    found += [f"phantom: {id}" for id in seen if id not in history.committed]
    found += [f"applied twice: {id}" for id, times in effects.items() if times > 1]
    found += [f"not applied: {id}" for id in seen if id not in effects]
    found += [f"applied without an event: {id}" for id in effects if id not in seen]
    found += history.troubles + faults_of_copies(history)
    return found + out_of_order(history, history.wire, "wire") + out_of_order(history, history.applied, "effects")


def faults_of_copies(history: History) -> list[str]:
    """What a replay sends on purpose is applied once for each such replay."""
    sent, effects = set(history.copies), Counter(history.applied_again)
    found = [f"applied twice of the replay {by}: {id}" for (id, by), times in effects.items() if times > 1]
    found += [f"not applied of the replay {by}: {id}" for id, by in sent if (id, by) not in effects]
    return found + [f"applied without its replay {by}: {id}" for id, by in effects if (id, by) not in sent]


def out_of_order(history: History, order: Sequence[str], where: str) -> list[str]:
    """Compare first appearances with the order of the commits, line by line; what was dropped stands outside it."""
    found = []
    place = {id: number for number, id in reversed(list(enumerate(order)))}
    lines: dict[Line, list[str]] = {}
    for id, line in history.committed.items():
        if line is not None and id in place and id not in history.dropped:
            lines.setdefault(line, []).append(id)
    for line, ids in lines.items():
        for earlier, later in pairwise(ids):
            if place[earlier] > place[later]:
                found.append(f"out of order ({where}) on {line}: {later} before {earlier}")
    return found
