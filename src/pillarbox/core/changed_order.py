"""A topic's order was changed while events of it stand parked: their lines are those of the old order.

A later event would be in another line than the parked one that it must not overtake, and pass it. So whoever begins to
work with a parking lot asks here first. An order of "none" is free to come: there, nobody minds being overtaken.
"""

from collections import Counter
from collections.abc import Iterable

from pillarbox.core.routing import Line, Topics
from pillarbox.errors import ConfigError


def check_order(lines: Iterable[tuple[Line, int]], topics: Topics, flag: str = "") -> None:
    """Refuse lines of another order than their topic has now; each comes with how many stand in it.

    `flag` is what the commands that mend it need to be told, such as " --inbox".
    """
    changed: Counter[str] = Counter()
    for line, count in lines:
        now = topics[line[0]].order
        if now != "none" and now != _order_of(line):
            changed[line[0]] += count
    if changed:
        topic, count = min(changed.items())
        raise ConfigError(_refusal(topic, count, topics[topic].order, flag))


def _order_of(line: Line) -> str:
    return "aggregate" if line[2] else "global"


def _refusal(topic: str, count: int, now: str, flag: str) -> str:
    before = "aggregate" if now == "global" else "global"
    stand = "1 event stands" if count == 1 else f"{count:,} events stand"
    return (
        f"topic.{topic}.order: it is {now!r} now, but {stand} parked in the order {before!r}, and later ones would pass"
        f" them; set it back to {before!r}, empty the parking lot with `pillarbox dead retry{flag} --topic {topic}` or"
        f" `pillarbox dead drop{flag} --topic {topic}`, wait until `pillarbox status` shows none, and change it then"
    )
