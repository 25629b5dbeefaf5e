"""How long an event takes from its commit until the relay hands it to the publisher, at 1,000 events a second.

Beside it stands what a writer waits for its own durable commit in the same seconds: the relay needs one too.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.measure import ROUNDS, Goal, Progress, Row, compared
from benchmarks.postgres import shop
from pillarbox.bench.latency import Latencies, latencies, percentile
from pillarbox.bench.load import Load
from servers.postgres import RunningPostgres

RATE = 1000


def rows(server: RunningPostgres, quick: bool, tell: Progress) -> list[Row]:
    seconds = 2 if quick else 10
    found = []
    for turn in range(ROUNDS):
        tell(f"latency at {RATE:,} events/s: round {turn + 1} of {ROUNDS}")
        with shop.database(server) as url:
            found.append(latencies(shop.place_at(url), Load(), 0, seconds * RATE, RATE, "broker"))
    name = f"commit → published at {RATE:,} events/s, polling"
    return [beside_commits(f"{name}, p50", 0.5, found), beside_commits(f"{name}, p99", 0.99, found, Goal("<=", 20))]


def beside_commits(name: str, share: float, found: Sequence[Latencies], goal: Goal | None = None) -> Row:
    """Show a percentile beside the commits' own; the goal bounds the milliseconds."""
    ours = [percentile(one.taken, share) for one in found]
    row = compared(name, "ms", ours, [percentile(one.commits, share) for one in found])
    return row if goal is None else replace(row, goal=f"{goal} ms", met=goal.is_met(row.value))
