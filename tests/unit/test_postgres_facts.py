"""What PostgreSQL's errors mean: the class says whether trying again helps, the words name the cure."""

import pytest

from pillarbox.core.postgres_facts import RowUndone, StoreConflict, TransactionFailed, error_of, migrate_up
from pillarbox.errors import SchemaMismatch, StoreError, StoreUnavailable


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ('relation "public.pillarbox_outbox" does not exist', "postgresql://…`"),
        ('relation "acme.pillarbox_outbox" does not exist', "postgresql://… --set outbox.schema=acme`"),
        ('relation "acme.pb_outbox" does not exist', "--set outbox.schema=acme --set outbox.prefix=pb_`"),
        ("function public.pb_add(text) does not exist", "postgresql://… --set outbox.prefix=pb_`"),
        ("function acme.pillarbox_take_keys(text[], uuid[]) does not exist", "--set outbox.schema=acme`"),
        ("Relation »acme.pb_outbox« existiert nicht", "--set outbox.schema=acme --set outbox.prefix=pb_`"),
    ],
)
def test_the_cure_for_missing_tables_names_the_place_that_was_looked_for(words: str, command: str) -> None:
    error = error_of(Exception(words), "42P01")
    assert isinstance(error, SchemaMismatch)
    assert str(error).startswith(f"{words}: run `pillarbox migrate up --database postgresql://…")
    assert f"{command}; if the tables are there, they have another schema or prefix" in str(error)


def test_without_a_name_of_ours_the_cure_is_the_plain_command() -> None:
    assert str(error_of(Exception("no schema"), "3F000")).endswith("migrate up --database postgresql://…`")


def test_the_command_repeats_only_what_differs_from_the_defaults() -> None:
    assert migrate_up("URL") == "migrate up --database URL"
    place = "--set outbox.schema=acme --set outbox.prefix=pb_"
    assert migrate_up("URL", "acme", "pb_") == f"migrate up --database URL {place}"


@pytest.mark.parametrize("sqlstate", ["26000", "42P05"])
def test_a_statement_that_a_pooler_lost_names_each_drivers_setting(sqlstate: str) -> None:
    error = error_of(Exception('prepared statement "_pg3_0" does not exist'), sqlstate)
    assert isinstance(error, StoreError)
    assert not isinstance(error, StoreUnavailable)  # trying again would not help
    for setting in ("prepare_threshold=None", "statement_cache_size=0", "prepared_statement_cache_size=0"):
        assert setting in str(error)


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        (
            'FATAL: password authentication failed for user "app"',
            "; mend the user, the password or the database's name",
        ),
        ('FATAL: role "app" does not exist', "; mend the user, the password or the database's name"),
        (
            'FATAL: database "the shop" does not exist',
            ": make it (`createdb 'the shop'`, then `pillarbox migrate up`), or mend the name in the URL",
        ),
    ],
)
def test_a_connection_that_is_never_let_in_is_to_be_mended_and_not_waited_for(words: str, cure: str) -> None:
    error = error_of(Exception(f"connection failed: {words}"), None)
    assert type(error) is StoreError
    assert str(error).endswith(f"{words}{cure}")
    assert type(error_of(Exception("connection refused"), None)) is StoreUnavailable


@pytest.mark.parametrize(
    ("sqlstate", "kind", "words"),
    [
        ("42501", StoreError, "no: grant this user the writer's role, which the script with the roles makes"),
        ("25P02", TransactionFailed, "an earlier statement of this transaction failed (no): roll back and begin again"),
        ("PB001", RowUndone, "no"),
        ("25006", StoreUnavailable, "no: this may be a standby; connect to the primary and try again"),
        ("40001", StoreConflict, "no; roll back and try again"),
        ("40P01", StoreConflict, "no; roll back and try again"),
        ("55P03", StoreUnavailable, "no; roll back and try again"),
        ("57014", StoreUnavailable, "no; roll back and try again"),
        ("57P01", StoreUnavailable, "PostgreSQL is away: no; connect and try again"),
        ("25P03", StoreUnavailable, "PostgreSQL is away: no; connect and try again"),
        (None, StoreUnavailable, "PostgreSQL is away: no; connect and try again"),
        ("23505", StoreError, "PostgreSQL refused: no"),
    ],
)
def test_the_class_says_whether_trying_again_helps(sqlstate: str | None, kind: type[StoreError], words: str) -> None:
    error = error_of(Exception("no\nDETAIL: for programmers"), sqlstate)
    assert type(error) is kind
    assert str(error) == words


def test_a_pooler_that_allows_no_transaction_is_to_be_mended_and_not_waited_for() -> None:
    error = error_of(Exception("transaction blocks not allowed in statement pooling mode"), "08P01")
    assert type(error) is StoreError
    assert "set its pool_mode to transaction or session" in str(error)


def test_an_error_without_words_is_named() -> None:
    assert "away: TimeoutError;" in str(error_of(TimeoutError(), None))
