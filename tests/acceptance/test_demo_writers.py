"""The demo's writers leave evidence that can be trusted, also when they are killed between intent and outcome."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from pillarbox.demo import billing, shop
from pillarbox.torture.checker import History, read

PATIENCE = 60.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A shop that is open, and a stream and a ledger with nothing in them."""
    (tmp_path / "intents").mkdir()
    for name in ("shop", "billing"):
        url = f"sqlite:///{tmp_path / name}.db"
        subprocess.run([sys.executable, "-m", "pillarbox", "migrate", "up", "--database", url], check=True)
    shop.create_tables(tmp_path / "shop.db")
    billing.create_tables(tmp_path / "billing.db")
    with closing(sqlite3.connect(tmp_path / "stream.db")) as stream:
        stream.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, headers TEXT, body BLOB)")
    return tmp_path


def start_writer(directory: Path, events: int, number: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pillarbox.demo.shop", str(directory), str(events), "7", str(number)]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert writer.stdin is not None
    writer.stdin.write(b"." * shop.STAGES)
    writer.stdin.close()
    return writer


def journal(directory: Path) -> int:
    with closing(sqlite3.connect(directory / "shop.db", timeout=PATIENCE)) as connection:
        return int(connection.execute("SELECT coalesce(sum(events), 0) FROM journal").fetchone()[0])


def committed(history: History) -> int:
    return sum(map(len, history.committed.values()))


def test_all_writers_together_commit_what_was_planned(directory: Path) -> None:
    writers = [start_writer(directory, 400, number) for number in range(shop.WRITERS)]
    assert [writer.wait(PATIENCE) for writer in writers] == [0] * shop.WRITERS
    history = read(directory)
    assert history.unsound == []
    assert committed(history) == journal(directory) == 400
    with closing(sqlite3.connect(directory / "shop.db")) as connection:
        assert connection.execute("SELECT count(*) FROM pillarbox_outbox").fetchone() == (400,)


def test_a_writer_that_is_killed_leaves_sound_evidence(directory: Path) -> None:
    # Each has a part of the plan of its own, and is killed in the middle of it, wherever it is.
    for number in range(shop.WRITERS):
        before = journal(directory)
        writer = start_writer(directory, 100_000, number)
        deadline = time.monotonic() + PATIENCE
        while journal(directory) < before + 50 * (number + 1):
            assert writer.poll() is None
            assert time.monotonic() < deadline
        writer.kill()
        assert writer.wait() == -9
        history = read(directory)
        assert history.unsound == []
        assert committed(history) == journal(directory)


def test_a_writer_ends_when_nobody_opens_the_next_stage(directory: Path) -> None:
    command = [sys.executable, "-m", "pillarbox.demo.shop", str(directory), "400", "7", "0"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert result.returncode == 1
    assert 0 < journal(directory) < 100
