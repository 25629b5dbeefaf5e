"""Runs simulated worlds by seed and collects what struck and what broke."""

from collections import Counter
from dataclasses import dataclass

from pillarbox.relay.relay import Relay
from pillarbox.testing.clock import ManualClock, simulate
from tests.simulation.judge import faults
from tests.simulation.world import World


@dataclass
class Result:
    """One run."""

    seed: int
    faults: list[str]
    hits: Counter[tuple[str, str]]
    committed: int
    copies: int

    @property
    def repeat(self) -> str:
        return f"python -m tests.simulation --seed {self.seed}"


def run_one(seed: int, relay: type[Relay] = Relay) -> Result:
    """Live one world to its end."""
    clock = ManualClock()

    async def life() -> World:
        world = World(seed, clock, relay=relay)
        await world.live()
        return world

    world = simulate(life(), clock)
    history = world.history
    return Result(seed, faults(history), world.hits, len(history.committed), len(history.wire) - len(set(history.wire)))
