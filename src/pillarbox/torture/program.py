"""`pillarbox torture`: prepares a directory, lets a run go, lets the evidence be judged, and shows the verdict."""

import json
import secrets
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from pillarbox.errors import ConfigError
from pillarbox.torture.bank import bank_at
from pillarbox.torture.evidence import Evidence, Judgement, counts, judge, latencies
from pillarbox.torture.faults import GROUPS, named
from pillarbox.torture.plot import plot
from pillarbox.torture.processes import ProcessFailed
from pillarbox.torture.run import Progress, Run
from pillarbox.torture.stage import ANYWHERE, GivenServers, Stage
from pillarbox.torture.taps import tap_at

MOST_FINDINGS = 20


def run(
    database: str | None, broker: str | None, minutes: float, seed: int | None, groups: Collection[str],
    keep: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Torture on somebody's servers, or on files of its own; give the exit code."""
    if database is not None and database.startswith("sqlite:") and Path(database.removeprefix("sqlite:///")).exists():
        raise ConfigError(
            f"database: {database} is there already: the torture makes a file of its own; name one that is not there"
        )
    with _directory(keep) as directory:
        stage = GivenServers(
            database or f"sqlite:///{directory / 'shop.db'}", broker or f"sqlite:///{directory / 'stream.db'}"
        )
        seed = secrets.randbelow(1_000_000) if seed is None else seed
        command = _command(database, broker, minutes, seed, groups)
        return torture(stage, directory, minutes, seed, groups, command, kept=keep is not None, as_json=as_json)


def torture(
    stage: Stage, directory: Path, minutes: float, seed: int, groups: Collection[str], command: str, *,
    kept: bool, as_json: bool,
) -> int:  # fmt: skip
    """Torture on a stage, in an empty directory; give the exit code. `command` repeats the run."""
    console, errors = Console(), Console(stderr=True)
    bank_at(stage.database), tap_at(stage.broker)  # what it cannot use is refused before anything is said
    if not as_json:
        console.print(f"seed {seed}, {minutes:g} min, in {directory}", highlight=False, soft_wrap=True)
        if left_out := _left_out(stage, groups):
            console.print(left_out, highlight=False, soft_wrap=True)
    with _watched(console, silent=as_json) as tell:
        one = Run(stage, directory, minutes * 60, seed, named(groups), tell)
        try:
            evidence = one.go()
        except ProcessFailed as error:
            errors.print(f"{error}\nThe run ended before it could be judged; to repeat it: {command}", soft_wrap=True)
            return 1
        one.clean_up()
    judgements = judge(evidence)
    (directory / "latency.svg").write_text(plot(latencies(evidence), evidence.facts["faults"], minutes * 60))
    if as_json:
        print(json.dumps(_as_json(evidence, judgements)))
    else:
        console.print(_counted(evidence))
        console.print(_judged(judgements))
        if kept:
            console.print(f"evidence and latency.svg: {directory}", highlight=False, soft_wrap=True)
    findings = [finding for one in judgements for finding in one.findings]
    for sentence in [*findings[:MOST_FINDINGS], *([f"to repeat it: {command}"] if findings else [])]:
        errors.print(sentence, style="red", highlight=False, markup=False, soft_wrap=True)
    return 1 if findings else 0


def _left_out(stage: Stage, groups: Collection[str]) -> str:
    """Say which faults were asked for and cannot be made on servers that are not ours."""
    missing = named(groups) - ANYWHERE - set(stage.offers)
    left = [group for group in GROUPS if group in groups and named({group}) & missing]
    return f"left out, because these servers are not ours: faults of {', '.join(left)}" if left else ""


def _command(database: str | None, broker: str | None, minutes: float, seed: int, groups: Collection[str]) -> str:
    """Write the command that repeats a run; whoever typed the URLs knows them."""
    words = [f"--{name} …" for name, url in (("database", database), ("broker", broker)) if url]
    chosen = [] if set(groups) == set(GROUPS) else ["--faults", ",".join(group for group in GROUPS if group in groups)]
    return " ".join(["pillarbox torture", *words, f"--minutes {minutes:g} --seed {seed}", *chosen])


def _as_json(evidence: Evidence, judgements: Sequence[Judgement]) -> dict[str, Any]:
    took = sorted(took for _, took in latencies(evidence))
    return {
        "ok": all(one.holds for one in judgements),
        "seed": evidence.facts["seed"],
        "seconds": evidence.facts["seconds"],
        **counts(evidence),
        "questions": {
            one.question: {"title": one.title, "holds": one.holds, "seen": one.seen, "findings": list(one.findings)}
            for one in judgements
        },
        "latency_seconds": {name: _percentile(took, share) for name, share in (("p50", 0.5), ("p99", 0.99))},
        "fault_log": evidence.facts["faults"],
        "copies_come_from": evidence.facts["copies_come_from"],
        "ended_by_themselves": evidence.facts["words"],
        "servers": evidence.facts["servers"],
    }


def _percentile(values: Sequence[float], share: float) -> float | None:
    return round(values[int(len(values) * share)], 4) if values else None


def _counted(evidence: Evidence) -> Table:
    table = Table(show_header=False)
    table.add_column(min_width=18)
    table.add_column(justify="right", min_width=8)
    for name, value in counts(evidence).items():
        table.add_row(name.replace("_", " "), f"{value:,}")
    return table


def _judged(judgements: Sequence[Judgement]) -> Table:
    table = Table(title="judged by the evidence alone", title_justify="left")
    for column in ("", "what must hold", "", "seen"):
        table.add_column(column)
    for one in judgements:
        style = "green" if one.holds else "bold red"
        table.add_row(one.question, one.title, "holds" if one.holds else "BROKEN", one.seen, style=style)
    return table


@contextmanager
def _watched(console: Console, *, silent: bool) -> Iterator[Any]:
    """Show how far a run is, and each fault as it strikes."""
    if silent or not console.is_terminal:
        yield lambda progress: None
        return
    with Live("", console=console, refresh_per_second=4, transient=True) as live:

        def tell(progress: Progress) -> None:
            if progress.fault is not None:
                live.console.print(f"{progress.seconds:6.1f} s  {progress.fault}", highlight=False)
            live.update(f"{progress.seconds:6.1f} s  {progress.phase}, {progress.struck} faults so far")

        yield tell


@contextmanager
def _directory(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="pillarbox-torture-") as name:
        yield Path(name).resolve()
