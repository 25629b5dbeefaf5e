"""Bars: rows beside their references. SVG, by hand: the package needs no plotting library for some rectangles.

Each row has a scale of its own, for they have different units; what counts is how it stands to its reference.
"""

from collections.abc import Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, LABELS, NUMBERS, ROW, BAR, TOP = 1000, 430, 190, 40, 14, 46
OURS, THEIRS, MISSED = "#246", "#bbb", "#a22"


class Bar(NamedTuple):
    """A row to be drawn."""

    name: str
    value: float
    unit: str
    reference: float | None = None
    missed: bool = False
    """It has a goal and does not reach it."""


def plot(title: str, bars: Sequence[Bar]) -> str:
    """Draw rows, dark, above their references, light."""
    height = TOP + ROW * len(bars) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="10" y="20" font-size="15">{escape(title)}</text>',
        '<text x="10" y="36" fill="#666">dark: measured; light: the reference of the same run; red: a goal is missed'
        "; each pair has its own scale</text>",
    ]
    for place, bar in enumerate(bars):
        parts += _drawn(bar, TOP + ROW * place)
    return "\n".join([*parts, "</svg>", ""])


def _drawn(bar: Bar, top: int) -> list[str]:
    longest = max(bar.value, bar.reference or 0.0) or 1.0
    room = WIDTH - LABELS - NUMBERS
    parts = [f'<text x="{LABELS - 8}" y="{top + 18}" text-anchor="end">{escape(bar.name)}</text>']
    for place, (value, colour) in enumerate(((bar.value, MISSED if bar.missed else OURS), (bar.reference, THEIRS))):
        if value is None:
            continue
        y, width = top + place * (BAR + 2), max(1.0, room * value / longest)
        parts.append(f'<rect x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        parts.append(f'<text x="{LABELS + width + 6:.1f}" y="{y + 11}">{value:,.6g} {escape(bar.unit)}</text>')
    return parts
