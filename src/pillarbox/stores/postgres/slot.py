"""The slot: when somebody else carries the events, such as Debezium, and the position follows what that one confirms.

The rules are in SQL (`schema/0001_slot.sql`), because nothing of it may be remembered outside of the database. Why:
decision 0015.
"""

from pillarbox.errors import StoreError
from pillarbox.ports import SlotSeen, Watched
from pillarbox.stores.audit import user
from pillarbox.stores.postgres.connection import Connection


class Slot:
    """The replication slot whose reader carries the events, if there is one."""

    def __init__(self, place: str) -> None:
        self._p = place

    async def watch(self, connection: Connection) -> Watched | None:
        """Move the position to what the reader has confirmed; None if relays carry the events."""
        [[name, doubt, settled]] = await connection.run(f"SELECT slot_name, doubted, settled FROM {self._p}watch()")
        return None if name is None else Watched(name, doubt, settled)

    async def begin(self, connection: Connection, name: str) -> None:
        """Say that the reader of this slot carries the events. Raises StoreError, having changed nothing."""
        [[refused]] = await connection.run(f"SELECT refused FROM {self._p}watch_slot(%s, %s)", [user(), name])
        if refused is not None:
            raise StoreError(f"source slot: {refused}")

    async def end(self, connection: Connection) -> None:
        """Say that relays carry the events again. Raises StoreError, having changed nothing."""
        [[refused]] = await connection.run(f"SELECT refused FROM {self._p}unwatch(%s)", [user()])
        if refused is not None:
            raise StoreError(f"source log: {refused}")

    async def seen(self, connection: Connection) -> SlotSeen | None:
        """Look how the slot stands now."""
        rows = await connection.run(
            "SELECT s.name, coalesce(s.doubt, now.wrong), now.pid, coalesce(ends.lsn - now.confirmed, 0)::bigint,"
            " coalesce(ends.lsn - now.restart, 0)::bigint, now.wal_status = 'unreserved', s.seen_at"
            f" FROM {self._p}slot s CROSS JOIN LATERAL {self._p}slot_seen(s.name) now CROSS JOIN (SELECT CASE"
            " WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END) ends(lsn)"
        )
        for name, trouble, reader, behind, kept, at_risk, seen_at in rows:
            return SlotSeen(name, trouble, reader is not None, max(0, behind), max(0, kept), bool(at_risk), seen_at)
        return None

    async def refuse(self, connection: Connection, verb: str) -> None:
        """Raise StoreError, for what only a relay could do, if the reader of a slot carries the events."""
        for [name] in await connection.run(f"SELECT name FROM {self._p}slot"):
            raise StoreError(
                f"{verb}: the events of this outbox are carried by the reader of the replication slot {name}, which"
                " knows nothing of it: do it there, or let relays carry them again (`pillarbox source log`)"
            )
