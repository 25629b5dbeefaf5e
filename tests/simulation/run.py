"""Runs simulated worlds by seed and collects what struck and what broke."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from unittest import mock

from pillarbox.core import circuit
from pillarbox.relay import chores
from pillarbox.testing import memory_careful
from pillarbox.testing.clock import ManualClock, simulate
from tests.simulation.edition import NEWEST, Edition
from tests.simulation.judge import faults
from tests.simulation.world import Parts, World

NEVER = 10**9


@dataclass
class Result:
    """One run."""

    seed: int
    edition: Edition
    faults: list[str]
    hits: Counter[tuple[str, str]]
    committed: int
    copies: int

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.committed} committed, {self.copies} copies, {self.hits.total()} faults struck"
        ]
        if self.faults:
            lines += [*self.faults, how_to_repeat(self.seed, self.edition)]
            lines.append(f"and keep it for ever: FAILED_ONCE[{self.edition!s}] in test_simulation.py")
        return "\n".join(lines)


def how_to_repeat(seed: int, edition: Edition) -> str:
    """Write the command that lives a world once more."""
    older = "" if edition is NEWEST else f" --edition {edition}"
    return f"repeat it: .venv/bin/python -m tests.simulation --seed {seed}{older}"


@contextmanager
def smaller(edition: Edition) -> Iterator[None]:
    """Patch what is too long for worlds as small as these."""
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(circuit, "IN_A_ROW", 4))
        if edition < Edition.OPERATED:
            patches.enter_context(mock.patch.object(memory_careful, "CRASHES", NEVER))
        else:
            patches.enter_context(mock.patch.object(chores, "PRUNE_FIRST", timedelta(seconds=1)))
            patches.enter_context(mock.patch.object(chores, "PRUNE_EVERY", timedelta(seconds=1)))
        yield


def run_one(seed: int, parts: Parts | None = None, *, edition: Edition = NEWEST) -> Result:
    """Live one world to its end. These worlds are small: a topic is held, and what is old is pruned, sooner."""
    clock = ManualClock()

    async def life() -> World:
        world = World(seed, clock, parts, edition=edition)
        await world.live()
        return world

    try:
        with smaller(edition):
            world = simulate(life(), clock)
    except Exception as error:
        raise RuntimeError(f"seed {seed}: {error!r}; {how_to_repeat(seed, edition)}") from error
    history = world.history
    copies = len(history.wire) - len(set(history.wire))
    return Result(seed, edition, faults(history), world.hits, len(history.committed), copies)
