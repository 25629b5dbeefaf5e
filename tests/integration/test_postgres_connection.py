"""One connection to PostgreSQL: it is opened once, however often it is asked to."""

from pillarbox.stores.postgres.connection import Connection


async def test_opening_what_is_open_leaves_no_second_connection(database: str) -> None:
    connection = Connection(database, "asked twice")
    await connection.open()
    await connection.open()
    try:
        [[count]] = await connection.run("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'asked twice'")
    finally:
        await connection.close()
    assert count == 1
