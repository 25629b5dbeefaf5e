"""The checker's reading of evidence: intent logs, the shop's journal, the broker's messages and the billing ledger."""

import ast
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pillarbox.torture import checker
from pillarbox.torture.checker import check, main, read

Row = dict[str, Any]


def event(id: str, aggregate: str, version: int, amount: int = 5) -> Row:
    return {"id": id, "aggregate": aggregate, "version": version, "amount": amount}


CHANGES: list[tuple[str, list[Row], str | None]] = [
    ("0-1", [event("a", "order/1", 1), event("p", "product/lamp", 1)], "done"),
    ("0-2", [event("r", "order/1", 2)], "rolled back"),
    ("1-1", [event("q", "product/lamp", 2)], "done"),
    ("0-3", [event("b", "order/1", 2)], "done"),
]
STREAM = ["a", "p", "q", "q", "b"]
LEDGER = ["a", "p", "q", "b"]


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    """A directory with the traces of a correct run: two writers, a rollback, a copy on the wire."""
    events = {row["id"]: row for _, rows, _ in CHANGES for row in rows}
    (tmp_path / "intents").mkdir()
    for change, rows, outcome in CHANGES:
        append(tmp_path, change[0], {"change": change, "events": rows}, {"change": change, "outcome": outcome})
    with database(tmp_path / "shop.db") as shop:
        shop.execute("CREATE TABLE journal (change TEXT PRIMARY KEY)")
        shop.executemany("INSERT INTO journal VALUES (?)", [[one] for one, _, outcome in CHANGES if outcome == "done"])
    with database(tmp_path / "stream.db") as stream:
        stream.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, headers TEXT, body BLOB)")
        stream.executemany("INSERT INTO messages (headers, body) VALUES (?, ?)", [message(events[id]) for id in STREAM])
    with database(tmp_path / "billing.db") as billing:
        billing.execute(
            "CREATE TABLE ledger (id INTEGER PRIMARY KEY AUTOINCREMENT, event_id, aggregate, version, amount)"
        )
        billing.executemany(INSERT_EFFECT, [list(events[id].values()) for id in LEDGER])
    return tmp_path


INSERT_EFFECT = "INSERT INTO ledger (event_id, aggregate, version, amount) VALUES (?, ?, ?, ?)"


def message(row: Row) -> tuple[str, bytes]:
    kind, id = row["aggregate"].split("/")
    headers = {"id": row["id"], "type": "OrderPlaced", "aggregate_type": kind, "aggregate_id": id}
    return json.dumps(headers), json.dumps({"version": row["version"], "amount": row["amount"]}).encode()


@contextmanager
def database(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file)) as connection, connection:
        yield connection


def append(directory: Path, writer: str, *entries: Row) -> None:
    with (directory / "intents" / f"writer-{writer}.jsonl").open("a") as log:
        log.writelines(json.dumps(entry) + "\n" for entry in entries)


def change_database(file: Path, sql: str, *parameters: object) -> None:
    with database(file) as connection:
        assert connection.execute(sql, parameters).rowcount == 1


def test_the_traces_of_a_correct_run_pass(evidence: Path) -> None:
    report = check(read(evidence))
    assert report.findings == []
    assert report.counts() == {
        "committed": 4,
        "rolled_back": 1,
        "published": 4,
        "copies": 1,
        "applied": 4,
        "lost": 0,
        "phantom": 0,
        "applied_twice": 0,
        "out_of_order": 0,
    }


@pytest.mark.parametrize(
    ("file", "sql", "finding"),
    [
        ("stream.db", "DELETE FROM messages WHERE id = 1", "lost: a of order/1 was committed, but is not on the wire"),
        ("billing.db", "DELETE FROM ledger WHERE id = 4", "lost: b of order/1 was committed, but is not applied"),
        (
            "billing.db",
            "INSERT INTO ledger SELECT 9, event_id, aggregate, version, amount FROM ledger WHERE id = 1",
            "applied twice: a of order/1 was applied 2 times",
        ),
        (
            "billing.db",
            "INSERT INTO ledger VALUES (9, 'r', 'order/1', 2, 5)",
            "phantom: r is applied, but was never committed",
        ),
        (
            "billing.db",
            "INSERT INTO ledger VALUES (9, 'nobody knows', 'order/1', 3, 5)",
            "phantom: nobody knows is applied, but was never committed",
        ),
        (
            "billing.db",
            "UPDATE ledger SET amount = 6 WHERE id = 2",
            "phantom: p of product/lamp is applied with other contents: it says product/lamp version 1 amount 6, and",
        ),
        (
            "billing.db",
            "UPDATE ledger SET id = 9 WHERE id = 1",
            "out of order: b of order/1 was first applied before a, which was committed earlier",
        ),
        (
            "stream.db",
            "UPDATE messages SET id = 9 WHERE id = 2",
            "out of order: q of product/lamp was first on the wire before p, which was committed earlier",
        ),
        (
            "stream.db",
            "UPDATE messages SET body = 'half a mess' WHERE id = 1",
            "phantom: a of order/1 is on the wire with other contents: it says something unreadable: 'half a mess'",
        ),
        (
            "stream.db",
            "UPDATE messages SET headers = '{}' WHERE id = 3",
            "phantom: message 3, which has no event id is on the wire, but was never committed",
        ),
        (
            "shop.db",
            "DELETE FROM journal WHERE change = '1-1'",
            "the evidence contradicts itself: the change 1-1 was committed, and its row is gone from the journal",
        ),
        (
            "shop.db",
            "INSERT INTO journal VALUES ('0-2')",
            "the evidence contradicts itself: the change 0-2 was rolled back, and its row is in the journal",
        ),
        (
            "shop.db",
            "INSERT INTO journal VALUES ('2-1')",
            "the evidence contradicts itself: the change 2-1 is in the journal, but in no intent log",
        ),
    ],
)
def test_a_fault_that_is_planted_in_a_file_is_named(evidence: Path, file: str, sql: str, finding: str) -> None:
    change_database(evidence / file, sql)
    assert finding in [sentence[: len(finding)] for sentence in check(read(evidence)).findings]


def test_a_change_without_outcome_is_committed_if_its_business_row_is_there(evidence: Path) -> None:
    append(evidence, "0", {"change": "0-4", "events": [event("c", "order/1", 3)]})
    change_database(evidence / "shop.db", "INSERT INTO journal VALUES ('0-4')")
    report = check(read(evidence))
    assert report.committed == 5
    assert report.findings == ["lost: c of order/1 was committed, but is not on the wire"]


def test_a_change_without_outcome_is_rolled_back_if_its_business_row_is_not_there(evidence: Path) -> None:
    append(evidence, "0", {"change": "0-4", "events": [event("c", "order/1", 3)]})
    report = check(read(evidence))
    assert report.ok
    assert (report.committed, report.rolled_back) == (4, 2)


@pytest.mark.parametrize("torn", ['{"change": "0-4", "eve', '{"change": "0-3", "outco', "{"])
def test_half_a_line_at_the_end_of_a_log_is_the_trace_of_a_killed_writer(evidence: Path, torn: str) -> None:
    with (evidence / "intents" / "writer-0.jsonl").open("a") as log:
        log.write(torn)
    assert check(read(evidence)).ok


def test_a_torn_outcome_is_resolved_by_the_journal(evidence: Path) -> None:
    log = evidence / "intents" / "writer-0.jsonl"
    os.truncate(log, log.stat().st_size - 4)
    report = check(read(evidence))
    assert report.ok
    assert report.committed == 4


def test_a_log_whose_last_intents_are_cut_off_is_no_evidence(evidence: Path) -> None:
    log = evidence / "intents" / "writer-0.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:-2]))
    findings = check(read(evidence)).findings
    assert "the evidence contradicts itself: the change 0-3 is in the journal, but in no intent log" in findings


def test_a_log_that_lacks_an_intent_in_its_middle_is_no_evidence(evidence: Path) -> None:
    log = evidence / "intents" / "writer-0.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[1:]))
    findings = check(read(evidence)).findings
    assert "the evidence contradicts itself: writer-0.jsonl has an outcome of the change 0-1, but no intent" in findings
    assert "the evidence contradicts itself: the versions of order/1 have gaps or doubles: [2]" in findings


def test_a_damaged_line_in_the_middle_of_a_log_is_no_evidence(evidence: Path) -> None:
    log = evidence / "intents" / "writer-1.jsonl"
    log.write_text(f"{{half\n{log.read_text()}")
    assert check(read(evidence)).findings == [
        "the evidence contradicts itself: writer-1.jsonl, line 1 cannot be read: b'{half'"
    ]


def test_a_writer_may_say_that_this_is_the_end(evidence: Path) -> None:
    append(evidence, "0", {"end": 6})
    assert check(read(evidence)).ok


def test_an_intent_that_is_written_twice_is_no_evidence(evidence: Path) -> None:
    append(evidence, "1", {"change": "1-1", "events": []})
    assert check(read(evidence)).findings == [
        "the evidence contradicts itself: writer-1.jsonl, line 3: the change 1-1 was written down before"
    ]


def test_a_directory_without_logs_is_no_evidence(evidence: Path) -> None:
    for log in (evidence / "intents").iterdir():
        log.unlink()
    assert not check(read(evidence)).ok


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", checker.__file__, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_file_runs_alone_and_prints_the_verdict(evidence: Path) -> None:
    result = run(evidence)
    assert result.returncode == 0
    assert ["committed", "4"] in [line.split() for line in result.stdout.splitlines()]


def test_a_fault_exits_with_1_and_is_part_of_the_json(evidence: Path) -> None:
    change_database(evidence / "billing.db", "DELETE FROM ledger WHERE id = 4")
    result = run(evidence, "--json")
    verdict = json.loads(result.stdout)
    assert result.returncode == 1
    assert verdict["lost"] == 1
    assert verdict["findings"] == ["lost: b of order/1 was committed, but is not applied"]


@pytest.mark.parametrize("file", ["shop.db", "stream.db", "billing.db"])
def test_a_missing_file_exits_with_1(evidence: Path, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    (evidence / file).unlink()
    assert main([str(evidence)]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_the_wire_is_judged_alone_where_there_was_no_consumer(
    evidence: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (evidence / "billing.db").unlink()
    assert main([str(evidence), "--without-consumer"]) == 0
    change_database(evidence / "stream.db", "DELETE FROM messages WHERE id = 5")
    assert main([str(evidence), "--without-consumer"]) == 1
    assert "was committed, but is not on the wire" in capsys.readouterr().out


def test_a_file_that_is_no_database_exits_with_1(evidence: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (evidence / "stream.db").write_text("not a database, whatever its name says" * 50)
    assert main([str(evidence)]) == 1
    assert "file is not a database" in capsys.readouterr().err


def test_the_checker_imports_the_standard_library_and_nothing_else() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported
    assert {name.split(".")[0] for name in imported} <= sys.stdlib_module_names
