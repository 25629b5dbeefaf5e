"""Entry: the columns of the outbox in their order."""

import re
from datetime import UTC, datetime
from importlib.resources import files

from pillarbox.core.entry import Entry


def test_the_fields_follow_the_columns_of_the_table() -> None:
    schema = (files("pillarbox") / "stores/sqlite/schema/0001.sql").read_text()
    table = schema.split("CREATE TABLE IF NOT EXISTS {prefix}outbox (")[1].split("\n);")[0]
    columns = re.findall(r"^    ([a-z_]+) +(?:INTEGER|TEXT|BLOB)", table, re.MULTILINE)
    assert columns[0] == "id"
    expected = ["position", *(c for c in columns[1:] if c != "body")]
    assert [("payload" if f == "data" else f) for f in Entry._fields[: len(expected)]] == expected


def test_an_entry_out_of_the_log_is_ordered_not_parked_and_untried() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    entry = Entry(1, "id", "order", "7", "X", "orders", "{}", None, None, None, None, None, None, now)
    assert (entry.attempts, entry.parked, entry.ordered) == (0, False, True)
