"""`pillarbox torture`, as a user types it: relays and consumers die as they work, and every promise holds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pillarbox.torture.cast import Member
from pillarbox.torture.processes import Processes
from servers.postgres import Postgres


def torture(*words: str, timeout: float = 170) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pillarbox", "torture", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def held(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    said: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, said["ok"]) == (0, True), done.stdout + done.stderr
    return said


@pytest.mark.timeout(180)
def test_on_files_of_its_own_every_promise_holds(tmp_path: Path) -> None:
    said = held(torture("--minutes", "0.15", "--seed", "4", "--json", "--keep", str(tmp_path / "kept")))
    assert said["committed"] > 100
    assert said["rolled_back"] > 0
    assert {one["fault"] for one in said["fault_log"]} & {"kill a relay", "kill a consumer"}
    assert set(said["questions"]) == {f"C{number}" for number in range(1, 10)}
    assert "<svg" in (tmp_path / "kept" / "latency.svg").read_text()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", ["8", None])
def test_for_a_minute_on_files_of_its_own_every_promise_holds(seed: str | None) -> None:
    held(torture("--minutes", "1", "--json", *(["--seed", seed] if seed else []), timeout=500))


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", ["8", None])
def test_for_a_minute_on_postgresql_every_promise_holds_and_nothing_is_left(
    seed: str | None, own_postgres: Any, tmp_path: Path
) -> None:
    server: Postgres = own_postgres("15")
    server.create_database("shop")
    where = ["--database", server.url("shop"), "--broker", f"sqlite:///{tmp_path}/stream.db"]
    said = held(torture("--minutes", "1", "--json", *where, *(["--seed", seed] if seed else []), timeout=500))
    assert said["committed"] > 1_000
    assert server.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'pillarbox_torture'", "shop") == []


def test_a_loss_is_found_and_the_command_that_repeats_it_is_named(tmp_path: Path) -> None:
    """What the broker loses, a consumer never sees: a message is taken out of its file as the run goes on."""
    thief = (
        "import sys\nfrom pillarbox.torture import taps\n"
        "messages = taps.SqliteTap.messages\n"
        "taps.SqliteTap.messages = lambda self, topics: list(messages(self, topics))[:-1]\n"
        "sys.argv = ['pillarbox', 'torture', '--minutes', '0.1', '--seed', '5', '--faults', 'relay']\n"
        "from pillarbox.__main__ import main\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-c", thief], capture_output=True, text=True, timeout=110)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout
    assert "lost: " in done.stderr
    assert "to repeat it: pillarbox torture --minutes 0.1 --seed 5 --faults relay" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--faults", "relay,flood"], "'flood' is no kind of fault: they are relay, consumer, database"),
        (["--keep", "."], "is not empty: name a directory that is empty"),
        (["--minutes", "0"], "0"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(words: list[str], says: str) -> None:
    done = torture(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_database_or_a_broker_that_it_cannot_use_is_refused(tmp_path: Path) -> None:
    there = tmp_path / "there.db"
    there.touch()
    for flag, url, says in (
        ("--database", f"sqlite:///{there}", "is there already: the torture makes a file of its own"),
        ("--broker", "https://example.org/hook", "the torture has no tap for https: yet"),
    ):
        done = torture(flag, url)
        assert (done.returncode, done.stdout) == (1, "")
        assert says in done.stderr


def test_who_is_frozen_already_is_not_waited_for(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        member = Member(lambda: processes.start("sleeper", "http.server", "0", "--bind", "127.0.0.1"))
        member.freeze()
        member.freeze()
        member.kill()
        assert member.deaths == 1
