"""`pillarbox torture`, as a user types it: relays and consumers die as they work, and every promise holds."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

from pillarbox.brokers.sqlite.file import connect
from pillarbox.torture.cast import Cast, Member
from pillarbox.torture.deeds import Operator
from pillarbox.torture.faults import GROUPS
from pillarbox.torture.judge import main as judge_again
from pillarbox.torture.processes import Process, Processes
from pillarbox.torture.program import command_of
from pillarbox.torture.stage import GivenServers, offered
from pillarbox.torture.taps import tap_at
from pillarbox.torture.writer import TOPICS
from servers.postgres import Postgres
from tests.conftest import skip_unless_ours


def torture(*words: str, timeout: float = 170, at: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pillarbox", "torture", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=at)


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
    assert (tmp_path / "kept" / "stream.db").exists()


@pytest.mark.timeout(180)
def test_files_that_were_named_are_made_and_removed(tmp_path: Path) -> None:
    (tmp_path / "stream.db.copy").touch()
    where = ["--database", "sqlite:///shop.db", "--broker", "sqlite:///stream.db"]
    said = held(torture("--minutes", "0.1", "--seed", "4", "--faults", "none", "--json", *where, at=tmp_path))
    assert said["published"] > 100
    assert [file.name for file in tmp_path.iterdir()] == ["stream.db.copy"]


def test_of_the_embedded_broker_only_the_runs_own_topics_are_read(tmp_path: Path) -> None:
    file = tmp_path / "stream.db"
    with closing(connect(file, durable=False, timeout=5)) as stream:
        stream.executemany(
            "INSERT INTO messages (topic, partition, headers, body, at) VALUES (?, 0, '{}', 'x', 0)",
            [("torture-accounts",), ("orders",), ("torture-others",)],
        )
    assert [one.topic for one in tap_at(f"sqlite:///{file}").messages(TOPICS)] == ["torture-accounts", "torture-others"]


@pytest.mark.timeout(180)
def test_without_a_fault_nothing_is_repeated_and_every_counter_has_counted_everything(tmp_path: Path) -> None:
    said = held(torture("--minutes", "0.1", "--seed", "4", "--faults", "none", "--json", "--keep", str(tmp_path / "k")))
    assert said["fault_log"] == []
    assert said["questions"]["C4"]["seen"] == "0 copies of at most 0"
    assert said["questions"]["C8"]["seen"].endswith("metrics of 6 processes")
    assert json.loads((tmp_path / "k" / "facts.json").read_text())["counts_are_whole"] == ["relays", "consumers"]
    assert sum(one["published_total"] for one in said["metrics"]["relays"]) == said["published"] > 100


def on_servers_of_its_own(*words: str, timeout: float = 500) -> dict[str, Any]:
    command = [sys.executable, "-m", "servers.torture", "--json", *words]
    return held(subprocess.run(command, capture_output=True, text=True, timeout=timeout))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_on_servers_that_are_killed_and_fail_over_every_promise_holds(record_property: Any) -> None:
    skip_unless_ours()
    words = ["--broker", "redis", "--minutes", "0.4", "--seed", "3", "--failover"]
    said = on_servers_of_its_own(*words, timeout=250)
    record_property("says", {name: said[name] for name in ("committed", "copies", "lost_by_failover", "faults")})
    assert said["committed"] > 500
    assert {"kill the database", "fail over"} <= {one["fault"] for one in said["fault_log"]}
    assert said["lost_by_failover"] > 0, "the standby lacked nothing, so it could not show anything"


SEEDS = {"fixed": ["--seed", "8"], "fresh": []}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("where", "seed"),
    [
        (["--broker", "kafka", "--postgres", "15", "--failover"], "fixed"),
        (["--broker", "kafka", "--postgres", "18"], "fresh"),
        (["--broker", "redis", "--postgres", "17"], "fixed"),
        (["--broker", "redis", "--postgres", "15", "--failover"], "fresh"),
        (["--broker", "embedded"], "fixed"),
        (["--broker", "embedded"], "fresh"),
        (["--broker", "nats", "--postgres", "17"], "fresh"),
        (["--broker", "rabbitmq", "--postgres", "18"], "fresh"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value).replace("--", ""),
)
def test_for_a_minute_every_promise_holds(where: list[str], seed: str, record_property: Any) -> None:
    if "embedded" not in where:
        skip_unless_ours()
    said = on_servers_of_its_own(*where, "--minutes", "1", *SEEDS[seed])
    names = ("repeat_with", "committed", "copies", "dead_letters", "lost_by_failover", "faults", "latency_seconds")
    record_property("says", {name: said[name] for name in names})
    assert said["committed"] > 1_000


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_on_somebodys_postgresql_nothing_is_left(own_postgres: Any, tmp_path: Path) -> None:
    server: Postgres = own_postgres("15")
    server.create_database("shop")
    where = ["--database", server.url("shop"), "--broker", f"sqlite:///{tmp_path}/stream.db"]
    said = held(torture("--minutes", "0.2", "--seed", "8", "--json", *where))
    assert said["committed"] > 100
    assert {one["fault"] for one in said["fault_log"]} <= offered(
        GivenServers(server.url("shop"), None, tmp_path), GROUPS
    )
    assert server.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'pillarbox_torture'", "shop") == []


@pytest.mark.parametrize("interrupted", [True, False])
def test_ended_early_it_leaves_nothing(database: str, tmp_path: Path, *, interrupted: bool) -> None:
    """By somebody, or because it cannot work: then a writer is ended under it."""
    broker = f"sqlite:///{tmp_path}/stream.db"
    words = ["--database", database, "--broker", broker, "--minutes", "1", "--faults", "none"]
    words += ["--keep", str(tmp_path / "kept")] if interrupted else []
    command = [sys.executable, "-m", "pillarbox", "torture", *words]
    (temporary := tmp_path / "temporary").mkdir()
    where = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=where) as process:
        await_effects(database)
        if interrupted:
            process.send_signal(signal.SIGINT)
        else:
            run_there(database, "ALTER TABLE pillarbox_torture.journal RENAME TO gone")
        _, talk = process.communicate(timeout=60)
    assert process.returncode == (130 if interrupted else 1), talk
    assert ("The run ended before it could be judged" in talk) != interrupted
    repeat = f"to repeat it: pillarbox torture --database {database} --broker {broker} --minutes 1 --seed "
    lines = talk.splitlines()
    assert (repeat in lines[1], repeat in lines[-1]) == (True, True), talk
    assert run_there(database, "SELECT nspname FROM pg_namespace WHERE nspname = 'pillarbox_torture'") == []
    left = {file.name.partition("-")[0] for file in tmp_path.iterdir()}
    assert left == {"temporary", *(["stream.db", "kept"] if interrupted else [])}
    if not interrupted:
        [kept] = temporary.iterdir()
        assert str(kept) in talk
        assert list((kept / "intents").iterdir()), "the evidence of a run that failed is gone"


def await_effects(url: str) -> None:
    """Wait until a run has events in its ledger."""
    until = time.monotonic() + 60
    there = "SELECT to_regclass('pillarbox_torture.ledger') IS NOT NULL"
    while run_there(url, there) != [(True,)] or run_there(url, "SELECT 1 FROM pillarbox_torture.ledger LIMIT 1") == []:
        assert time.monotonic() < until, "no effect within 60 s"


def run_there(url: str, sql: LiteralString) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)
        return cursor.fetchall() if cursor.description else []


def test_a_loss_is_found_and_the_command_that_repeats_it_is_named(tmp_path: Path) -> None:
    """What the broker loses, a consumer never sees: a message is taken out of its file as the run goes on."""
    thief = (
        "import sys\nfrom pillarbox.torture.taps import sqlite as taps\n"
        "messages = taps.SqliteTap.messages\n"
        "taps.SqliteTap.messages = lambda self, topics: list(messages(self, topics))[:-1]\n"
    )
    done = torture_with(thief, "--seed", "5", "--faults", "relay", at=tmp_path)
    assert done.returncode == 1
    assert "BROKEN" in done.stdout
    assert "lost: " in done.stderr
    repeat = "to repeat it: pillarbox torture --minutes 0.1 --seed 5 --faults relay"
    first, second, *_, last = done.stderr.splitlines()
    assert (first.startswith("seed 5, "), second, last) == (True, repeat, repeat)
    [kept] = tmp_path.iterdir()
    assert f"evidence, logs and latency.svg: {kept}" in done.stderr
    assert {file.name for file in kept.iterdir()} >= {"latency.svg", "facts.json", "shop.db", "stream.db", "logs"}
    assert judge_again(str(kept)) == 1


def test_a_torture_that_fails_itself_keeps_what_there_is_and_says_how_to_repeat_it(tmp_path: Path) -> None:
    broken = (
        "import sys\nfrom pillarbox.torture.recording import Recording\nRecording.write_lists = lambda self: 1 / 0\n"
    )
    done = torture_with(broken, "--seed", "6", "--faults", "none", at=tmp_path)
    assert done.returncode != 0
    assert "division by zero" in done.stderr
    assert done.stderr.count("to repeat it: pillarbox torture --minutes 0.1 --seed 6 --faults none") == 2
    [kept] = tmp_path.iterdir()
    assert f"evidence, logs and latency.svg: {kept}" in done.stderr


def test_what_was_no_failure_leaves_nothing_in_the_place_for_temporary_files(tmp_path: Path) -> None:
    done = torture_with("import sys\n", "--seed", "5", "--faults", "none", "--json", at=tmp_path)
    assert held(done)["repeat_with"] == "pillarbox torture --minutes 0.1 --seed 5 --faults none"
    assert list(tmp_path.iterdir()) == []


def test_the_command_that_repeats_a_run_has_no_password() -> None:
    command = command_of("postgresql://me:hush@db/shop", "redis://host", 1, 7, ["relay", "admin"])
    assert "hush" not in command
    assert command.endswith("@db/shop' --broker redis://host --minutes 1 --seed 7 --faults relay,admin")


def torture_with(code: str, *words: str, at: Path) -> "subprocess.CompletedProcess[str]":
    """Run it for six seconds after some code of ours, with files of its own in a place for temporary ones."""
    argv = ["pillarbox", "torture", "--minutes", "0.1", *words]
    script = f"{code}sys.argv = {argv!r}\nfrom pillarbox.__main__ import main\nmain()\n"
    where = {**os.environ, "TMPDIR": str(at)}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=110, env=where)


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
        ("--broker", f"sqlite:///{there}", "broker: sqlite:///"),
        ("--broker", f"sqlite:///{there}", "is there already: the torture makes a file of its own"),
        ("--broker", "https://example.org/hook", "a webhook cannot be tortured: nobody consumes from it"),
        ("--broker", "stdout:", "the torture has no tap for stdout: it knows sqlite:, redis:"),
        ("--broker", "rabbitmq://host/?exchange=shop", "end the URL in ?exchange=pillarbox-torture"),
        ("--broker", "nats://host?stream=SHOP", "reads NATS without options"),
    ):
        done = torture(flag, url)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr


def test_who_is_frozen_already_is_not_waited_for(tmp_path: Path) -> None:
    with Processes(tmp_path) as processes:
        member = Member(lambda: processes.start("sleeper", "http.server", "0", "--bind", "127.0.0.1"))
        member.freeze()
        member.freeze()
        member.kill()
        assert member.deaths == 1


def test_who_kills_himself_is_started_again_and_that_is_a_fault(tmp_path: Path) -> None:
    deadly = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    (tmp_path / "deadly.py").write_text(deadly)
    with Processes(tmp_path) as processes:
        place = {"PYTHONPATH": str(tmp_path)}
        cast = Cast([], [lambda: processes.start("deadly", "deadly", environment=place)])
        until = time.monotonic() + 30
        while cast.killed_itself_at == 0.0 and time.monotonic() < until:
            cast.look()
        assert time.time() - 30 < cast.killed_itself_at <= time.time()
        assert (cast.relays_died, cast.words, cast.consumers[0].deaths) == ([], [], 1)


def test_a_command_that_counts_is_typed_until_it_has_done_what_it_says(tmp_path: Path) -> None:
    words = "import sys; sys.exit(3 if int(sys.argv[1]) < 3 else 4)"
    (tmp_path / "resume.py").write_text(words)
    with Processes(tmp_path) as processes:
        started: list[str] = []

        def start(word: str, *, ledger: bool) -> Process:
            started.append(word)
            return processes.start(
                f"{word}-{len(started)}", word, str(len(started)), environment={"PYTHONPATH": str(tmp_path)}
            )

        operator, until = Operator(start), time.monotonic() + 30
        operator.type("resume", insisting=True)
        operator.type("resume")
        while not operator.is_done:
            assert time.monotonic() < until
        assert started == ["resume"] * 4
        assert [one.code for one in operator.commands] == [3, 3, 4, 4]
        assert operator.ended_at == operator.commands[-1].ended_at > operator.commands[-1].began_at
