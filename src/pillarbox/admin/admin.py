"""Admin: everything an operator sees and does, on one store. The command line and the dashboard only show it."""

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import TracebackType
from typing import NamedTuple, Self

from pillarbox.admin.diagnosis import Finding, diagnose, living
from pillarbox.admin.figures import Figures
from pillarbox.admin.looking import Looked, last_added_by, look_for, stretches
from pillarbox.core.event import Event
from pillarbox.core.insert import Place
from pillarbox.core.payload import is_json
from pillarbox.errors import InvalidEvent, PillarboxError, StoreError
from pillarbox.ports import (
    Clock,
    DeadGroup,
    Deed,
    Pause,
    Query,
    Record,
    RelaySeen,
    Replay,
    Retention,
    SchemaStatus,
    Side,
    SlotSeen,
    Stats,
    Store,
)
from pillarbox.settings import Settings
from pillarbox.settings.durations import write_duration

COUNTED = 10_000
"""Events are counted up to here; beyond, it is "more than"."""
PAGE = 500
_TRANSACTION = ("BEGIN;", "BEGIN IMMEDIATE;", "SET LOCAL lock_timeout = '5s';", "COMMIT;")


class Report(NamedTuple):
    """What `status` shows: the findings, and the figures behind them if the tables could be read."""

    findings: Sequence[Finding]
    stats: Stats | None
    now: datetime

    @property
    def living(self) -> Sequence[RelaySeen]:
        return [] if self.stats is None else living(self.stats.relays, self.now)

    @property
    def slot(self) -> SlotSeen | None:
        return None if self.stats is None else self.stats.slot

    @property
    def healthy(self) -> bool:
        return not any(finding.severity == "problem" for finding in self.findings)


class Admin:
    """Sees and mends one outbox (and the inboxes beside it), as `who`.

    async with open_admin(settings) as admin:
        print(await admin.stats())
    """

    def __init__(self, store: Store, who: str, clock: Clock) -> None:
        self._store, self._who, self._clock = store, who, clock

    async def __aenter__(self) -> Self:
        await self._store.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._store.close()

    async def look(self, settings: Settings) -> Report:
        """Open, report and close; a database that is away, damaged or none at all is a finding too."""
        try:
            async with self:
                return await self.report(settings)
        except StoreError as error:
            return self._unread(error, settings)

    async def report(self, settings: Settings) -> Report:
        """Say how the outbox is, and what keeps events from flowing; a database that cannot be read is a finding."""
        try:
            schema = await self._store.status()
            stats = await self._store.stats() if schema.fits else None
        except PillarboxError as error:
            return self._unread(error, settings)
        now = self._clock.now()
        return Report(diagnose(schema, stats, now, settings), stats, now)

    def _unread(self, error: PillarboxError, settings: Settings) -> Report:
        now = self._clock.now()
        return Report(diagnose(error, None, now, settings), None, now)

    async def check(self) -> None:
        """Raise SchemaMismatch, which names the command to run, unless the tables are as this release needs them."""
        await self._store.check()

    async def schema(self) -> SchemaStatus:
        """Look which version the tables have."""
        return await self._store.status()

    async def migrate(self) -> Sequence[int]:
        """Bring the tables to the needed version; give the versions applied."""
        if applied := await self._store.up():
            await self._store.write_down(f"migrate up version={applied[-1]}")
        return applied

    def sql(self, *, transaction: bool = True) -> str:
        """Give the script that makes the tables; needs no connection. Without a transaction of its own it can run
        inside of another one."""
        lines = self._store.sql().splitlines(keepends=True)
        return "".join(line for line in lines if transaction or line.strip() not in _TRANSACTION)

    def roles(self) -> str:
        """Give the script that makes roles for writers, relays and viewers; needs no connection."""
        return self._store.roles()

    async def adopt(self) -> int:
        """Take tables over that were copied from another cluster; give how many events are pending."""
        return await self._store.adopt()

    async def stats(self) -> Stats:
        """Look at the whole."""
        return await self._store.stats()

    async def figures(self) -> Figures:
        """Look at the whole, with its rates and ages."""
        return Figures(await self._store.stats(), self._clock.now())

    async def find(self, query: Query) -> Sequence[Record]:
        """Find events."""
        return await self._store.find(query)

    async def look_for(self, query: Query) -> Looked:
        """Find events without a walk over the whole log: where no index leads, in the stretch where it would begin."""
        return await look_for(self._store, query)

    async def show(self, event_id: str, side: Side = "outbox") -> Sequence[Record]:
        """Find everything that is known of one event; on the inbox's side, one record per consumer."""
        return await self._store.find(Query(side=side, ids=(event_id,)))

    async def count(self, query: Query) -> int:
        """Count events, up to COUNTED + 1; by pages, so that their payloads are not in memory all at once."""
        count = 0
        async for stretch in stretches(self._store, replace(query, newest_first=False, limit=PAGE)):
            while count <= COUNTED and (page := await self._store.find(stretch)):
                count += len(page)
                stretch = replace(stretch, after=page[-1].position)
            if count > COUNTED:
                break
        return min(count, COUNTED + 1)

    async def group_dead(self, query: Query) -> Sequence[DeadGroup]:
        """Group dead events by their error, the largest group first."""
        return await self._store.group_dead(query)

    async def retry(self, query: Query) -> int:
        """Give dead events their tries back, due now."""
        return await self._store.retry(query)

    async def edit(self, record: Record, data: bytes) -> int:
        """Let a dead event carry something else, and retry it. Raises InvalidEvent, having changed nothing."""
        return await self._store.edit(record.event_id, edited(record, data))

    async def drop(self, query: Query) -> int:
        """Forget dead events for good; their followers go on."""
        return await self._store.drop(query)

    async def begin_replay(
        self, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        """Write down that what was published is to be published again, under an id of its own; `replaying` does it.
        With `again`, handlers that ask for replays handle it once more; to all others it is a copy."""
        await self._refuse_if_stopped("replay")
        id = f"{self._clock.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        return await self._store.begin_replay(id, query, again=again, to=to, rate=rate)

    async def find_replay(self, id: str) -> Replay | None:
        """Look how far a replay is; None if there is none of this id."""
        return await self._store.find_replay(id)

    async def resume_replay(self, id: str) -> None:
        """Write down who goes on with a replay; `replaying` does it."""
        await self._store.resume_replay(id)

    async def replaying(self, replay: Replay) -> AsyncIterator[Replay]:
        """Hand a replay to the relay, batch by batch; give how far it is after each. Whoever stops listening has
        stopped it between two batches."""
        while replay.finished_at is None:
            further = await self._store.replay(replay.id)
            assert further is not None, f"replay {replay.id} is gone"
            replay = further
            yield replay

    async def replay(
        self, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        """Publish again what was published, from beginning to end."""
        replay = await self.begin_replay(query, again=again, to=to, rate=rate)
        async for further in self.replaying(replay):
            replay = further
        return replay

    async def prunable(self, retention: Retention) -> tuple[int, bool]:
        """Count the events that are settled for long enough, up to COUNTED + 1; and whether it may be fewer.

        It may: when an event was dropped is not known, and what is in the archive already looks published, too.
        """
        await self._refuse_if_stopped("prune")
        if retention.published is None:
            return 0, False
        old, count, sure = self._clock.now() - retention.published, 0, retention.archive == timedelta(0)
        query = Query(newest_first=False, limit=PAGE)
        while count <= COUNTED and (page := await self._store.find(query)):
            settled = [one for one in page if _is_settled(one, old)]
            count += len(settled)
            sure = sure and all(one.published_at is not None for one in settled)
            if all(one.created_at > old for one in page):  # and so are the later ones
                break
            query = replace(query, after=page[-1].position)
        return min(count, COUNTED + 1), not sure

    async def prune(self, retention: Retention) -> int:
        """Delete what has been settled for long enough; give how many."""
        return sum([pruned async for pruned in self.pruning(retention)])

    async def pruning(self, retention: Retention) -> AsyncIterator[int]:
        """Delete what has been settled for long enough, batch by batch; give how many went in each. The audit has one
        line for all of them."""
        await self._refuse_if_stopped("prune")
        deed = await self._store.write_down(_described(retention))
        while pruned := await self._store.prune(retention, deed):
            yield pruned

    async def oldest(self, retention: Retention) -> tuple[int, int]:
        """Give between which positions what is to be pruned lies, about: for a progress bar and for nothing else."""
        oldest = await self._store.find(Query(newest_first=False, limit=1))
        if not oldest or retention.published is None:
            return 0, 0
        return oldest[0].position - 1, await last_added_by(self._store, self._clock.now() - retention.published)

    async def pauses(self) -> Sequence[Pause]:
        """Look which topics are paused."""
        return (await self._store.stats()).pauses

    async def pause(self, topic: str, why: str) -> Pause | None:
        """Stop publishing a topic; it keeps its place. If it is paused already, change nothing and give that pause."""
        return await self._store.pause(topic, self._who, why)

    async def knows(self, topic: str) -> bool:
        """Look whether one of the newest events goes to a topic; not further back, for that may be far."""
        return bool((await self.look_for(Query(topic=topic, limit=1))).records)

    async def topics(self) -> Sequence[str]:
        """Look to which topics the newest events go."""
        return sorted({record.topic for record in await self._store.find(Query(limit=PAGE))})

    async def resume(self, topic: str) -> bool:
        """Publish a topic again; False if it was not paused."""
        return await self._store.resume(topic)

    async def deeds(self, since: datetime | None = None, limit: int = 100) -> Sequence[Deed]:
        """Read the audit: what operators did, the newest first."""
        return await self._store.deeds(since, limit)

    async def _refuse_if_stopped(self, verb: str) -> None:
        """Raise StoreError, naming the cure, for a log of which nobody can be sure what is settled."""
        if stopped := (await self._store.stats()).stopped:
            raise StoreError(f"{verb}: {stopped}")


def _described(retention: Retention) -> str:
    """Write what is kept, for the audit."""
    kept = (("published", retention.published), ("archive", retention.archive), ("inbox", retention.inbox))
    return " ".join(["prune", *(f"{name}={_age(age)}" for name, age in kept)])


def _age(age: timedelta | None) -> str:
    return "forever" if age is None else write_duration(age).replace(" ", "") if age else "none"


def edited(record: Record, data: bytes) -> str | bytes:
    """Check what an event is to carry instead, as `Event` and `add` do; give it as it is stored.

    What the application's own limit is, nobody knows here: the default holds, or what the event had before.
    """
    if is_json(record.content_type):
        data = data.strip()
    event = Event(record.type, data, content_type=record.content_type)
    most = max(Place().max_payload, _size(record.data))
    if (size := _size(event.data)) > most:
        raise InvalidEvent(f"payload of {record.type!r}: {size:,} bytes, at most {most:,}")
    return event.data


def _size(data: str | bytes) -> int:
    return len(data if isinstance(data, bytes) else data.encode())


def _is_settled(record: Record, by: datetime) -> bool:
    """Tell whether an event was settled by then, as far as is known."""
    if record.status not in ("published", "dropped"):
        return False
    return (record.created_at if record.published_at is None else record.published_at) <= by
