"""Judges a simulated history: lost, phantom, first copies out of order."""

from tests.simulation.world import History


def faults(history: History) -> list[str]:
    """Name everything that is wrong with a history; empty if the promise was kept."""
    seen = set(history.wire)
    found = [f"lost: {id}" for id in history.committed if id not in seen and id not in history.dropped]
    found += [f"phantom: {id}" for id in seen if id not in history.committed]
    return found + out_of_order(history)


def out_of_order(history: History) -> list[str]:
    """Compare the first copies on the wire with the order of the commits, line by line."""
    found = []
    first = list(dict.fromkeys(history.wire))
    place = {id: number for number, id in enumerate(first)}
    lines: dict[object, list[str]] = {}
    for id, line in history.committed.items():
        if line is not None and id in place:
            lines.setdefault(line, []).append(id)
    for line, ids in lines.items():
        for earlier, later in zip(ids, ids[1:], strict=False):
            if place[earlier] > place[later]:
                found.append(f"out of order on {line}: {later} before {earlier}")
    return found
