"""`pillarbox torture`: prepares a directory, lets a run go, lets the evidence be judged, and shows the verdict."""

import secrets
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from pillarbox.core.secrets import without_secrets
from pillarbox.errors import ConfigError
from pillarbox.torture.bank import bank_at
from pillarbox.torture.directory import Place, open_place
from pillarbox.torture.evidence import Evidence, latencies
from pillarbox.torture.faults import GROUPS
from pillarbox.torture.judge import MOST_FINDINGS, judge
from pillarbox.torture.plot import plot
from pillarbox.torture.processes import ProcessFailed, sigterm_interrupts
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
    with sigterm_interrupts(), open_place(keep, "pillarbox-torture") as place:
        stage = GivenServers(database, broker, place.path)
        seed = secrets.randbelow(1_000_000) if seed is None else seed
        command = command_of(database, broker, minutes, seed, groups)
        return torture(stage, place, minutes, seed, groups, command, as_json=as_json)


def torture(
    stage: Stage, place: Place, minutes: float, seed: int, groups: Collection[str], command: str, *, as_json: bool
) -> int:
    """Torture on a stage, in an empty directory; give the exit code. `command` repeats the run, and is said first and
    however it ends; a place that was to be thrown away is kept where it failed."""
    bank_at(stage.database), tap_at(stage.broker)  # what it cannot use is refused before anything is said
    for sentence in (
        f"seed {seed}, {minutes:g} min, in {place.path}",
        *map(str, left_out(stage, groups)),
        _repeat(command),
    ):
        _say(sentence)
    console = Console()
    try:
        with _watched(console, silent=as_json) as tell:
            run = Run(stage, place.path, minutes * 60, seed, groups, tell)
            evidence, left = _go(run, keep_files=place.kept)
        judgements = judge(evidence)
        (place.path / "latency.svg").write_text(plot(latencies(evidence), evidence.facts["faults"], minutes * 60))
        print(in_json(evidence, judgements, command)) if as_json else show(console, evidence, judgements)
    except KeyboardInterrupt:
        _say(f"interrupted; {_repeat(command)}")
        raise
    except Exception as error:
        place.kept = True
        _say(f"The run ended before it could be judged: {error}\n{_kept(place)}\n{_repeat(command)}", style="red")
        if isinstance(error, ProcessFailed):
            return 1
        raise
    findings = [finding for one in judgements for finding in one.findings]
    place.kept = place.kept or bool(findings)
    ending = [_kept(place)] * place.kept + [_repeat(command)] * bool(findings)
    for sentence in (*findings[:MOST_FINDINGS], *ending):
        _say(sentence, style="red" if findings else None)
    return 1 if findings or left else 0


def _go(run: Run, *, keep_files: bool) -> tuple[Evidence, Sequence[str]]:
    """Let it run; give the evidence, and what could not be removed, which is said as well."""
    left: list[str] = []
    try:
        evidence = run.go()
    finally:
        left += run.clean_up(keep_files=keep_files)
        for sentence in left:
            _say(sentence, style="red")
    return evidence, left


def _say(sentence: str, style: str | None = None) -> None:
    """Tell people; stdout is for the verdict."""
    Console(stderr=True).print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


def _repeat(command: str) -> str:
    return f"to repeat it: {command}"


def _kept(place: Place) -> str:
    return f"evidence, logs and latency.svg: {place.path}"


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


def command_of(database: str | None, broker: str | None, minutes: float, seed: int, groups: Collection[str]) -> str:
    """Write the command that repeats a run; whoever typed a URL knows its password."""
    urls = (("database", database), ("broker", broker))
    words = [f"--{name} {shlex.quote(without_secrets(url))}" for name, url in urls if url]
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
