"""The memory store whole: what `memory.py` reads and settles, plus what an operator sees and does."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.insert import EPOCH
from pillarbox.core.routing import Line
from pillarbox.errors import ConfigError, StoreError
from pillarbox.ports import (
    LATELY,
    NEWEST,
    CanarySeen,
    DeadGroup,
    Deed,
    Pause,
    Query,
    Record,
    RelaySeen,
    Replay,
    Retention,
    SchemaStatus,
    Stats,
    Status,
)
from pillarbox.stores.audit import user
from pillarbox.testing.memory import MemoryOutbox, Parked, Replaying, Row
from pillarbox.testing.memory_careful import CRASHES
from pillarbox.testing.memory_source import MemorySource

COUNTED = 10_000
PARKED: tuple[Status, ...] = ("retrying", "blocked", "delayed", "dead")
BATCH = 5_000
REPLAYED = 3
"""So few go in one batch of a replay: rules meet the next one soon."""
MANY = 1_000_000_000


class MemoryStore(MemorySource):
    """A Store on a MemoryDatabase.

    >>> from pillarbox.testing.memory import MemoryDatabase
    >>> store = MemoryStore(MemoryDatabase(), "relay-1")
    """

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def check(self) -> None:
        """The tables are always right."""

    async def close(self) -> None:
        """There is nothing to disconnect."""

    async def add_canary(self, event: Event[Any]) -> None:
        transaction = self.database.begin()
        MemoryOutbox().add(transaction, event)
        transaction.commit()
        self.database.canary = str(event.id), self.database.clock.now()

    async def status(self) -> SchemaStatus:
        return SchemaStatus(1, 1)

    async def up(self) -> Sequence[int]:
        return []

    def sql(self) -> str:
        return ""

    def roles(self) -> str:
        raise ConfigError("a store in memory has no roles")

    async def adopt(self) -> int:
        raise StoreError("a store in memory belongs to no cluster, so there is nothing to adopt")

    async def stats(self) -> Stats:
        pending = [row for row in self.database.rows if not self._covers(row)]
        counted = pending[:COUNTED]
        by_topic, oldest = Counter(row.entry.topic for row in counted), dict[str, datetime]()
        for row in counted:
            at = row.entry.created_at
            oldest[row.entry.topic] = min(oldest.get(row.entry.topic, at), at)
        newest = self.database.rows[-NEWEST:]
        added = [row.entry for row in newest if row.entry.created_at > self.database.clock.now() - LATELY]
        overdue = self._overdue()
        return Stats(
            pending=len(counted),
            pending_exact=len(pending) <= COUNTED,
            oldest_pending_at=min((row.entry.created_at for row in pending), default=None),
            retrying=self._count("retrying"),
            blocked=self._count("blocked"),
            delayed=self._count("delayed"),
            dead=self._count("dead"),
            last_published_at=max((tick.at for tick in self.database.ticks if tick.published), default=None),
            heads=[self._record(row) for row in self._rows(self._heads())][:20],
            pauses=sorted(self.database.pauses.values(), key=lambda pause: pause.topic),
            relays=list(self._relays()),
            pending_by_topic=dict(by_topic),
            oldest_by_topic=oldest,
            added_by_topic=dict(Counter(entry.topic for entry in added)),
            added_since=min(entry.created_at for entry in added) if len(added) == NEWEST else None,
            pending_about=len(pending) if len(pending) > COUNTED else None,
            parked_by_topic=self._parked_by_topic(),
            overdue_by_topic=dict(Counter(row.entry.topic for row, _ in overdue)),
            oldest_due_at=min((since for _, since in overdue), default=None),
            copies=sum(row.state == "delayed" and row.replay is not None for row in self.database.parked),
            copies_overdue=sum(row.replay is not None for row, _ in overdue),
            blocked_lines=len({row.line for row in self.database.parked if row.active and row.line is not None}),
            published_lately=sum(
                tick.published for tick in self.database.ticks if tick.at > self.database.clock.now() - LATELY
            ),
            canary=await self._canary(),
            suspect_lanes=sum(lane.crashes >= CRASHES for lane in self.database.lanes),
        )

    async def _canary(self) -> CanarySeen | None:
        if self.database.canary is None:
            return None
        id, at = self.database.canary
        found = await self.find(Query(ids=(id,)))
        return CanarySeen(id, at, found[0].status, found[0].last_error) if found else CanarySeen(id, at, "published")

    def _overdue(self) -> list[tuple[Parked, datetime]]:
        now, parked = self.database.clock.now(), self.database.parked
        return [
            (row, row.due_at)
            for row in parked
            if row.state == "delayed" and row.due_at is not None and row.due_at <= now
        ]

    def _parked_by_topic(self) -> dict[str, dict[Status, int]]:
        counts: dict[str, dict[Status, int]] = {}
        for state in PARKED:
            for row in self.database.parked:
                if row.state == state:
                    of = counts.setdefault(row.entry.topic, {})
                    of[state] = of.get(state, 0) + 1
        return counts

    def _count(self, state: str) -> int:
        return sum(row.state == state for row in self.database.parked)

    def _heads(self) -> list[Parked]:
        """Give the first of every parked line, unless it may go on by itself."""
        lines: dict[Line, Parked] = {}
        for row in self.database.parked:
            if row.active and row.line is not None:
                lines.setdefault(row.line, row)
        return [row for row in lines.values() if row.state != "blocked"]

    def _relays(self) -> Iterator[RelaySeen]:
        for owner, member in self.database.members.items():
            lanes = sum(lane.owner == owner for lane in self.database.lanes)
            yield RelaySeen(owner, member.seen_at, member.lease_until, lanes, member.away)

    async def find(self, query: Query) -> Sequence[Record]:
        if query.side == "inbox":
            return []
        rows = self.database.rows + self.database.archive
        records = [record for record in map(self._record, rows) if _matches(query, record)]
        records.sort(key=lambda record: record.position, reverse=query.newest_first)
        return records[: query.limit]

    async def group_dead(self, query: Query) -> Sequence[DeadGroup]:
        if query.side == "inbox" or (query.status and "dead" not in query.status):
            return []
        query = replace(query, status=("dead",))
        groups: dict[str, list[Parked]] = {}
        for row in self.database.rows + self.database.archive:
            parked = self._parked_row(row)
            if parked is not None and _matches(query, self._record(row)):
                error = _first_line(parked.last_error).replace(parked.entry.event_id, "…")
                groups.setdefault(error, []).append(parked)
        found = [_group(error, rows) for error, rows in groups.items()]
        found.sort(key=lambda group: (-group.events, EPOCH - group.last_at, group.error))
        return found[: query.limit]

    async def retry(self, query: Query) -> int:
        rows = self._parked_by(query, ("dead", "retrying", "delayed"))
        for row in rows:
            if row.line is None and row.state == "dead":
                row.line = None  # it was skipped: its followers have gone, it goes alone
            row.state, row.due_at, row.attempts = "retrying", self.database.clock.now(), 0
        return self._audit("retry", len(rows))

    async def edit(self, event_id: str, data: str | bytes) -> int:
        rows = self._parked_by(Query(ids=(event_id,), status=("dead",), limit=1), ("dead",))
        for row in rows:
            row.entry = row.entry._replace(data=data)
            row.state, row.due_at, row.attempts = "retrying", self.database.clock.now(), 0
        return self._audit(f"edit ids={event_id}", len(rows))

    async def drop(self, query: Query) -> int:
        rows = self._parked_by(query, ("dead", "retrying", "blocked", "delayed") if query.ids else ("dead",))
        for row in rows:
            row.state, row.settled_at = "dropped", self.database.clock.now()
        return self._audit("drop", len(rows))

    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        now, positions = self.database.clock.now(), [row.entry.position for row in self._everything()]
        first = max(min(positions, default=1) - 1, query.after or 0)
        upto = max(positions, default=0) if query.upto is None else min(max(positions, default=0), query.upto)
        replay = Replay(id, now, user(), query, again, to, rate, first, first, upto, 0)
        self.database.replays[id] = Replaying(replay, now, self._begin_deed(f"replay {id}"))
        return replay

    async def replay(self, id: str) -> Replay | None:
        await self._struck("replay")
        if (row := self.database.replays.get(id)) is None:
            return None
        replay = row.replay
        if replay.finished_at is None:
            limit = min(REPLAYED, replay.query.limit - replay.events)
            records = await self.find(
                replace(replay.query, after=replay.place, upto=replay.upto, newest_first=False, limit=MANY)
            )
            wanted = [record.position for record in records if record.status == "published"][:limit]
            self._copy(row, wanted)
            full = len(wanted) == REPLAYED and replay.events + len(wanted) < replay.query.limit
            place = wanted[-1] if full else replay.upto
            row.replay = replace(
                replay,
                place=place,
                events=replay.events + len(wanted),
                finished_at=None if full else self.database.clock.now(),
            )
        await self._struck("replayed")
        return row.replay

    def _copy(self, row: Replaying, positions: Sequence[int]) -> None:
        """Park copies of published entries, in one turn with counting them."""
        replay, now = row.replay, self.database.clock.now()
        row.due_at = max(row.due_at, now)
        entries = {one.entry.position: one for one in self._everything()}
        for position in positions:
            number, one = len(self.database.parked) + 1, entries[position]
            entry = self._as_published(one)
            entry = entry._replace(topic=replay.to or entry.topic)
            carried = replay.id if replay.again else ""
            copy = Parked(number, entry, one.lane, "delayed", None, row.due_at, 0, None, None, carried, now)
            self.database.parked.append(copy)
            row.due_at += timedelta(seconds=1 / replay.rate if replay.rate else 0)
        self._count_deed(row.deed, len(positions))

    async def find_replay(self, id: str) -> Replay | None:
        row = self.database.replays.get(id)
        return row.replay if row else None

    async def resume_replay(self, id: str) -> None:
        row = self.database.replays.get(id)
        if row is not None and row.replay.finished_at is None:
            row.deed = self._begin_deed(f"replay resume={id}")

    async def write_down(self, what: str) -> int:
        return self._begin_deed(what)

    def _begin_deed(self, what: str) -> int:
        self._audit(what, 0)
        return len(self.database.audit) - 1

    def _count_deed(self, deed: int, count: int) -> None:
        line = self.database.audit[deed]
        self.database.audit[deed] = replace(line, count=line.count + count)

    def _everything(self) -> Sequence[Row]:
        return self.database.rows + self.database.archive

    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        await self._struck("prune")
        count = self._prune_log(retention) or self._prune_archive(retention)
        if deed is not None:
            self._count_deed(deed, count)
        await self._struck("pruned")
        return count

    def _prune_log(self, retention: Retention) -> int:
        if retention.published is None:
            return 0
        before = self.database.clock.now() - retention.published
        old = [row for row in self.database.rows if self._settled_before(row, before)][:BATCH]
        if retention.archive is None or retention.archive > timedelta(0):
            self.database.archive += old
        gone = {row.entry.position for row in old}
        self.database.rows = [row for row in self.database.rows if row.entry.position not in gone]
        return len(old)

    def _prune_archive(self, retention: Retention) -> int:
        if retention.archive is None:
            return 0
        before = self.database.clock.now() - retention.archive
        old = [row for row in self.database.archive if self._settled_before(row, before)][:BATCH]
        self.database.archive = [row for row in self.database.archive if row not in old]
        return len(old)

    def _settled_before(self, row: Row, before: datetime) -> bool:
        status, at = self._status(row)
        settled = status in ("published", "dropped") and at is not None and at <= before
        return settled and not self._has_copy(row)

    def _has_copy(self, row: Row) -> bool:
        """Say whether a replayed copy waits."""
        return any(
            parked.entry.position == row.entry.position and parked.state not in ("published", "dropped")
            for parked in self.database.parked
        )

    async def pause(self, topic: str, who: str, why: str) -> Pause | None:
        if there := self.database.pauses.get(topic):
            return there
        self.database.pauses[topic] = Pause(topic, self.database.clock.now(), who, why)
        self._audit(f"pause topic={topic}", 1, who)
        return None

    async def resume(self, topic: str) -> bool:
        paused = self.database.pauses.pop(topic, None) is not None
        self._audit(f"resume topic={topic}", int(paused))
        return paused

    async def deeds(self, since: datetime | None = None, limit: int = 100) -> Sequence[Deed]:
        newest_first = reversed(self.database.audit)
        return [deed for deed in newest_first if since is None or deed.at >= since][:limit]

    def _audit(self, what: str, count: int, who: str | None = None) -> int:
        self.database.audit.append(Deed(self.database.clock.now(), who or user(), what, count))
        return count

    def _parked_by(self, query: Query, states: Sequence[str]) -> list[Parked]:
        """Give the parked rows that a query means: of each event the one that tells how it is, and no other copy."""
        told = (
            self._parked_row(row)
            for row in self.database.rows + self.database.archive
            if _matches(query, self._record(row))
        )
        return [parked for parked in told if parked is not None and parked.state in states][: query.limit]

    def _rows(self, parked: Sequence[Parked]) -> Iterator[Row]:
        wanted = {row.entry.position for row in parked}
        return (row for row in self.database.rows + self.database.archive if row.entry.position in wanted)

    def _parked_row(self, row: Row) -> Parked | None:
        """Give the newest parked row of an event; a replay that waits or is over leaves it as it was."""
        found = None
        for parked in self.database.parked:
            if parked.entry.position == row.entry.position and not self._is_replay(parked):
                found = parked
        return found

    def _as_published(self, row: Row) -> Entry:
        """Give the entry with what it carried when it was published: somebody may have edited it."""
        entry = row.entry
        for parked in self.database.parked:
            if parked.replay is None and parked.entry.position == entry.position:
                entry = parked.entry
        return entry

    def _is_replay(self, parked: Parked) -> bool:
        return parked.replay is not None and parked.state in ("delayed", "published", "dropped")

    def _covers(self, row: Row) -> bool:
        """Say whether the position of its lane, or of a detour there, has passed it."""
        key = (row.lane, row.entry.topic)
        return (self.database.positions.get(key) or self.database.positions[row.lane, None]).covers(row)

    def _status(self, row: Row) -> tuple[Status, datetime | None]:
        """Say how an event is, and since when if it is settled."""
        if not self._covers(row):
            return "pending", None
        parked = self._parked_row(row)
        if parked is not None:
            return parked.state, parked.settled_at  # type: ignore[return-value]
        return "published", next((t.at for t in self.database.ticks if row.entry.position in t.covered), None)

    def _record(self, row: Row) -> Record:
        entry, parked = row.entry, self._parked_row(row)
        status, at = self._status(row)
        head = next((p for p in self.database.parked if parked and p.line == parked.line and p.active), None)
        return Record(
            position=entry.position,
            event_id=entry.event_id,
            status=status,
            type=entry.event_type,
            topic=entry.topic,
            aggregate=(entry.aggregate_type, entry.aggregate_id) if entry.aggregate_id else None,
            created_at=entry.created_at,
            published_at=at if status == "published" else None,
            attempts=parked.attempts if parked else 0,
            last_error=parked.last_error if parked else None,
            next_try_at=parked.due_at if parked and status in ("retrying", "delayed") else None,
            blocked_by=head.entry.event_id if head and status == "blocked" else None,
            number=entry.number,
            idempotency_key=entry.idempotency_key,
            occurred_at=entry.occurred_at,
            available_at=entry.available_at,
            content_type=entry.content_type or "application/json",
            headers=_headers(entry.headers),
            data=parked.entry.data if parked else entry.data,
            original=entry.data if parked and parked.entry.data != entry.data else None,
        )


def _group(error: str, rows: Sequence[Parked]) -> DeadGroup:
    times = [row.parked_at for row in rows]
    newest = max(rows, key=lambda row: row.id)
    return DeadGroup(error, len(rows), min(times), max(times), newest.entry.event_id)


def _first_line(error: str | None) -> str:
    return (error or "").partition("\n")[0]


def _headers(text: str | None) -> dict[str, str]:
    try:
        headers = json.loads(text or "{}")
    except ValueError:
        headers = None
    return headers if isinstance(headers, dict) else {"(no JSON object)": str(text)}


def _matches(query: Query, record: Record) -> bool:
    return (
        (not query.ids or record.event_id in query.ids)
        and (not query.status or record.status in query.status)
        and query.type in (None, record.type)
        and query.topic in (None, record.topic)
        and query.aggregate in (None, record.aggregate)
        and (query.since is None or record.created_at >= query.since)
        and (query.until is None or record.created_at < query.until)
        and (query.error is None or query.error in (record.last_error or ""))
        and (query.after is None or record.position > query.after)
        and (query.upto is None or record.position <= query.upto)
    )
