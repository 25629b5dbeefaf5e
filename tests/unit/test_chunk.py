"""Chunks: by column or one by one, they are the same entries."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core.chunk import are_plain, positions_of, size_of
from pillarbox.core.convoy import Ticketed
from pillarbox.core.entry import Entry
from pillarbox.core.message import encode, encode_all
from pillarbox.stores.postgres.rows import chunk_of

NOW = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
INSTANTS = st.none() | st.datetimes(timezones=st.just(UTC))
ENTRIES = st.tuples(
    st.just(0), st.uuids().map(str), NAMES, NAMES | st.just(""), NAMES, NAMES, NAMES | st.binary(max_size=8),
    st.sampled_from([None, "application/json", "text/plain; charset=ü"]), st.none() | st.just('{"tenant":"acme"}'),
    st.none() | NAMES, st.none() | st.integers(0, 9), INSTANTS, INSTANTS, st.datetimes(timezones=st.just(UTC)),
).map(lambda fields: Entry(*fields))  # fmt: skip
PLAIN = st.builds(
    lambda entry, text: entry._replace(
        data=text, headers=None, idempotency_key=None, number=None, available_at=None, occurred_at=None
    ),
    ENTRIES,
    NAMES,
)


def placed(entries: list[Entry]) -> list[Entry]:
    return [entry._replace(position=3 * place + 5) for place, entry in enumerate(entries)]


LOGS = st.lists(ENTRIES, min_size=1, max_size=6).map(placed) | st.lists(PLAIN, min_size=1, max_size=6).map(placed)


def rows_of(entries: list[Entry]) -> list[tuple[Any, ...]]:
    """Give entries as PostgreSQL does: a body is behind everything else."""
    rows: list[tuple[Any, ...]] = [entry[: Entry._fields.index("attempts")] for entry in entries]
    return [(*row[:6], None, *row[7:], row[6]) if isinstance(row[6], bytes) else (*row, None) for row in rows]


@given(LOGS)
def test_rows_become_the_entries_that_they_were(entries: list[Entry]) -> None:
    chunk = chunk_of(rows_of(entries))
    assert list(chunk) == entries
    assert [chunk[place] for place in range(-len(chunk), len(chunk))] == entries * 2
    assert list(chunk[1:]) == entries[1:]


@given(LOGS, st.integers(1, 9))
def test_a_chunk_is_encoded_as_its_entries_one_by_one(entries: list[Entry], first: int) -> None:
    chunk = chunk_of(rows_of(entries))
    assert encode_all(chunk, first) == [encode(entry, ticket) for ticket, entry in enumerate(entries, first)]


@given(LOGS)
def test_what_is_said_of_a_chunk_is_what_its_entries_say(entries: list[Entry]) -> None:
    chunk = chunk_of(rows_of(entries))
    assert list(positions_of(chunk)) == positions_of(entries)
    assert are_plain(chunk) == are_plain(entries)
    assert size_of(chunk) == size_of(entries) == sum(len(entry.data) + len(entry.headers or "") for entry in entries)


@pytest.mark.parametrize("change", [{"parked": True}, {"available_at": NOW}])
def test_what_is_parked_or_may_have_to_wait_is_not_plain(change: dict[str, Any]) -> None:
    entry = Entry(1, "id", "order", "7", "X", "orders", "{}", None, None, None, None, None, None, NOW)
    assert are_plain([entry, entry])
    assert not are_plain([entry, entry._replace(**change), entry])


def test_of_no_rows_there_is_nothing_to_say() -> None:
    nothing = chunk_of([])
    assert not nothing
    assert (list(nothing), list(positions_of(nothing)), size_of(nothing), are_plain(nothing)) == ([], [], 0, True)
    assert encode_all(nothing, 1) == []


def test_ticketed_items_are_pairs_with_tickets_in_a_row() -> None:
    ticketed, pairs = Ticketed(5, "abc"), [(5, "a"), (6, "b"), (7, "c")]  # type: ignore[type-var]
    assert list(ticketed) == pairs
    assert [ticketed[place] for place in (0, 1, 2, -1)] == [*pairs, pairs[-1]]
    assert (ticketed[1:], len(ticketed)) == (pairs[1:], 3)
