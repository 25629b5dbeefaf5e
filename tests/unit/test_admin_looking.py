"""Looking events up in a log that is longer than what one look may cost."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pillarbox import Relay, Settings
from pillarbox.admin import looking
from pillarbox.admin.admin import Admin
from pillarbox.ports import Query
from pillarbox.wiring import open_admin

FIRST = datetime(2026, 1, 31, 12, tzinfo=UTC)
STRETCH, EVENTS = 10, 100


def at(number: int) -> datetime:
    """Give the time at which the event of this number was added: one an hour."""
    return FIRST + timedelta(hours=number)


@pytest.fixture
async def admin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Admin]:
    """A log of a hundred events, each of a type of its own, of which the first sixty are published."""
    monkeypatch.setattr(looking, "STRETCH", STRETCH)
    database = f"sqlite:///{tmp_path / 'shop.db'}"
    async with open_admin(Settings(database=database)) as admin:
        await admin.migrate()
        add(tmp_path, range(1, 61))
        await Relay(database=database, publish=lambda messages: None).run_once()
        add(tmp_path, range(61, EVENTS + 1))
        yield admin


def add(directory: Path, numbers: range) -> None:
    with closing(sqlite3.connect(directory / "shop.db")) as connection, connection:
        connection.executemany(
            "INSERT INTO pillarbox_outbox (event_type, topic, payload, aggregate_type, aggregate_id, created_at)"
            " VALUES (?, 'orders', '{}', 'order', ?, ?)",
            [(f"E{n}", str(n), int(at(n).timestamp() * 1_000_000)) for n in numbers],
        )


@pytest.mark.parametrize(
    ("query", "found", "may_be_more"),
    [
        (Query(limit=2), [100, 99], False),
        (Query(type="E100"), [100], True),
        (Query(type="E91"), [91], True),
        (Query(type="E90"), [], True),
        (Query(topic="letters"), [], True),
        (Query(topic="orders", limit=10), [*range(100, 90, -1)], False),
        (Query(topic="orders"), [*range(100, 90, -1)], True),
        (Query(type="E11", newest_first=False), [], True),
        (Query(type="E10", newest_first=False), [10], True),
        (Query(type="E100", limit=1), [100], False),
        # By time: where it begins is found, and whether it ends there.
        (Query(since=at(95)), [*range(100, 94, -1)], False),
        (Query(since=at(50)), [*range(100, 90, -1)], True),
        (Query(until=at(50), limit=3), [49, 48, 47], False),
        (Query(type="E45", until=at(50)), [45], True),
        (Query(type="E30", since=at(42), until=at(50)), [], False),
        (Query(until=at(1)), [], False),
        (Query(since=at(50), newest_first=False, limit=3), [50, 51, 52], False),
        (Query(type="E55", since=at(50), until=at(56), newest_first=False), [55], False),
        (Query(since=at(101), newest_first=False), [], False),
        (Query(until=datetime.max.replace(tzinfo=UTC), limit=1), [100], False),
        (Query(since=datetime.min.replace(tzinfo=UTC)), [*range(100, 90, -1)], True),
        (Query(since=datetime.min.replace(tzinfo=UTC), newest_first=False, limit=1), [1], False),
        (Query(type="E2", until=datetime.max.replace(tzinfo=UTC), newest_first=False), [2], True),
        # By status: pending ones begin where the published end.
        (Query(status=("pending",), newest_first=False, limit=2), [61, 62], False),
        (Query(status=("pending",), type="E90", newest_first=False), [], True),
        (Query(status=("published",)), [], True),
        (Query(status=("published",), newest_first=False, limit=1), [1], False),
        # What an index answers is looked up in the whole log.
        (Query(aggregate=("order", "5")), [5], False),
        (Query(aggregate=("order", "5"), type="E5"), [5], False),
        (Query(status=("dead",)), [], False),
        (Query(status=("dead",), topic="letters"), [], False),
        (Query(side="inbox", type="E1"), [], False),
        (Query(type="E95", after=90), [95], False),
    ],
)
async def test_a_look_has_a_bound_and_says_so(admin: Admin, query: Query, found: list[int], may_be_more: bool) -> None:
    looked = await admin.look_for(query)
    assert [int(record.type[1:]) for record in looked.records] == found
    assert looked.may_be_more is may_be_more


async def test_in_an_empty_outbox_there_is_nothing_more(tmp_path: Path) -> None:
    async with open_admin(Settings(database=f"sqlite:///{tmp_path / 'shop.db'}")) as admin:
        await admin.migrate()
        for query in (Query(type="E"), Query(until=at(1)), Query(since=at(1), newest_first=False)):
            assert await admin.look_for(query) == looking.Looked([], False)


@pytest.fixture
def asked(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    """The queries that the store is asked."""
    asked: list[Query] = []
    find = admin._store.find

    async def seen(query: Query) -> object:
        asked.append(query)
        return await find(query)

    monkeypatch.setattr(admin._store, "find", seen)
    return asked


async def test_no_query_reads_more_rows_than_a_stretch(admin: Admin, asked: list[Query]) -> None:
    await admin.look_for(Query(type="E1", since=at(0), until=at(50)))
    wide = [query for query in asked if query.limit > 1]
    assert [(query.after, query.upto) for query in wide] == [(40, 50)]
    assert len(asked) <= 25


async def test_counting_looks_at_a_stretch_at_a_time_and_leaves_none_out(admin: Admin, asked: list[Query]) -> None:
    assert await admin.count(Query(status=("published",), type="E55")) == 1
    wide = [(query.after, query.upto) for query in asked if query.limit > 1 and query.type]
    assert sorted(set(wide)) == [*((n, n + STRETCH) for n in range(0, 50, 10)), (50, 60), (55, 60)] + [
        (n, n + STRETCH) for n in range(60, EVENTS, 10)
    ]


async def test_counting_keeps_to_the_bounds_of_its_query(admin: Admin, asked: list[Query]) -> None:
    assert await admin.count(Query(status=("published",), topic="orders", after=25, upto=48)) == 23
    assert {query.upto for query in asked if query.limit > 1} == {35, 45, 48}


async def test_counting_steps_over_a_gap_however_wide(admin: Admin, asked: list[Query], tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("DELETE FROM pillarbox_outbox WHERE id BETWEEN 5 AND 94")
        connection.execute("UPDATE pillarbox_outbox SET id = ? WHERE id = 100", [2**63 - 5])
    assert await admin.count(Query(type="E100")) == 1
    assert await admin.count(Query(topic="orders")) == 10
    assert len(asked) <= 25


async def test_counting_goes_no_further_than_it_counts(
    admin: Admin, asked: list[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.admin.admin.COUNTED", 15)
    assert await admin.count(Query(topic="orders")) == 16
    assert max(query.upto or 0 for query in asked) == 2 * STRETCH


async def test_a_look_from_the_last_position_that_there_can_be_goes_no_further(admin: Admin, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute(
            "INSERT INTO pillarbox_outbox (id, event_type, topic, payload, created_at)"
            " VALUES (?, 'Last', 'orders', '{}', ?)",
            [2**63 - 5, int(at(EVENTS + 1).timestamp() * 1_000_000)],
        )
    assert await admin.look_for(Query(type="Last", since=at(EVENTS + 2), newest_first=False)) == ([], False)
