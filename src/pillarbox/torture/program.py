"""`pillarbox torture`: prepares a directory, lets a run go, lets the evidence be judged, and shows the verdict."""

import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from pillarbox.errors import ConfigError
from pillarbox.torture.bank import bank_at
from pillarbox.torture.directory import open_directory
from pillarbox.torture.evidence import latencies
from pillarbox.torture.faults import GROUPS
from pillarbox.torture.judge import MOST_FINDINGS, judge
from pillarbox.torture.plot import plot
from pillarbox.torture.processes import ProcessFailed
from pillarbox.torture.report import as_json as in_json
from pillarbox.torture.report import show
from pillarbox.torture.run import Progress, Run
from pillarbox.torture.stage import GivenServers, Stage, left_out
from pillarbox.torture.taps import tap_at


def run(
    database: str | None, broker: str | None, minutes: float, seed: int | None, groups: Collection[str],
    keep: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Torture on somebody's servers, or on files of its own; give the exit code."""
    database, broker = _new_file("database", database), _new_file("broker", broker)
    with open_directory(keep, "torture") as place:
        stage = GivenServers(database, broker, place)
        seed = secrets.randbelow(1_000_000) if seed is None else seed
        command = _command(database, broker, minutes, seed, groups)
        return torture(stage, place, minutes, seed, groups, command, kept=keep is not None, as_json=as_json)


def torture(
    stage: Stage, place: Path, minutes: float, seed: int, groups: Collection[str], command: str, *,
    kept: bool, as_json: bool,
) -> int:  # fmt: skip
    """Torture on a stage, in an empty directory; give the exit code. `command` repeats the run."""
    console, errors = Console(), Console(stderr=True)
    bank_at(stage.database), tap_at(stage.broker)  # what it cannot use is refused before anything is said
    if not as_json:
        console.print(f"seed {seed}, {minutes:g} min, in {place}", highlight=False, soft_wrap=True)
        for sentence in left_out(stage, groups):
            console.print(sentence, highlight=False, soft_wrap=True)
    with _watched(console, silent=as_json) as tell:
        one = Run(stage, place, minutes * 60, seed, groups, tell)
        try:
            evidence = one.go()
        except ProcessFailed as error:
            errors.print(f"{error}\nThe run ended before it could be judged; to repeat it: {command}", soft_wrap=True)
            return 1
        finally:
            left = one.clean_up(keep_files=kept)
            for sentence in left:
                errors.print(sentence, style="red", highlight=False, markup=False, soft_wrap=True)
    judgements = judge(evidence)
    (place / "latency.svg").write_text(plot(latencies(evidence), evidence.facts["faults"], minutes * 60))
    if as_json:
        print(in_json(evidence, judgements, command))
    else:
        show(console, evidence, judgements)
        if kept:
            console.print(f"evidence and latency.svg: {place}", highlight=False, soft_wrap=True)
    findings = [finding for one in judgements for finding in one.findings]
    for sentence in [*findings[:MOST_FINDINGS], *([f"to repeat it: {command}"] if findings else [])]:
        errors.print(sentence, style="red", highlight=False, markup=False, soft_wrap=True)
    return 1 if findings or left else 0


def _new_file(setting: str, url: str | None) -> str | None:
    """Name a file by its whole path, for processes that work elsewhere; refuse one that is there."""
    if url is None or not url.startswith("sqlite:"):
        return url
    file = Path(url.removeprefix("sqlite:///"))
    if file.exists():
        raise ConfigError(
            f"{setting}: {url} is there already: the torture makes a file of its own; name one that is not there"
        )
    return f"sqlite:///{file.resolve()}"


def _command(database: str | None, broker: str | None, minutes: float, seed: int, groups: Collection[str]) -> str:
    """Write the command that repeats a run; whoever typed the URLs knows them."""
    words = [f"--{name} …" for name, url in (("database", database), ("broker", broker)) if url]
    return " ".join(["pillarbox torture", *words, f"--minutes {minutes:g} --seed {seed}", *chosen(groups)])


def chosen(groups: Collection[str]) -> list[str]:
    """Write the flag that chooses these kinds of faults; none where all are chosen."""
    return [] if set(groups) == set(GROUPS) else ["--faults", ",".join(g for g in GROUPS if g in groups) or "none"]


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
