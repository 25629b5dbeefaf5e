"""The plot of a run: how long each event took from its commit to the broker, with the faults marked. SVG, by hand: the
package needs no plotting library for some thousand dots."""

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000, 420, 60, 20, 30, 40
DECADES = range(-3, 3)
"""From a millisecond to a hundred seconds."""
MOST_DOTS = 5_000


def plot(latencies: Sequence[tuple[float, float]], faults: Sequence[Mapping[str, Any]], seconds: float) -> str:
    """Draw (when it was committed, how long it took), both in seconds since the start."""
    end = max([seconds, *(at for at, _ in latencies)])

    def x(at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * at / end

    def y(took: float) -> float:
        place = min(max(log10(max(took, 1e-9)), DECADES[0]), DECADES[-1]) - DECADES[0]
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * place / (DECADES[-1] - DECADES[0])

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">seconds from commit to broker; red: faults</text>',
    ]
    for decade in DECADES:
        line = y(10.0**decade)
        parts.append(f'<path d="M{LEFT} {line:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{line + 4:.1f}" text-anchor="end">{10.0**decade:g}</text>')
    for tenth in range(11):
        at = end * tenth / 10
        parts.append(f'<text x="{x(at):.1f}" y="{HEIGHT - 20}" text-anchor="middle">{at:.0f} s</text>')
    for fault in faults:
        width = max(1.0, x(fault["lasts"]) - LEFT)
        parts.append(
            f'<rect x="{x(fault["at"]):.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}"'
            f' fill="red" opacity="0.15"><title>{fault["at"]:.1f} s: {escape(fault["fault"])}</title></rect>'
        )
    step = max(1, len(latencies) // MOST_DOTS)
    parts += [f'<circle cx="{x(at):.1f}" cy="{y(took):.1f}" r="1.3" fill="#246"/>' for at, took in latencies[::step]]
    return "\n".join([*parts, "</svg>", ""])
