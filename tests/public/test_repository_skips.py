"""A test run fails if something was skipped that this machine could have run, and says what it ran against."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"


def run_tests(directory: Path, source: str, *options: str, conftest: str = "") -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text(CONFTEST.read_text() + conftest)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    (directory / "test_something.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:pillarbox", *options]
    environment = {**os.environ, "PYTHONPATH": str(CONFTEST.parents[1])}  # for the servers that it starts
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, env=environment)


def skipping(reason: str) -> str:
    return f"import pytest\n\n@pytest.mark.skip(reason={reason!r})\ndef test_it(): ...\n\ndef test_more(): ...\n"


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.soak), 1])
@pytest.mark.parametrize("reason", ["later", "needs a holiday: soon", "needs SQLAlchemy: it is in the lock"])
def test_a_skip_that_is_needless_fails_the_run(tmp_path: Path, reason: str, workers: int) -> None:
    result = run_tests(tmp_path, skipping(reason), "--every-skip-needs-a-reason", "-n", str(workers))
    assert result.returncode == 1, result.stdout
    assert f"{reason} ← this machine could have run it" in result.stdout


def test_a_skip_because_of_what_the_machine_lacks_is_counted(tmp_path: Path) -> None:
    result = run_tests(
        tmp_path,
        skipping("needs a moon: it is dark"),
        "--every-skip-needs-a-reason",
        conftest="REQUIREMENTS['a moon'] = lambda: False\n",
    )
    assert result.returncode == 0, result.stdout
    assert "1 passed, 0 failed, 0 error, 1 skipped" in result.stdout
    assert "needs a moon: it is dark\n" in result.stdout


def test_a_failure_stays_a_failure(tmp_path: Path) -> None:
    result = run_tests(tmp_path, "def test_it():\n    assert False\n", "--every-skip-needs-a-reason")
    assert result.returncode == 1


def test_without_the_option_a_skip_is_only_counted(tmp_path: Path) -> None:
    result = run_tests(tmp_path, skipping("later"))
    assert result.returncode == 0
    assert "1 skipped" in result.stdout


@pytest.mark.parametrize("outcome", ["True", "False"])
def test_what_a_test_says_is_printed_also_if_it_fails(tmp_path: Path, outcome: str) -> None:
    source = f"def test_it(record_property):\n    record_property('says', 'it struck 7 times')\n    assert {outcome}\n"
    assert "  it struck 7 times\n" in run_tests(tmp_path, source).stdout
