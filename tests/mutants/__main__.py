"""Show that the tests notice every mutant: python -m tests.mutants [NAME …]"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.mutants import MUTANTS
from tests.mutants.mutant import DoesNotApply, Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("src", "tests", "servers", "pyproject.toml")
"""What the tests that are named need of the tree."""
PASSED, FAILED = 0, 1
"""pytest's exit codes; every other one means that the tests have not run."""


class Trial(NamedTuple):
    """What became of a mutant."""

    mutant: Mutant
    caught_by: str | None
    seconds: float
    trouble: str = ""
    """Why nothing is known."""

    def __str__(self) -> str:
        what = self.trouble or (f"caught by {self.caught_by}" if self.caught_by else "SURVIVED")
        return f"{self.mutant.name:<48} {self.seconds:5.1f} s  {what}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only those whose name has this in it")
    parser.add_argument("--workers", type=int, default=2, help="so many at once (default: %(default)s)")
    arguments = parser.parse_args()
    chosen = [one for one in MUTANTS if not arguments.names or any(name in one.name for name in arguments.names)]
    if (broken := unbroken(chosen)) is not None:
        print(f"without any mutant the tests do not pass, so nothing would be shown:\n{broken}")
        return 1
    print(f"{'mutant':<48} {'took':>7}")
    trials = []
    with ThreadPoolExecutor(arguments.workers) as pool:
        for trial in pool.map(try_one, chosen):
            print(trial, flush=True)
            trials.append(trial)
    caught = sum(trial.caught_by is not None for trial in trials)
    print(f"{caught} of {len(trials)} caught")
    return 0 if trials and caught == len(trials) else 1


def unbroken(mutants: Iterable[Mutant]) -> str | None:
    """Run every test that is named on the tree as it is; give what pytest says unless all pass."""
    with TemporaryDirectory() as folder:
        done = run(copied(Path(folder)), sorted({test for mutant in mutants for test in mutant.caught_by}))
    return None if done.returncode == PASSED else done.stdout + done.stderr


def try_one(mutant: Mutant) -> Trial:
    """Break the rule in a copy of the tree, and run its tests there."""
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        root = copied(Path(folder))
        try:
            mutant.apply(root)
        except DoesNotApply as error:
            return Trial(mutant, None, 0, f"DOES NOT APPLY: {error}")
        done = run(root, mutant.caught_by)
    seconds = time.monotonic() - began
    if done.returncode == PASSED:
        return Trial(mutant, None, seconds)
    failed = re.search(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
    if done.returncode != FAILED or failed is None:
        return Trial(mutant, None, seconds, f"ITS TESTS DO NOT RUN:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Trial(mutant, failed[1], seconds)


def copied(folder: Path) -> Path:
    """Copy the tree to where it may be broken."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    return folder


def run(root: Path, tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy, with the package of that copy, until one fails."""
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout", "120", *tests]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


if __name__ == "__main__":
    raise SystemExit(main())
