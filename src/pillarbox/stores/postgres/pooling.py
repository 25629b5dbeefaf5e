"""What a pooler between us and the server does with its sessions: told from what happens, for it cannot be asked."""

from pillarbox.errors import ConfigError, StoreUnavailable
from pillarbox.facts import Pooling
from pillarbox.stores.postgres.connection import Connection

ROUNDS = 5
WAITING = 5.0
"""Seconds after which nobody shares a session with us any more."""


async def pooling(one: Connection, other: Connection) -> Pooling | None:
    """Say after what a session goes to somebody else: after a statement, a transaction, a connection; None without a
    pooler."""
    if one.direct_backend is not None:
        return None
    try:
        await check_transactions(one)
    except ConfigError:
        return "statement"
    for _ in range(ROUNDS):
        # Twice the first one: a pooler that goes round would else give each of two connections always the same session.
        mine = {await _session(one), await _session(one)}
        try:
            theirs = await _session(other)
        except StoreUnavailable:
            return "session"  # ours is idle, and nobody else may have it
        if len(mine) > 1 or theirs in mine:
            return "transaction"
    return "session"


async def check_transactions(connection: Connection) -> None:
    """Raise ConfigError behind a pooler that allows no transaction."""
    if connection.direct_backend is None:
        await connection.run("SELECT 1", after="SELECT 1")


async def _session(connection: Connection) -> int:
    [[pid]] = await connection.run("SELECT pg_backend_pid()", timeout=WAITING)
    return int(pid)
