"""Lists for people: one line each, on which an id is never folded, so that it can be copied."""

from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from pillarbox.cli.output import cell, console, visible

GAP = 2


def print_listing(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    cut: Mapping[str, int] | None = None,
    spare: Sequence[str] = (),
) -> None:
    """Print a table of one line each. What is too wide for the terminal is cut, or left out; the rest stays whole."""
    texts = [[_on_one_line(*each) for each in zip(columns, row, strict=True)] for row in rows]
    widths = {name: max(map(cell_len, (name, *of))) for name, *of in zip(columns, *texts, strict=True)}
    screen = console()
    fitted = fit(widths, screen.width, cut or {}, spare)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in fitted.items():
        table.add_column(name, width=width, no_wrap=True, overflow="ellipsis")
    for row in texts:
        table.add_row(*(Text(text) for name, text in zip(columns, row, strict=True) if name in fitted))
    screen.width = max(screen.width, _wide(fitted))  # what stays whole runs on: a terminal joins it again when copied
    screen.print(table, soft_wrap=False)


def _on_one_line(name: str, value: object) -> str:
    return visible(cell(value, name)).replace("\n", " ")


def fit(widths: Mapping[str, int], room: int, cut: Mapping[str, int], spare: Sequence[str]) -> dict[str, int]:
    """Say how wide each column is, in so much room: cut one after the other, each to its least; then leave some out.

    >>> fit({"ID": 36, "TOPIC": 12, "ERROR": 50}, 80, {"ERROR": 10}, ["TOPIC"])
    {'ID': 36, 'TOPIC': 12, 'ERROR': 28}
    >>> fit({"ID": 36, "TOPIC": 12, "ERROR": 50}, 50, {"ERROR": 10}, ["TOPIC"])
    {'ID': 36, 'ERROR': 12}
    """
    left = dict(widths)
    least = {name: min(width, cut.get(name, width)) for name, width in widths.items()}
    for name in spare:
        if name in left and _wide({name: least[name] for name in left}) > room:
            del left[name]
    for name in cut:
        if name in left:
            left[name] = max(least[name], left[name] - max(0, _wide(left) - room))
    return left


def _wide(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)
