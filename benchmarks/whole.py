"""The whole way, from the commit to the broker and to the applied effect: what `pillarbox bench` measures, three times.

Drained with our relay beside the textbook loop, which publishes with the broker's bare client where it has one here;
beside a busy writer; latency at three rates; processor time and WAL per event. The same code as the command's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.brokers import stages
from benchmarks.brokers.clients import CLIENTS
from benchmarks.measure import ROUNDS, Goal, Progress, Row, alone, compared
from benchmarks.postgres import shop
from pillarbox.bench import rows as found
from pillarbox.bench.load import Load
from pillarbox.bench.options import Options
from pillarbox.bench.run import Bench
from pillarbox.settings import Settings
from servers.postgres import RunningPostgres

PARTS = ("drain", "sustained", "latency")
RATIOS = {("redis", "drain"): Goal(">=", 20)}
"""What must be so many times its reference."""


def rows(server: RunningPostgres, kind: str, quick: bool, tell: Progress) -> list[Row]:
    """Measure from PostgreSQL to one kind of broker."""

    def once(say: Progress) -> Sequence[found.Row]:
        with shop.bare_database(server) as url:
            return _run(Settings(database=url, broker=stage.url), kind, quick, say)

    with stages.ALL[kind]() as stage:
        return _in_rounds(f"PostgreSQL → {stage.name}", kind, once, tell)


def embedded_rows(place: Path, quick: bool, tell: Progress) -> list[Row]:
    """Measure from SQLite to the embedded broker."""

    def once(say: Progress) -> Sequence[found.Row]:
        with TemporaryDirectory(dir=place) as directory:
            shop_file, stream = (f"sqlite:///{Path(directory) / name}" for name in ("shop.db", "stream.db"))
            return _run(Settings(database=shop_file, broker=stream), "embedded", quick, say)

    return _in_rounds("SQLite → embedded", "embedded", once, tell)


def _run(settings: Settings, kind: str, quick: bool, say: Progress) -> Sequence[found.Row]:
    events, seconds = (2_000, 0.5) if quick else (100_000, 10.0)
    run = Bench(settings, Options(Load(), events, 1, seconds, PARTS), CLIENTS.get(kind))
    return run.go(lambda what, place: say(what))


def _in_rounds(way: str, kind: str, once: Callable[[Progress], Sequence[found.Row]], tell: Progress) -> list[Row]:
    rounds: list[Mapping[str, found.Row]] = []
    for turn in range(ROUNDS):
        say = partial(_say, tell, f"{way}: round {turn + 1} of {ROUNDS}")
        rounds.append({row.key: row for row in once(say)})
    return [_row(way, kind, [one[key] for one in rounds]) for key in rounds[0]]


def _say(tell: Progress, begin: str, what: str) -> None:
    tell(f"{begin}, {what}")


def _row(way: str, kind: str, found: Sequence[found.Row]) -> Row:
    """Make a row of the rounds' rows."""
    first, values = found[0], [row.value for row in found]
    goal = RATIOS.get((kind, first.key))
    name = f"{way}: {first.name}" + (f", beside {first.beside}" if first.reference else "")
    references = [row.reference for row in found if row.reference]
    if len(references) < len(values):
        return alone(name, first.unit, median(values), goal)
    return compared(name, first.unit, values, references, goal)
