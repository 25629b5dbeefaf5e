"""PostgreSQL fails while somebody else carries the events: no note outlives what it speaks of."""

import json
from collections.abc import AsyncIterator, Iterator

import pytest

from servers.postgres import Postgres
from tests.conftest import EVERY_POSTGRES, installed, skip_unless_ours
from tests.integration.postgres_world import (
    QUIET,
    Mutant,
    add,
    burn,
    crash_in_place,
    migrate,
    new_database,
    next_xid,
    run,
    stop_flushing,
)


@pytest.fixture(scope="module", params=EVERY_POSTGRES)
def server(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """A PostgreSQL that these tests crash, one after the other."""
    skip_unless_ours()
    with installed(lambda: Postgres(request.param, settings={**QUIET, "wal_keep_size": "0"})) as server:
        yield server


@pytest.fixture
async def shop(server: Postgres) -> AsyncIterator[str]:
    """The URL of a database whose events are carried by the reader of the slot `shop`."""
    url = server.url(name := new_database(server))
    await migrate(url)
    run(url, "CREATE TABLE beat AS SELECT 1 AS n")
    run(url, "SELECT pg_create_logical_replication_slot('shop', 'test_decoding')")
    assert run(url, "SELECT refused FROM pillarbox_watch_slot('me', 'shop')") == [(None,)]
    yield url
    run(url, "SELECT pg_drop_replication_slot('shop')")
    server.drop_database(name)


def look(url: str) -> str | None:
    """Look at the slot once; give the doubt."""
    [[doubt]] = run(url, "SELECT doubted FROM pillarbox_watch()")
    return None if doubt is None else str(doubt)


def carry(url: str) -> None:
    """Write something into the WAL, and let the slot be read to its end."""
    run(url, "INSERT INTO beat SELECT generate_series(1, 2000)")
    run(url, "SELECT count(*) FROM pg_logical_slot_get_changes('shop', NULL, NULL)")


def seen(url: str) -> dict[str, str]:
    return dict(run(url, "SELECT event_type, status FROM pillarbox_events"))


def seen_over_a_crash(server: Postgres, url: str, *, remembers: bool) -> dict[str, str]:
    """Note what is committed, but not on disk, and crash; its transaction ids come again, and its places in the WAL."""
    remembered = server.directory / "note"
    stop_flushing(server)
    burn(url, 100)
    add(url, "Not on disk", durably=False)
    look(url)
    [[note]] = run(url, "SELECT row_to_json(t)::text FROM pillarbox_notes t")
    remembered.write_text(note)
    reached = next_xid(url)
    crash_in_place(server)
    if remembers:
        in_memory(str(remembered)).install(url)
    carry(url)
    assert run(url, "SELECT confirmed_flush_lsn > %s::pg_lsn FROM pg_replication_slots WHERE slot_name = 'shop'",
               [json.loads(note)["w"]]) == [(True,)]  # fmt: skip
    add(url, "New")
    assert next_xid(url) < reached, "no transaction id came again, so the test could not fail"
    assert look(url) is None
    return seen(url)


def in_memory(file: str) -> Mutant:
    """Let a note be remembered outside of the tables, where a file stands for the memory of a process."""
    return Mutant(
        "notes in the tables alone",
        (
            (
                "watch",
                "FROM public.pillarbox_notes t WHERE t.w <= seen.confirmed",
                f"FROM json_populate_record(NULL::public.pillarbox_notes, pg_read_file('{file}')::json) t"
                " WHERE t.w <= seen.confirmed",
            ),
        ),
    )


async def test_a_note_that_a_crash_takes_back_settles_nothing(server: Postgres, shop: str) -> None:
    assert seen_over_a_crash(server, shop, remembers=False) == {"New": "pending"}
    carry(shop)
    assert look(shop) is None
    assert seen(shop) == {"New": "published"}


async def test_a_note_that_is_remembered_elsewhere_would_settle_what_was_never_carried(
    server: Postgres, shop: str
) -> None:
    assert seen_over_a_crash(server, shop, remembers=True) == {"New": "published"}


async def test_after_kill_9_of_the_server_everything_goes_on(server: Postgres, shop: str) -> None:
    add(shop, "A")
    assert look(shop) is None
    server.kill()
    server.restart()
    assert look(shop) is None
    assert seen(shop) == {"A": "pending"}
    carry(shop)
    add(shop, "B")
    assert look(shop) is None
    assert seen(shop) == {"A": "published", "B": "pending"}


async def test_a_slot_that_has_lost_its_wal_is_doubted(server: Postgres, shop: str) -> None:
    add(shop, "A")
    assert look(shop) is None
    server.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    server.execute("SELECT pg_reload_conf()")
    try:
        for _ in range(4):
            run(shop, "INSERT INTO beat VALUES (1)")
            run(shop, "SELECT pg_switch_wal()")
        run(shop, "CHECKPOINT")
        assert "is lost" in (look(shop) or "")
    finally:
        server.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        server.execute("SELECT pg_reload_conf()")
    assert "is lost" in (look(shop) or "")
    assert seen(shop) == {"A": "pending"}


@pytest.mark.soak
async def test_after_a_failover_to_a_standby_without_the_slot_nothing_is_settled(server: Postgres, shop: str) -> None:
    add(shop, "A")
    assert look(shop) is None
    standby = server.standby()
    try:
        standby.wait_until_replayed(server)
        server.kill()
        standby.promote()
        url = standby.url(shop.rpartition("/")[2])
        add(url, "Passed over")
        run(url, "SELECT pg_create_logical_replication_slot('shop', 'test_decoding')")
        carry(url)
        assert "made anew" in (look(url) or "")
        carry(url)
        assert "made anew" in (look(url) or "")
        assert seen(url) == {"A": "pending", "Passed over": "pending"}
    finally:
        standby.close()
        server.restart()
