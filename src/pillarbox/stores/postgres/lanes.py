"""Lanes on PostgreSQL: which of the 64 are ours, under which epochs; our row among the relays."""

from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

from pillarbox.core.routing import LANES
from pillarbox.errors import LaneLost
from pillarbox.ports import Away, Holding
from pillarbox.stores.postgres.connection import Connection


class Taken(NamedTuple):
    """A lane that was just taken: how many holders died with it in a row, and what they were about to send."""

    lane: int
    crashes: int
    suspect: int | None
    suspected: int


class LaneTable:
    """What we hold. The lease is on our row among the relays, by the database's clock."""

    def __init__(self, place: str, owner: str, lease: timedelta) -> None:
        self._p, self.owner, self._lease = place, owner, lease
        self.epochs: dict[int, int] = {}
        self._share = LANES

    @property
    def holding(self) -> Holding:
        return Holding(frozenset(self.epochs), self._share)

    def forget(self) -> None:
        """Hold nothing any more, in memory."""
        self.epochs = {}

    async def take(self, connection: Connection) -> list[Taken]:
        """Join and take free lanes up to the fair share; give the new ones. Raises LaneLost if we have lost one."""
        rows = await connection.run(
            f"SELECT lane, epoch, crashes, suspect, suspected, alive FROM {self._p}take(%s, %s, %s, %s, %s)",
            [self.owner, list(self.epochs), self._lease, *self._backend(connection)],
        )
        self._share = share_of(rows[0][5])
        self._compare({row[0]: row[1] for row in rows if row[0] in self.epochs})
        new = [row for row in rows if row[0] is not None and row[0] not in self.epochs]
        self.epochs |= {row[0]: row[1] for row in new}
        return [Taken(lane, crashes, suspect, suspected) for lane, _, crashes, suspect, suspected, _ in new]

    async def renew(self, connection: Connection, away: Away | None) -> Holding:
        """Prolong the lease. Raises LaneLost if the table says something else of our lanes than we know."""
        since, error = (None, None) if away is None else (away.since, away.error)
        [[alive, lanes, epochs]] = await connection.run(
            f"WITH me AS (INSERT INTO {self._p}relays"
            " (name, seen_at, expires_at, pid, backend_start, away_since, away_error)"
            f" SELECT %s, t.now, t.now + %s, %s, %s, %s, %s FROM (SELECT {self._p}now()) t(now)"
            " ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at, expires_at = excluded.expires_at,"
            " pid = excluded.pid, backend_start = excluded.backend_start, away_since = excluded.away_since,"
            " away_error = excluded.away_error)"
            f" SELECT (SELECT count(*)::int FROM {self._p}relays r WHERE r.name <> %s AND {self._p}lives(r)) + 1,"
            " coalesce(array_agg(lane), '{}'), coalesce(array_agg(epoch), '{}')"
            f" FROM {self._p}lanes WHERE owner = %s",
            [self.owner, self._lease, *self._backend(connection), since, error, self.owner, self.owner],
        )
        self._compare(dict(zip(lanes, epochs, strict=True)))
        self._share = share_of(alive)
        return self.holding

    async def release(self, connection: Connection, lanes: Collection[int] | None) -> None:
        """Give lanes back: some of ours, or every one that is in our name. Our row stays, ended, if it was all."""
        if lanes is not None:
            mine = [lane for lane in lanes if lane in self.epochs]
            await connection.run(
                f"UPDATE {self._p}lanes SET owner = NULL, suspect = NULL, suspected = 0"
                " WHERE owner = %s AND lane = ANY (%s)",
                [self.owner, mine],
            )
            for lane in mine:
                del self.epochs[lane]
            return
        await connection.run(
            # Who lives to say this was not killed by what it was about to send.
            f"WITH gone AS (UPDATE {self._p}lanes SET owner = NULL, suspect = NULL, suspected = 0 WHERE owner = %s)"
            f" UPDATE {self._p}relays SET expires_at = {self._p}now(), pid = NULL WHERE name = %s",
            [self.owner, self.owner],
        )
        self.forget()

    def _compare(self, stored: dict[int, int]) -> None:
        if stored != self.epochs:
            raise LaneLost(f"another relay has taken lanes from {self.owner}")

    def _backend(self, connection: Connection) -> tuple[object, object]:
        return connection.direct_backend or (None, None)


def share_of(alive: int) -> int:
    """Give the fair share of one among so many."""
    return -(-LANES // max(1, alive))
