"""Adopt: take over a database that was dumped and restored, or copied, from another cluster."""

from pillarbox.errors import StoreError
from pillarbox.stores.audit import user
from pillarbox.stores.postgres.connection import Connection

TIMEOUT = 3600.0
"""Seconds: the unsettled part of the log is written anew."""


async def adopt(connection: Connection, place: str) -> int:
    """Give the backlog transaction ids of this cluster, in one transaction; give how many events are pending.

    Raises StoreError, having changed nothing, if relays are alive, if the log belongs here already, or if the copy is
    not whole.
    """
    [[refused, adopted]] = await connection.run(
        f"SELECT refused, adopted FROM {place}adopt(%s)", [user()], timeout=TIMEOUT
    )
    if refused is not None:
        raise StoreError(f"adopt: {refused}")
    return int(adopted)
