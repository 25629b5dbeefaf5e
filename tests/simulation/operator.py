"""An operator in a simulated world, with the real store: what was published goes out again, in spite of every fault."""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from pillarbox.errors import StoreUnavailable
from pillarbox.ports import Query
from tests.simulation.faults import Life

if TYPE_CHECKING:
    from tests.simulation.world import World


class Replayed(NamedTuple):
    """A replay: what was published when it began, and in which order that was committed."""

    id: str
    again: bool
    published: list[str]


class ReplayLife(Life):
    """One life of a program that hands a replay to the relays."""

    def __init__(self, world: "World") -> None:
        super().__init__(world)
        self.store = world.parts.store(world.database, "operator", strike=self.strike)

    def die(self) -> None:
        super().die()
        self.store.crash()

    async def run(self, id: str) -> None:
        """Hand it over, batch by batch, until it is over."""
        while True:
            try:
                replay = await self.store.replay(id)
                assert replay is not None
                if replay.finished_at is not None:
                    return
            except StoreUnavailable:
                pass  # once more
            await asyncio.sleep(self.world.random.random() * 0.2)


async def begin(world: "World", id: str, *, again: bool) -> Replayed:
    """Write a replay down: of one topic, or of everything."""
    desk = world.parts.store(world.database, "operator")
    query = Query(topic=world.random.choice((None, *world.topics)), status=("published",), limit=1000)
    published = [record.event_id for record in await desk.find(query)]
    await desk.begin_replay(id, query, again=again)
    return Replayed(id, again, published)


async def replay_now_and_then(world: "World") -> None:
    """Replay, and go on with what a program that died has left."""
    while True:
        await asyncio.sleep(world.random.expovariate(0.3))
        id = str(UUID(int=world.random.getrandbits(128), version=4))
        again = world.random.random() < 0.7
        world.history.replays.append(await begin(world, id, again=again))
        world.hits["operator", "replay again" if again else "replay"] += 1
        done = False
        while not done:
            life = ReplayLife(world)
            task = asyncio.create_task(life.run(id))
            await asyncio.wait({task})
            done = not task.cancelled()


async def finish(world: "World") -> None:
    """Go on with every replay that somebody has left."""
    for id, row in list(world.database.replays.items()):
        if row.replay.finished_at is None:
            await ReplayLife(world).run(id)


async def restart_now_and_then(world: "World") -> None:
    """Stop a daemon in peace, as a deployment does; another one takes its place."""
    while True:
        await asyncio.sleep(world.random.expovariate(0.25))
        name = world.random.choice(list(world.lives))
        world.lives[name].daemon.stop()
        world.hits["operator", f"stop {name.partition('-')[0]}"] += 1


def faults_of(world: "World") -> list[str]:
    """Say what is wrong with the replays of a world that has come to rest."""
    found = []
    # A copy that failed made it retrying or dead for a while: whichever replay came by then rightly passed it over.
    failed = {row.entry.event_id for row in world.database.parked if row.replay is not None and row.last_error}
    kept = {row.entry.event_id for row in (*world.database.rows, *world.database.archive)}
    for replay in world.history.replays:
        if not replay.again:
            continue  # its copies look like all others
        copies = [row for row in world.database.parked if row.replay == replay.id]
        handed = Counter(row.entry.event_id for row in copies)
        found += [f"twice in the replay {replay.id}: {id}" for id, times in handed.items() if times > 1]
        found += [
            f"left out of the replay {replay.id}: {id}"
            for id in replay.published
            if id in kept - failed and id not in handed and id not in world.history.dropped
        ]
        sent = {id for id, by in world.history.copies if by == replay.id}
        dropped = {row.entry.event_id for row in copies if row.state == "dropped"}
        found += [f"lost of the replay {replay.id}: {id}" for id in handed if id not in sent | dropped]
    return found
