"""What strikes, when and whom: a plan by seed. Pure; whoever stages a run does what a strike says."""

from collections.abc import Collection, Iterator, Sequence
from random import Random
from typing import NamedTuple

LEASE = 3.0
PUBLISH_TIMEOUT = 2.0
"""Seconds; short, so that much happens in a short run."""
QUIET = 2.0, 0.1
"""Nothing strikes in the first seconds, nor in the last part of the time."""
FAILOVER = "fail over"
"""It lasts for as long as the standby is cut off from what is committed; then the standby takes over."""
TOO_LARGE, UNROUTABLE, DEADLY = "too large", "unroutable", "deadly"
"""What is poison: events that a broker refuses for good, and one whose handler kills its process."""


class Kind(NamedTuple):
    """A kind of fault. It lasts for one of these times, in seconds; how often it comes is relative to the others, and 0
    is once in a run."""

    group: str
    name: str
    often: int
    lasts: tuple[float, ...] = (0.0,)


KINDS = (
    Kind("relay", "kill a relay", 12),
    Kind("relay", "stop a relay", 3),
    Kind("relay", "freeze a relay", 4, (0.5 * LEASE, 1.5 * LEASE, 5 * LEASE)),
    Kind("consumer", "kill a consumer", 8),
    Kind("consumer", "stop a consumer", 2),
    Kind("consumer", "freeze a consumer", 3, (0.5 * LEASE, 1.5 * LEASE, 5 * LEASE)),
    Kind("database", "kill the database", 1),
    Kind("database", "terminate backends", 4),
    Kind("database", "hold a write transaction", 1, (5.0, 10.0)),
    Kind("database", "hold a snapshot", 1, (5.0, 15.0)),
    Kind("database", "restart the pooler", 1),
    Kind("database", "kill the ledger's database", 1),
    Kind("database", FAILOVER, 0, (1.0, 3.0)),
    Kind("broker", "kill the broker", 2, (0.0, 1.0, 4.0)),
    Kind("broker", "flush the hint", 2),
    Kind("network", "cut the way to the database", 2, (0.5, 2.0, 5.0)),
    Kind("network", "reset connections to the database", 2, (0.1, 1.0)),
    Kind("network", "slow the way to the database", 1, (3.0,)),
    Kind("network", "lose answers of the database", 2, (0.5, 2.5)),
    Kind("network", "cut the way to the broker", 2, (0.5, 2.0, 5.0)),
    Kind("network", "reset connections to the broker", 3, (0.1, 1.0)),
    Kind("network", "slow the way to the broker", 1, (3.0,)),
    Kind("network", "lose answers of the broker", 3, (0.5, 2.5)),
    Kind("clock", "set a relay's clock forward", 1, (5.0,)),
    Kind("clock", "set a relay's clock back", 1, (5.0,)),
    Kind("admin", "replay", 2),
    Kind("admin", "prune", 2),
    Kind("admin", "pause a topic", 2, (1.0, 3.0)),
    Kind("admin", "retry dead events", 2),
)
SERVERS = ("database", "broker", "network")
TOGETHER = 0.4
"""How often somebody's process is struck while a fault of these groups lasts: more of it than chance brings."""
GROUPS = tuple(dict.fromkeys(kind.group for kind in KINDS))


class Strike(NamedTuple):
    """One fault: when, what, whom (a number to choose by), and for how long. Times are seconds since the start."""

    at: float
    name: str
    whom: int
    lasts: float


def plan(seed: int, seconds: float, offered: Collection[str], every: float = 1.0) -> Sequence[Strike]:
    """Say what strikes in a run of so many seconds, about once in `every`: always the same for the same arguments.
    `offered` are the names of the faults that can be made."""
    kinds = [kind for kind in KINDS if kind.name in offered]
    chance = Random(f"faults {seed}")
    strikes = list(_strikes(chance, seconds, kinds, every)) if kinds else []
    meanwhile = _strikes_meanwhile(chance, strikes, [kind for kind in kinds if kind.group in ("relay", "consumer")])
    return sorted([*strikes, *meanwhile])


def _strikes(chance: Random, seconds: float, kinds: Sequence[Kind], every: float) -> Iterator[Strike]:
    first, share = QUIET
    at, end = min(first, seconds * share), seconds * (1 - share)
    # Each kind once, then by how often it comes: in a short run too, none is forgotten before others come twice.
    coming, again = chance.sample(kinds, len(kinds)), [kind for kind in kinds if kind.often]
    while (at := at + chance.uniform(0.3, 1.7) * every) < end and (coming or again):
        [kind] = [coming.pop()] if coming else chance.choices(again, [kind.often for kind in again])
        yield Strike(round(at, 2), kind.name, chance.randrange(1_000), chance.choice(kind.lasts))


def _strikes_meanwhile(chance: Random, strikes: Sequence[Strike], kinds: Sequence[Kind]) -> Iterator[Strike]:
    """Strike relays and consumers while servers or ways are away; what comes last must not be outlasted."""
    servers, end = named(SERVERS), max((strike.at for strike in strikes), default=0.0)
    for strike in strikes if kinds else ():
        at = round(strike.at + chance.uniform(0.2, 0.8) * strike.lasts, 2)
        if strike.name in servers and strike.lasts and chance.random() < TOGETHER and at <= end:
            [kind] = chance.choices(kinds, [kind.often for kind in kinds])
            yield Strike(at, kind.name, chance.randrange(1_000), chance.choice(kind.lasts))


def named(groups: Collection[str]) -> frozenset[str]:
    """Give the names of the faults of these groups."""
    return frozenset(kind.name for kind in KINDS if kind.group in groups)


def groups_of(text: str) -> list[str]:
    """Read the groups that somebody names, with commas between; "none" are none. Raises ValueError."""
    chosen = [] if text.strip() == "none" else [word.strip() for word in text.split(",") if word.strip()]
    if unknown := [word for word in chosen if word not in GROUPS]:
        raise ValueError(f"{unknown[0]!r} is no kind of fault: they are {', '.join(GROUPS)}, or none of them")
    return chosen
