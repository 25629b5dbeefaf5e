"""What is particular to Django: atomic blocks, aliases, settings that are read late, on_commit."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db.transaction import TransactionManagementError
from django.test import override_settings

from pillarbox.core.event import Event
from pillarbox.django import Outbox
from pillarbox.errors import ConfigError, DuplicateEvent, NoTransaction, SchemaMismatch, StoreUnavailable
from pillarbox.testing.contracts.sqlite3_door import SqliteFile
from tests.integration.django_settings import connections, django_database, transaction
from tests.integration.postgres_shop import made, read, tables

outbox = Outbox()
PING: Event[dict[str, str]] = Event("Ping", {})


@pytest.fixture
def url(database: str) -> str:
    return made(database)


@pytest.fixture
def alias(url: str) -> Iterator[str]:
    alias = django_database(url)
    yield alias
    connections[alias].close()


def add_and_fail(box: Outbox, alias: str) -> None:
    with transaction.atomic(using=alias):
        box.add(Event("Lost", {}), using=alias)
        _ = 1 / 0


def test_outside_of_atomic_an_event_is_refused(alias: str, url: str) -> None:
    with pytest.raises(NoTransaction, match=r"with transaction.atomic\(\)"):
        outbox.add(PING, using=alias)
    with transaction.atomic(), pytest.raises(NoTransaction):  # of another database
        outbox.add(PING, using=alias)
    assert read(url, "id") == []


def test_a_transaction_without_autocommit_counts(alias: str, url: str) -> None:
    connection = connections[alias]
    connection.set_autocommit(False)
    outbox.add(PING, using=alias)
    connection.commit()
    connection.set_autocommit(True)
    assert len(read(url, "id")) == 1


def test_inner_blocks_take_their_events_along(alias: str, url: str) -> None:
    with transaction.atomic(using=alias):
        outbox.add(PING, using=alias)
        with pytest.raises(ZeroDivisionError):
            add_and_fail(outbox, alias)
        with transaction.atomic(using=alias):
            outbox.add(Event("Paid", {}, idempotency_key="k"), using=alias)
        with pytest.raises(DuplicateEvent):
            outbox.add(Event("Paid", {}, idempotency_key="k"), using=alias)
        outbox.add(PING, PING, using=alias)
    assert read(url, "event_type") == ["Ping", "Paid", "Ping", "Ping"]


def test_a_broken_block_says_so_in_djangos_words(alias: str) -> None:
    with transaction.atomic(using=alias):
        transaction.set_rollback(True, using=alias)
        with pytest.raises(TransactionManagementError):
            outbox.add(PING, using=alias)


def test_settings_are_read_when_an_event_is_added(database: str) -> None:
    alias = django_database(database)
    with connections[alias].cursor() as cursor:
        cursor.execute("CREATE SCHEMA shop")
        cursor.execute(tables("shop", "events_").decode())
    late = Outbox(topic="{event_type}")
    place = {"schema": "shop", "prefix": "events_", "topic": "not this one"}
    with override_settings(PILLARBOX={"outbox": place}), transaction.atomic(using=alias):
        late.add(PING, using=alias)
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT topic FROM shop.events_outbox")
        assert cursor.fetchall() == [("Ping",)]
    connections[alias].close()


def test_an_unknown_setting_names_the_nearest(alias: str) -> None:
    with override_settings(PILLARBOX={"outbox": {"prefx": "x"}}), pytest.raises(ConfigError) as refused:
        outbox.add(PING, using=alias)
    assert str(refused.value) == "PILLARBOX['outbox']: 'prefx' is no setting; did you mean prefix?"


def test_after_commit_is_called_after_the_outermost_commit(alias: str, url: str) -> None:
    seen: list[int] = []
    ringing = Outbox(after_commit=lambda: seen.append(len(read(url, "id"))))
    with transaction.atomic(using=alias):
        with transaction.atomic(using=alias):
            ringing.add(PING, using=alias)
        assert seen == []
    assert seen == [1]
    with pytest.raises(ZeroDivisionError):
        add_and_fail(ringing, alias)
    assert seen == [1]


def test_missing_tables_name_the_command(database: str) -> None:
    alias = django_database(database)
    with pytest.raises(SchemaMismatch, match="pillarbox migrate up"), transaction.atomic(using=alias):
        outbox.add(PING, using=alias)
    connections[alias].close()


def test_sqlite_works_too_and_gives_its_own_advice() -> None:
    file = SqliteFile()
    alias = django_database(file.path)
    with transaction.atomic(using=alias):
        outbox.add(PING, Event("Paid", {}, aggregate=("order", 1), numbered=True, idempotency_key="k"), using=alias)
    assert [row["event_type"] for row in file.rows("outbox")] == ["Ping", "Paid"]
    with transaction.atomic(using=alias):
        connections[alias].cursor().execute("SELECT count(*) FROM pillarbox_outbox").fetchall()
        with sqlite3.connect(file.path) as other:
            other.execute("INSERT INTO effects VALUES ('meanwhile')")
        with pytest.raises(StoreUnavailable, match="'transaction_mode': 'IMMEDIATE'"):
            outbox.add(PING, using=alias)
    connections[alias].close()
    file.close()


def test_another_database_is_refused_by_name(alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections[alias], "vendor", "oracle")
    with pytest.raises(ConfigError, match=r"oracle is no database that pillarbox.django knows"):
        outbox.add(PING, using=alias)


def test_without_django_the_install_line_is_given() -> None:
    script = """
import sys
sys.modules["django"] = None
from pillarbox.errors import MissingExtra
try:
    import pillarbox.django
except MissingExtra as missing:
    print(missing)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "pip install 'pillarbox[django]'" in done.stdout, done.stderr


def test_the_bound_values_survive_every_character(alias: str, url: str) -> None:
    odd: Any = {"percent": "100 % %s %%", "quotes": "'\"\\", "brace": "{}", "null": None}
    with transaction.atomic(using=alias):
        outbox.add(Event("Odd", odd, aggregate=("order", "a,b {c} \\ \" '")), PING, using=alias)
    assert read(url, "payload, aggregate_id")[0] == (odd, "a,b {c} \\ \" '")


def test_a_consumer_without_djangos_settings_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from pillarbox.django import Inbox\n\ninbox = Inbox('billing')\ninbox.handler('Placed')(lambda c, e: None)\n"
    )
    (tmp_path / "models.py").write_text("from django.db import models\n\nclass Order(models.Model):\n    pass\n")
    broker = ["--broker", f"sqlite:///{tmp_path}/stream.db"]
    for module, words in (
        ("shop:inbox", "Django is not set up: name its settings (DJANGO_SETTINGS_MODULE=shop.settings)"),
        ("models:inbox", "name Django's settings (DJANGO_SETTINGS_MODULE), and call django.setup()"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "pillarbox", "consume", module, "--once", "--topic", "orders", *broker],
            cwd=tmp_path, capture_output=True, text=True,
            env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        )  # fmt: skip
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
