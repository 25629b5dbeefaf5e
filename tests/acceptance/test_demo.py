"""The demo through the real command: it keeps its promises, finds a planted loss, and leaves nothing running."""

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pillarbox.demo import DEFAULT_EVENTS
from pillarbox.demo.program import judge
from pillarbox.demo.shop import WRITERS, plan
from pillarbox.torture import checker

EVENTS, SEED = 600, 7
FAULTS = ("lost", "phantom", "applied_twice", "out_of_order")
KEYS = ["committed", "rolled_back", "published", "copies", "applied", *FAULTS, "kills", "seconds"]
DEMO = [sys.executable, "-m", "pillarbox", "demo"]
PATIENCE = 120.0

pytestmark = pytest.mark.timeout(180)


def run_demo(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose files were kept, and what it printed; tests change copies of it only."""
    directory = tmp_path_factory.mktemp("demo") / "kept"
    result = run_demo("--events", EVENTS, "--seed", SEED, "--keep", directory)
    assert result.returncode == 0, result.stdout + result.stderr
    return directory, result.stdout


@pytest.fixture
def copy(kept: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept[0], tmp_path / "copy"))


def test_json_is_all_that_is_printed_and_has_exactly_these_keys() -> None:
    """As many events as without `--events`."""
    result = run_demo("--json", "--seed", SEED)
    assert result.returncode == 0, result.stdout + result.stderr
    verdict = json.loads(result.stdout)
    assert list(verdict) == KEYS
    assert verdict["committed"] == verdict["published"] == verdict["applied"] == DEFAULT_EVENTS == 3_000
    assert {name: verdict[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert verdict["kills"] >= 4
    assert verdict["seconds"] > 0


def test_the_workload_is_the_seed_s(kept: tuple[Path, str]) -> None:
    changes = [change for writer in range(WRITERS) for change in plan(EVENTS, SEED, writer)]
    report = checker.check(checker.read(kept[0]))
    assert report.committed == EVENTS
    assert report.rolled_back == sum(2 if change.product else 1 for change in changes if change.rolled_back) > 0


def test_relay_and_consumer_are_each_killed_twice_with_work_done_and_work_left(kept: tuple[Path, str]) -> None:
    kills = re.findall(r"kill -9 \d+, the (\w+): ([\d,]+) done, ([\d,]+) left", kept[1])
    assert sorted(name for name, _, _ in kills) == ["consumer", "consumer", "relay", "relay"]
    assert all(int(done.replace(",", "")) > 0 and int(left.replace(",", "")) > 0 for _, done, left in kills)


def test_it_ends_with_a_table(kept: tuple[Path, str]) -> None:
    rows = dict(re.findall(r"│ ([a-z ]+?) +│ +([\d.,]+) │", kept[1]))
    labels = [key.replace("_", " ").replace("copies", "copies on the wire") for key in KEYS]
    assert list(rows) == labels
    assert [rows[name.replace("_", " ")] for name in FAULTS] == ["0"] * 4


def test_the_commands_that_it_prints_work(kept: tuple[Path, str]) -> None:
    commands = [shlex.split(line) for line in kept[1].partition("Look around:")[2].strip().splitlines()]
    assert [command[-4:-2] for command in commands[:3]] == [
        ["pillarbox", "status"],
        ["events", "list"],
        ["dead", "list"],
    ]
    assert commands[3][-5:-2] == ["dead", "list", "--inbox"]
    for command in commands:
        result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        nothing_dead = "dead" in command and result.returncode == 4
        assert result.returncode == 0 or nothing_dead, f"{command}: {result.stdout}{result.stderr}"


@pytest.mark.parametrize(
    ("file", "sql", "faults"),
    [
        ("stream.db", "DELETE FROM messages WHERE headers LIKE '%' || ? || '%'", {"lost": 1}),
        ("billing.db", "DELETE FROM ledger WHERE event_id = ?", {"lost": 1}),
    ],
)
def test_a_loss_that_is_planted_is_found(copy: Path, file: str, sql: str, faults: dict[str, int]) -> None:
    with closing(sqlite3.connect(copy / "billing.db")) as billing:
        [victim] = billing.execute("SELECT event_id FROM ledger ORDER BY id LIMIT 1 OFFSET 100").fetchone()
    with closing(sqlite3.connect(copy / file)) as database, database:
        assert database.execute(sql, [victim]).rowcount >= 1
    problems: list[str] = []
    report = judge(copy, problems)
    assert problems == []
    assert report is not None
    assert {name: getattr(report, name) for name in faults} == faults
    assert any(victim in finding for finding in report.findings)
    assert subprocess.run([sys.executable, checker.__file__, copy], stdout=subprocess.DEVNULL).returncode == 1


def test_a_loss_that_is_planted_while_it_runs_makes_it_exit_with_1(tmp_path: Path) -> None:
    ledger = tmp_path / "kept" / "billing.db"
    with running_demo("--json", "--events", EVENTS, "--keep", tmp_path / "kept") as demo:
        wait_for(lambda: ledger.exists() and count(ledger, "SELECT count(*) FROM ledger") > 10)
        with closing(sqlite3.connect(ledger, timeout=PATIENCE)) as billing, billing:
            billing.execute("UPDATE ledger SET event_id = (SELECT event_id FROM ledger WHERE id = 1) WHERE id = 2")
        output, errors = demo.communicate(timeout=PATIENCE)
    verdict = json.loads(output)
    assert demo.returncode == 1
    assert (verdict["lost"], verdict["applied_twice"]) == (1, 1)
    assert "lost:" in errors
    assert "applied twice:" in errors


def count(database: Path, sql: str) -> int:
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=PATIENCE)) as connection:
        try:
            return int(connection.execute(sql).fetchone()[0])
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return 0
            raise


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").touch()
    result = run_demo("--keep", tmp_path)
    assert result.returncode == 2
    assert "is not empty" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["precious.txt"]


def test_a_single_event_is_enough() -> None:
    result = run_demo("--json", "--events", 1)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads(result.stdout)["applied"] == 1
    assert re.match(r"1 event, seed \d+, in ", result.stderr), "without --seed, nobody could repeat the run"


@contextmanager
def running_demo(*arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*DEMO, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def children_of(pid: int) -> set[int]:
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, check=True, text=True).stdout
    return {int(child) for child, parent in map(str.split, listing.splitlines()) if int(parent) == pid}


def alive(pids: set[int]) -> set[int]:
    """Give those that still run; a zombie that nobody has waited for does not count."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,stat="], capture_output=True, check=True, text=True).stdout
    return pids & {int(pid) for pid, state in map(str.split, listing.splitlines()) if not state.startswith("Z")}


def test_its_children_do_not_outlive_it_when_it_is_killed(tmp_path: Path) -> None:
    with running_demo("--events", 100_000, TMPDIR=str(tmp_path)) as demo:
        wait_for(lambda: len(children_of(demo.pid)) == 7)  # four writers, relay, consumer, and the guard
        children = children_of(demo.pid)
        demo.kill()
        wait_for(lambda: not alive(children))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_an_interrupt_stops_everything_and_leaves_no_files(tmp_path: Path, number: signal.Signals) -> None:
    with running_demo("--events", 100_000, TMPDIR=str(tmp_path)) as demo:
        wait_for(lambda: len(children_of(demo.pid)) == 7)
        children = children_of(demo.pid)
        demo.send_signal(number)
        _, errors = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130
    assert errors == "stopped; nothing is left running\n"
    assert not alive(children)
    assert list(tmp_path.iterdir()) == []
