"""Where lanes start: their newest ticks, turned into ways."""

from typing import Any, NamedTuple

from pillarbox.core.routing import Topics
from pillarbox.errors import ConfigError, StoreError
from pillarbox.stores.postgres.begun_again import begun_again
from pillarbox.stores.postgres.connection import Connection, Rows
from pillarbox.stores.postgres.ways import Anchor, Way, lanes_of, mask_of, position_of

_TICK = (
    "lanes, topic, whole, closed, n, token, cluster, s1::text, x1::text, m1, s2::text, x2::text, m2, last_id, floor_id"
)


class Loaded(NamedTuple):
    """The ways of some lanes, the topics that are paused, and the cluster."""

    ways: list[Way]
    paused: frozenset[str]
    cluster: str


class Positions:
    """Reads positions; begins a topic that is one line as a whole."""

    def __init__(self, place: str, topics: Topics) -> None:
        self._p, self._topics = place, topics

    async def load(self, connection: Connection, owner: str, lanes: frozenset[int], careful: dict[int, int]) -> Loaded:
        """Give the ways of lanes. Raises StoreError if a lane has no tick, or one of another cluster, or ids have begun
        again."""
        if 0 in lanes:
            await self._begin_whole_topics(connection, owner)
        rows = await connection.run(f"SELECT {_TICK} FROM {self._p}positions(%s)", [mask_of(lanes | {0})])
        [[cluster, paused]] = await connection.run(
            f"SELECT {self._p}cluster(), coalesce(array_agg(topic), '{{}}') FROM {self._p}pauses"
        )
        self._check(rows, lanes, cluster)
        if stopped := await begun_again(connection, self._p):
            raise StoreError(stopped)
        own = [row for row in rows if not row[3] and row[1] is not None]
        whole = self._topics.whole | {row[1] for row in own if row[2]}
        ways = [self._way(row, frozenset({0}), careful) for row in own if row[2] and 0 in lanes]
        detours: dict[int, set[str]] = {lane: set(whole) for lane in lanes}
        for row in own:
            if not row[2] and (here := lanes_of(row[0]) & lanes):
                ways.append(self._way(row, here, careful))
                for lane in here:
                    detours[lane].add(row[1])
        for row in rows:
            if row[1] is None:
                ways += self._main_ways(row, lanes_of(row[0]) & lanes, detours, careful)
        return Loaded(ways, frozenset(paused), cluster)

    def _main_ways(
        self, row: Any, lanes: frozenset[int], detours: dict[int, set[str]], careful: dict[int, int]
    ) -> list[Way]:
        """Group the lanes that stand at one tick by what they go around, and by how careful they must be."""
        groups: dict[tuple[frozenset[str], int], set[int]] = {}
        for lane in lanes:
            groups.setdefault((frozenset(detours[lane]), careful.get(lane, 0)), set()).add(lane)
        ways = []
        for (around, _), together in groups.items():
            way = self._way(row, frozenset(together), careful)
            way.around = around
            ways.append(way)
        return ways

    def _way(self, row: Any, lanes: frozenset[int], careful: dict[int, int]) -> Way:
        _, topic, whole, _, n, token, _, *position = row
        way = Way(lanes, topic, whole, frozenset(), position_of(position), frozenset((Anchor(n, token),)))
        way.careful = max(careful.get(lane, 0) for lane in lanes)
        return way

    def _check(self, rows: Rows, lanes: frozenset[int], cluster: str) -> None:
        without = lanes - frozenset().union(*(lanes_of(row[0]) for row in rows if row[1] is None))
        if without:
            raise StoreError(
                f"{self._p}ticks holds no position for the lanes {sorted(without)}; restore the table, or everything"
                " would be published again"
            )
        if any(row[6] != cluster for row in rows):
            raise StoreError(
                "this database was copied from another cluster, whose transaction ids mean nothing here: make sure that"
                " no relay runs on the old one, then run `pillarbox adopt`"
            )

    async def _begin_whole_topics(self, connection: Connection, owner: str) -> None:
        """Give each topic that is one line a position of its own, once."""
        for topic in sorted(self._topics.whole):
            [[begun]] = await connection.run(f"SELECT {self._p}begin_whole(%s, %s)", [owner, topic])
            if not begun:
                raise ConfigError(
                    f"topic.{topic!r}.order: it cannot become 'global' while events of it are pending: let a relay with"
                    " the old order publish them first, or stop every other relay until they are published"
                )
