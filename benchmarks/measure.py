"""Measure: two ways of doing the same, in turns, three times; the medians and the median of the ratios count."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Literal

ROUNDS = 3
Progress = Callable[[str], None]
Way = Callable[[Path], float]
"""Does the work in an empty directory and gives its figure: events a second, or microseconds an event."""
Round = Callable[[Path], tuple[float, float]]
"""Does the work both ways in an empty directory and gives our figure and the reference's."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. A goal bounds the ratio: from below if more is better, from above if less is."""

    name: str
    value: float
    unit: str
    reference: float | None
    ratio: float | None
    goal: str | None = None
    met: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: round(v, 4) if isinstance(v, float) else v for name, v in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Goal:
    """What the ratio should be."""

    sign: Literal[">=", "<="]
    bound: float

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.bound if self.sign == ">=" else ratio <= self.bound


def in_turns(name: str, unit: str, both: Round, place: Path, tell: Progress, goal: Goal | None = None) -> Row:
    """Measure both ways, round by round."""
    figures = []
    for turn in range(ROUNDS):
        tell(f"{name}: round {turn + 1} of {ROUNDS}")
        with TemporaryDirectory(dir=place) as directory:
            figures.append(both(Path(directory)))
    mine, theirs = (median(figure) for figure in zip(*figures, strict=True))
    ratio = median(one / other for one, other in figures)
    met = None if goal is None else goal.is_met(ratio)
    return Row(name, mine, unit, theirs, ratio, None if goal is None else str(goal), met)


def one_after_the_other(ours: Way, reference: Way) -> Round:
    """Make a round of two ways that cannot alternate more finely."""

    def both(at: Path) -> tuple[float, float]:
        for name in ("ours", "reference"):
            (at / name).mkdir()
        return ours(at / "ours"), reference(at / "reference")

    return both
