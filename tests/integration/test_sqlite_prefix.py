"""Tables of another prefix than the application names: the error says which one was looked for."""

import sqlite3
from pathlib import Path

import pytest

from pillarbox import Event
from pillarbox.dbapi import Inbox, Outbox
from pillarbox.errors import SchemaMismatch
from pillarbox.stores.sqlite.schema import Tables

PING: Event[dict[str, str]] = Event("Ping", {})


def test_missing_tables_of_another_prefix_say_which_one_was_looked_for(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    Tables("shop.db", "acme_").up(connection)
    connection.execute("BEGIN IMMEDIATE")
    words = r"another prefix than 'pillarbox_', which was looked for: Outbox\(prefix=…\), Inbox\(prefix=…\) and"
    with pytest.raises(SchemaMismatch, match=words):
        Outbox().add(connection, PING)
    with pytest.raises(SchemaMismatch, match=words):
        Inbox("billing", lambda: connection).first_time(connection, "a")
    with pytest.raises(SchemaMismatch, match=r"shop\.db --set outbox\.prefix=shop_`.*another prefix than 'shop_'"):
        Outbox(prefix="shop_").add(connection, PING)
    connection.close()


def test_a_store_says_which_prefix_it_misses(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    words = r"no Pillarbox tables with the prefix 'acme_' in shop\.db: .*sqlite:///shop\.db --set outbox\.prefix=acme_`"
    with pytest.raises(SchemaMismatch, match=words):
        Tables("shop.db", "acme_").check(connection)
    connection.close()
