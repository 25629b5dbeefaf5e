"""Runs simulated worlds by seed and collects what struck and what broke."""

from collections import Counter
from dataclasses import dataclass
from unittest import mock

from pillarbox.core import circuit
from pillarbox.testing.clock import ManualClock, simulate
from tests.simulation.judge import faults
from tests.simulation.world import Parts, World


@dataclass
class Result:
    """One run."""

    seed: int
    faults: list[str]
    hits: Counter[tuple[str, str]]
    committed: int
    copies: int

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.committed} committed, {self.copies} copies, {self.hits.total()} faults struck"
        ]
        if self.faults:
            lines += [*self.faults, f"repeat it: python -m tests.simulation --seed {self.seed}"]
        return "\n".join(lines)


def run_one(seed: int, parts: Parts | None = None, *, topics_fail: bool = True) -> Result:
    """Live one world to its end. A topic is held after fewer failures than by default: these worlds are small."""
    clock = ManualClock()

    async def life() -> World:
        world = World(seed, clock, parts, topics_fail=topics_fail)
        await world.live()
        return world

    with mock.patch.object(circuit, "IN_A_ROW", 4):
        try:
            world = simulate(life(), clock)
        except Exception as error:
            raise RuntimeError(
                f"seed {seed}: {error!r}; repeat it: python -m tests.simulation --seed {seed}"
            ) from error
    history = world.history
    copies = len(history.wire) - len(set(history.wire))
    return Result(seed, faults(history), world.hits, len(history.committed), copies)
