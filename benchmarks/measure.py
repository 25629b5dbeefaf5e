"""Measure: two ways of doing the same, in turns, three times; the medians and the median of the ratios count."""

from collections.abc import Callable, Mapping, Sequence
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
Sign = Literal[">=", "<="]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. A goal bounds the ratio, or the value where there is no reference: from below if more is
    better, from above if less is."""

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
    """What the ratio, or the value, should be."""

    sign: Sign
    bound: float

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g}"

    def is_met(self, figure: float) -> bool:
        return figure >= self.bound if self.sign == ">=" else figure <= self.bound


def in_turns(name: str, unit: str, both: Round, place: Path, tell: Progress, goal: Goal | None = None) -> Row:
    """Measure both ways, round by round, each round in a directory of its own."""

    def once() -> tuple[float, float]:
        with TemporaryDirectory(dir=place) as directory:
            return both(Path(directory))

    return in_rounds(name, unit, once, tell, goal)


def in_rounds(
    name: str, unit: str, both: Callable[[], tuple[float, float]], tell: Progress, goal: Goal | None = None
) -> Row:
    """Measure both ways, round by round."""
    figures = []
    for turn in range(ROUNDS):
        tell(f"{name}: round {turn + 1} of {ROUNDS}")
        figures.append(both())
    ours, reference = zip(*figures, strict=True)
    return compared(name, unit, ours, reference, goal)


def in_turn(name: str, ways: Mapping[str, Callable[[], float]], tell: Progress) -> dict[str, list[float]]:
    """Measure several ways, one after the other, round by round."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(ROUNDS):
        for way, measure in ways.items():
            tell(f"{name}: round {turn + 1} of {ROUNDS}, {way}")
            found[way].append(measure())
    return found


def compared(name: str, unit: str, ours: Sequence[float], reference: Sequence[float], goal: Goal | None = None) -> Row:
    """Make a row of the figures of all rounds."""
    ratio = median(one / other for one, other in zip(ours, reference, strict=True))
    judged = (None, None) if goal is None else (str(goal), goal.is_met(ratio))
    return Row(name, median(ours), unit, median(reference), ratio, *judged)


def alone(name: str, unit: str, value: float, goal: Goal | None = None) -> Row:
    """Show a figure that has no reference."""
    judged = (None, None) if goal is None else (str(goal), goal.is_met(value))
    return Row(name, value, unit, None, None, *judged)


def one_after_the_other(ours: Way, reference: Way) -> Round:
    """Make a round of two ways that cannot alternate more finely."""

    def both(at: Path) -> tuple[float, float]:
        for name in ("ours", "reference"):
            (at / name).mkdir()
        return ours(at / "ours"), reference(at / "reference")

    return both
