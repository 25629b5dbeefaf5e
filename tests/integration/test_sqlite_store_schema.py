"""The tables of the SQLite store, and files that are not what they should be: a clear line each, and the cure."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pillarbox.brokers.sqlite.file import connect
from pillarbox.errors import ConfigError, SchemaMismatch, StoreError
from pillarbox.ports import SchemaStatus
from pillarbox.stores.sqlite import file_system
from tests.integration.sqlite_shop import Shop


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path / "shop.db")
    yield shop
    await shop.close()


async def test_a_missing_file_is_not_made_and_the_command_is_named(shop: Shop) -> None:
    store = shop.closed_store()
    await store.open()
    assert await store.status() == SchemaStatus(0, 1, instead=f"there is no database {shop.path} yet")
    with pytest.raises(SchemaMismatch, match=f"run `pillarbox migrate up --database sqlite:///{shop.path}`"):
        await store.check()
    with pytest.raises(SchemaMismatch, match="migrate up"):
        await store.stats()
    with pytest.raises(SchemaMismatch, match="migrate up"):
        await store.take()
    assert not Path(shop.path).exists()


async def test_migrating_makes_the_file_and_a_waiting_store_sees_it(shop: Shop) -> None:
    waiting, migrating = shop.closed_store("a"), shop.closed_store("b")
    await waiting.open()
    await migrating.open()
    assert await migrating.up() == [1]
    assert await migrating.up() == []
    await waiting.check()
    assert await waiting.status() == SchemaStatus(1, 1)


async def test_the_file_of_the_embedded_broker_is_no_outbox(shop: Shop) -> None:
    path = Path(shop.path)
    connect(path, durable=False, timeout=1.0).close()
    store, before = shop.closed_store(), path.read_bytes()
    await store.open()
    line = f"{shop.path} is the file of the embedded broker, not an outbox: name the application's database"
    assert await store.status() == SchemaStatus(0, 1, instead=line, elsewhere=True)
    for refused in (store.check, store.up):
        with pytest.raises(ConfigError, match=re.escape(line)):
            await refused()
    assert path.read_bytes() == before


async def test_tables_that_are_named_as_those_of_the_broker_are_the_applications(shop: Shop) -> None:
    for name in ("broker", "consumers", "members", "messages", "positions"):
        shop.sql(f"CREATE TABLE {name} (id INTEGER)")
    store = shop.closed_store()
    await store.open()
    assert await store.up() == [1]


async def test_missing_tables_name_the_command(shop: Shop) -> None:
    shop.sql("CREATE TABLE orders (id INTEGER)")
    store = shop.closed_store()
    await store.open()
    with pytest.raises(SchemaMismatch, match=r"there are no Pillarbox tables.*migrate up --database sqlite:///"):
        await store.check()
    with pytest.raises(SchemaMismatch, match=r"no such table.*migrate up --database sqlite:///"):
        await store.stats()


async def test_older_tables_name_the_command(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await shop.store()
    monkeypatch.setattr("pillarbox.stores.sqlite.schema.NEEDED", 2)
    with pytest.raises(SchemaMismatch, match="have version 1, needed is 2: run `pillarbox migrate up"):
        await store.check()


async def test_tables_from_the_future_are_refused(shop: Shop) -> None:
    store = await shop.store()
    shop.sql("UPDATE pillarbox_meta SET value = '7' WHERE name = 'schema'")
    assert await store.status() == SchemaStatus(7, 1)
    with pytest.raises(SchemaMismatch, match="upgrade pillarbox"):
        await store.check()
    with pytest.raises(SchemaMismatch, match="upgrade pillarbox"):
        await store.up()


@pytest.mark.parametrize(
    ("statement", "missing"),
    [
        ("DROP TABLE pillarbox_parked", "the table pillarbox_parked"),
        ("ALTER TABLE pillarbox_relays DROP COLUMN away_error", "the column away_error of pillarbox_relays"),
        ("DELETE FROM pillarbox_lanes", "the row of pillarbox_lanes"),
    ],
)
async def test_what_somebody_has_removed_is_named(shop: Shop, statement: str, missing: str) -> None:
    store = await shop.store()
    shop.sql(statement)
    assert await store.status() == SchemaStatus(1, 1, (missing,))
    for work in (store.check, store.up):
        with pytest.raises(SchemaMismatch, match=f"{missing} is missing.*restore it from a backup"):
            await work()


async def test_a_holder_whose_row_is_gone_names_the_cure(shop: Shop) -> None:
    store = await shop.holder()
    shop.sql("DELETE FROM pillarbox_lanes")
    with pytest.raises(SchemaMismatch, match="put it back with this SQL: INSERT INTO pillarbox_lanes"):
        await store.entries(10)
    another = shop.closed_store("b")
    await another.open()
    with pytest.raises(SchemaMismatch, match="put it back with this SQL"):
        await another.take()


async def test_a_migration_is_whole_or_not_at_all(shop: Shop) -> None:
    shop.sql("CREATE TABLE pillarbox_keys (in_the_way)")
    store = shop.closed_store()
    await store.open()
    with pytest.raises(StoreError, match="already exists"):
        await store.up()
    assert shop.sql("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'") == [
        ("pillarbox_keys",)
    ]


async def test_two_that_migrate_at_once_apply_each_version_once(shop: Shop) -> None:
    stores = [shop.closed_store(owner) for owner in "abcd"]
    for store in stores:
        await store.open()
    applied = await asyncio.gather(*(store.up() for store in stores))
    assert sorted(applied, key=len) == [[], [], [], [1]]


async def test_the_script_makes_the_same_tables(shop: Shop, tmp_path: Path) -> None:
    store = await shop.store()
    connection = sqlite3.connect(tmp_path / "by-hand.db")
    connection.executescript(shop.closed_store("unopened").sql())
    tables = "SELECT name, sql FROM sqlite_schema ORDER BY name"
    assert connection.execute(tables).fetchall() == shop.sql(tables)
    connection.close()
    await store.close()
    by_hand = Shop(tmp_path / "by-hand.db")
    store = by_hand.closed_store()
    await store.open()
    await store.check()
    await by_hand.close()


async def test_a_table_without_any_position_is_refused(shop: Shop) -> None:
    store = await shop.store()
    shop.sql("DELETE FROM pillarbox_ticks")
    with pytest.raises(StoreError, match="holds no position"):
        await store.take()


async def test_a_file_that_is_no_database_is_named(shop: Shop) -> None:
    Path(shop.path).write_text("Dear diary, " * 1000)
    with pytest.raises(StoreError, match="is not an SQLite database"):
        await shop.closed_store().open()


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the directory .*nowhere does not exist"):
        await Shop(tmp_path / "nowhere" / "shop.db").closed_store().open()


async def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory"):
        await Shop(tmp_path).closed_store().open()


async def test_a_place_without_the_right_to_write_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere, so the system is asked
    with pytest.raises(ConfigError, match="read-only for this user"):
        await shop.closed_store().open()


def test_a_database_in_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a file"):
        Shop(Path(":memory:")).closed_store()


async def test_a_store_that_was_closed_says_so(shop: Shop) -> None:
    store = await shop.store()
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="is not open"):
        await store.stats()


LINUX = """\
/dev/vda / ext4 rw,relatime 0 0
server:/export /srv nfs4 rw 0 0
//server/share /mnt/my\\040share cifs rw 0 0
me@host: /home/me/remote fuse.sshfs rw 0 0
tmpfs /srv/scratch tmpfs rw 0 0
"""
MACOS = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
//me@server/share on /Volumes/share (smbfs, nodev, nosuid, mounted by me)
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/shop.db", "ext4"),
        ("/srv/shop.db", "nfs4"),
        ("/srv/scratch/shop.db", "tmpfs"),
        ("/srvother/shop.db", "ext4"),
        ("/mnt/my share/shop.db", "cifs"),
        ("/home/me/remote/a/shop.db", "fuse.sshfs"),
    ],
)
def test_the_file_system_of_a_path_is_known_on_linux(path: str, kind: str) -> None:
    assert file_system.file_system(path, file_system.parse_proc(LINUX)) == kind


def test_the_file_system_of_a_path_is_known_on_macos() -> None:
    assert file_system.file_system("/Volumes/share/shop.db", file_system.parse_darwin(MACOS)) == "smbfs"
    assert file_system.file_system("/Users/me/shop.db", file_system.parse_darwin(MACOS)) == "apfs"


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs"])
async def test_a_network_file_system_is_refused(kind: str, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "mounts", lambda: iter([("/", kind)]))
    with pytest.raises(ConfigError, match=f"network file system .{kind}.*local disk"):
        await shop.closed_store().open()


async def test_a_local_file_system_is_fine(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_system, "mounts", lambda: iter([("/", "ext4")]))
    store = shop.closed_store()
    await store.open()
    assert await store.up() == [1]
