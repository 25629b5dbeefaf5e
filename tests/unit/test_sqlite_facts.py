"""What SQLite's errors mean: the class says whether trying again helps, the words name the cure."""

import sqlite3

import pytest

from pillarbox.core.sqlite_facts import BUSY, BUSY_SNAPSHOT, FULL, error_of
from pillarbox.errors import SchemaMismatch, StoreError, StoreUnavailable

BEGIN = "connection.execute('BEGIN IMMEDIATE')"


def failed(words: str, code: int) -> StoreError:
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    return error_of(error, "shop.db", BEGIN)


def test_a_transaction_that_read_before_it_wrote_is_told_how_to_begin() -> None:
    error = failed("database is locked", BUSY_SNAPSHOT)
    assert isinstance(error, StoreUnavailable)
    assert str(error).startswith("the transaction on shop.db read before it wrote")
    assert str(error).endswith(f"roll back, and begin immediately: {BEGIN}")


@pytest.mark.parametrize(
    ("code", "words"), [(BUSY, "is locked by another writer: x; roll back"), (FULL, "cannot be written: x; make room")]
)
def test_what_passes_can_be_tried_again(code: int, words: str) -> None:
    error = failed("x", code)
    assert isinstance(error, StoreUnavailable)
    assert str(error).startswith(f"the database shop.db {words}")


def test_what_does_not_pass_is_no_reason_to_try_again() -> None:
    error = failed("datatype mismatch", 20)
    assert type(error) is StoreError
    assert str(error) == "the database shop.db refused: datatype mismatch"


@pytest.mark.parametrize(
    ("file", "cure"),
    [
        ("shop.db", "run `pillarbox migrate up --database sqlite:///shop.db --set outbox.prefix=pb_`"),
        ("", "this database is in memory: run the script that `pillarbox migrate sql --set outbox.prefix=pb_` prints"),
    ],
)
def test_the_cure_for_missing_tables_names_the_file_and_the_prefix(file: str, cure: str) -> None:
    error = error_of(sqlite3.OperationalError("no such table: pb_outbox"), file, BEGIN)
    assert isinstance(error, SchemaMismatch)
    assert str(error).startswith(f"no such table: pb_outbox: {cure}")
    assert "they have another prefix than 'pb_', which was looked for" in str(error)


def test_a_missing_column_is_cured_by_the_plain_command() -> None:
    error = error_of(sqlite3.OperationalError("no such column: number"), "shop.db", BEGIN)
    assert str(error) == "no such column: number: run `pillarbox migrate up --database sqlite:///shop.db`"
