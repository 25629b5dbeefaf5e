"""`pillarbox connector debezium` without any server: what it prints, and what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

URL = "postgresql://shop:hunter2@db.internal/shop"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "pillarbox.toml").write_text(f'database = "{URL}"\n')
    return tmp_path


def debezium(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pillarbox", "connector", "debezium", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)


def test_it_prints_the_configuration_and_tells_what_else_it_takes(directory: Path) -> None:
    done = debezium(directory)
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["name"] == "shop_pillarbox_outbox"
    assert document["config"]["database.password"] == "${env:OUTBOX_DATABASE_PASSWORD}"
    assert "pillarbox connector debezium --sql" in done.stderr
    assert "database.password is ${env:OUTBOX_DATABASE_PASSWORD}: the worker puts it in" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert document == json.loads(debezium(directory, "--json").stdout)


def test_the_password_is_printed_only_if_it_is_asked_for(directory: Path) -> None:
    done = debezium(directory, "--with-password", "--option", "poll.interval.ms=1")
    config = json.loads(done.stdout)["config"]
    assert (config["database.password"], config["poll.interval.ms"]) == ("hunter2", "1")
    assert "hunter2" not in done.stderr


def test_it_prints_the_script_that_the_database_needs(directory: Path) -> None:
    done = debezium(directory, "--sql", "--name", "mine")
    assert "CREATE PUBLICATION \"mine\" FOR TABLE public.pillarbox_outbox WITH (publish = 'insert')" in done.stdout
    assert json.loads(debezium(directory, "--sql", "--name", "mine", "--json").stdout) == {"sql": done.stdout}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--sql", "--register", "http://localhost:8083"], 2, "give one of them"),
        (["--payload", "xml"], 2, "'xml' is not one of 'json', 'body'"),
        (["--option", "poll.interval.ms"], 2, "is not KEY=VALUE"),
        (["--option", "transforms=x"], 2, "pillarbox: --option transforms: cannot be set"),
        (["--password-from", "hunter2"], 2, "is no placeholder"),
        (["--register", "localhost:8083"], 2, "is not the address of Kafka Connect"),
        (["--database", "sqlite:///shop.db"], 2, "Debezium is for an outbox on PostgreSQL"),
        (["--set", "topic.t.format=cloudevents"], 2, "topic.t.format: cloudevents is written by a relay"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(directory: Path, arguments: list[str], code: int, words: str) -> None:
    done = debezium(directory, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "hunter2" not in done.stderr
