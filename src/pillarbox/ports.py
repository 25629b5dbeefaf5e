"""The sockets: what the relay, the consumer and the admin service ask of a database and of a broker.

    Source      entries, settle, wait       where the relay reads committed entries
    Lanes       take, renew, release        which relay may read what
    Records     stats, find, retry, …       what an operator sees and does
    Schema      status, up, sql             the tables themselves
    Publisher   send, outcomes              the broker's near end
    Subscriber  deliveries, acknowledge     the broker's far end

A *store* is one database's Source, Lanes, Records and Schema. Times are aware and in UTC. Errors of the outside world
come as the classes of `pillarbox.errors`: StoreUnavailable (try again), SchemaMismatch (names the command), LaneLost.
"""

from collections.abc import Collection, Container, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Protocol

from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.message import Delivery, Message
from pillarbox.core.routing import Line
from pillarbox.core.window import Settlement
from pillarbox.errors import PublishError


class Clock(Protocol):
    """The wall clock. (Waiting is the event loop's; a simulation brings a loop of its own.)"""

    def now(self) -> datetime: ...


class Source(Protocol):
    """Where the relay reads committed entries, for the lanes it holds.

    Only committed entries come out, each line in its order. What was given out is not given out again until the lanes
    are taken anew. A crash forgets what was not settled: those entries come out again.
    """

    @property
    def blocked(self) -> Container[Line]:
        """The lines that hold parked entries, as of the last `entries` or `settle`; read again at every use.
        It is kept when the lanes are lost: the relay may still hold followers, and hears of the loss a little later."""

    async def entries(self, room: int) -> Sequence[Entry]:
        """Give at most `room` further entries: those of the parking lot whose time has come, then the log's, in order.

        Never waits for new ones: an empty answer means there is nothing now. Of a parked line only its head comes
        out while it is retried; once the head is gone its followers come out, in order. The topics that are paused
        are read around and keep their place. Raises LaneLost if the lanes are no longer ours. Whatever it raises,
        nothing was given out.
        """

    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        """Record what has become of entries, atomically: the position moves, and what failed is parked.

        Log entries come as a prefix of what was given out; parked ones in any order. Of a topic that is held they may
        be Detoured: the position moves over them, and a detour begins at the first, from which they come out again.
        Safe to call twice with the same settlements, also when another copy of one of the events is out by then. What
        was only published may be stored a moment later: a crash repeats it. Raises LaneLost, having changed nothing, if
        another relay took the lanes meanwhile.
        """

    def hold(self, topics: frozenset[str]) -> None:
        """Read around these topics, as if they were paused, until told otherwise; they keep their place."""

    async def wait(self, seconds: float) -> None:
        """Return when there may be something new, at the latest after `seconds`."""


class Holding(NamedTuple):
    """The lanes that this relay holds now, and how many would be fair."""

    lanes: frozenset[int]
    share: int
    behind: frozenset[str] = frozenset()
    """When lanes were just taken: the topics that stand behind the others there, though nobody has paused them. Whoever
    had them did not get them published, and nobody knows whether they go now."""


@dataclass(frozen=True, slots=True)
class Away:
    """The broker does not answer: since when, and its last words."""

    since: datetime
    error: str


class Lanes(Protocol):
    """Which relay may read what: 64 lanes, leased. A lane has one holder; its epoch changes with every taking."""

    async def take(self) -> Holding:
        """Join, and take free lanes up to the fair share. A lane is free if nobody holds it, its holder's lease has
        run out, or its holder is known to be dead. What was held before stays held; positions are loaded.
        Raises LaneLost if a lane was taken from us, also if it is free again: others may have gone on meanwhile."""

    async def renew(self, away: Away | None) -> Holding:
        """Prolong the lease and note how this relay is. Raises LaneLost if a lane was taken from us."""

    async def release(self, lanes: Collection[int] | None = None) -> None:
        """Give lanes back (all by default), so that others may take them at once. Nothing of them may be in flight.
        All of them: every one that is in our name, whatever is in memory; and forget everything, so that the next
        `take` starts from what is stored."""


Status = Literal["pending", "retrying", "blocked", "delayed", "published", "dead", "dropped", "handled"]
Side = Literal["outbox", "inbox"]


@dataclass(frozen=True, slots=True)
class Query:
    """Which events: every field that is set narrows it down."""

    side: Side = "outbox"
    ids: Sequence[str] = ()
    status: Sequence[Status] = ()
    type: str | None = None
    topic: str | None = None
    aggregate: tuple[str, str] | None = None
    consumer: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    error: str | None = None
    """Only events whose last error has this text in it, letter by letter."""
    after: int | None = None
    """Only entries whose position is above this one (for following the log)."""
    upto: int | None = None
    """Only entries whose position is this one or below."""
    newest_first: bool = True
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay: which events go out once more, how, and how far it is."""

    id: str
    began_at: datetime
    who: str
    query: Query
    again: bool
    """Handlers that ask for replays handle the events once more: its id goes along with them."""
    to: str | None
    """Another topic that they go to."""
    rate: float | None
    """How many become due in a second."""
    first: int
    """Above this position it began."""
    place: int
    """Up to this position it is done."""
    upto: int
    """After this position it is over."""
    events: int
    """So many were handed to the relay."""
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that is known of one event, for people."""

    position: int
    event_id: str
    status: Status
    type: str
    topic: str
    aggregate: tuple[str, str] | None
    created_at: datetime
    published_at: datetime | None = None
    attempts: int = 0
    last_error: str | None = None
    next_try_at: datetime | None = None
    blocked_by: str | None = None
    """The id of the event at the head of its line, if it waits behind one."""
    number: int | None = None
    idempotency_key: str | None = None
    occurred_at: datetime | None = None
    available_at: datetime | None = None
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    data: str | bytes = ""
    consumer: str | None = None
    traceback: str | None = None
    """Where a handler failed the last time."""
    hidden: bool = False
    """Whoever asked may not see headers and data: they are empty here, whatever the event has."""
    original: str | bytes | None = None
    """What it carried when it was added, if it was edited since; kept as long as the log has the event."""


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """The dead events that have one error, by its first line, in which … stands for an event's own id."""

    error: str
    events: int
    first_at: datetime
    """When the first of them was put aside, at its first failure; and the last."""
    last_at: datetime
    example: str
    """The id of the newest."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A topic that is not published for now: since when, who asked for it, and why."""

    topic: str
    since: datetime
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Deed:
    """A line of the audit: what an operator did, when, and to how many events (or pauses)."""

    at: datetime
    who: str
    what: str
    count: int


@dataclass(frozen=True, slots=True)
class RelaySeen:
    """A relay's row: when it was last seen, until when its lease runs, how many lanes it has, how its broker is.

    Of one that is known to be dead the lease ended when it was last seen."""

    owner: str
    seen_at: datetime
    lease_until: datetime
    lanes: int
    away: Away | None = None


@dataclass(frozen=True, slots=True)
class FullLot:
    """So many stand in lines that the log is read no further: how many, and the head of the longest line."""

    standing: int
    head: Record
    behind: int
    """How many wait behind that head."""


@dataclass(frozen=True, slots=True)
class SlotSeen:
    """The replication slot whose reader carries the events instead of a relay, and how it stands now."""

    name: str
    trouble: str | None
    """What is wrong with it, or was: then it is not known what was carried, and nothing is settled by it."""
    is_read: bool
    behind: int
    """So many bytes of WAL its reader has not confirmed."""
    kept: int
    """So many bytes of WAL are kept for it."""
    at_risk: bool
    """PostgreSQL is about to remove WAL that it needs."""
    watched_at: datetime


@dataclass(frozen=True, slots=True)
class CanarySeen:
    """The newest canary: when it was added, and what has become of it. One that is pruned was published."""

    event_id: str
    added_at: datetime
    status: Status
    error: str | None = None


LATELY = timedelta(minutes=1)
"""The while of which `Stats.published_lately` and `Stats.added_by_topic` tell."""
NEWEST = 1_000
"""So many of the newest events are looked at for `Stats.added_by_topic`."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The state of an outbox at a glance. Counts are exact up to 10,000; beyond, `pending_exact` is False."""

    pending: int
    pending_exact: bool
    oldest_pending_at: datetime | None
    retrying: int
    blocked: int
    delayed: int
    dead: int
    last_published_at: datetime | None
    heads: Sequence[Record] = ()
    """The events at the head of blocked lines (retrying or dead), oldest first, at most 20."""
    pauses: Sequence[Pause] = ()
    relays: Sequence[RelaySeen] = ()
    pending_by_topic: dict[str, int] = field(default_factory=dict)
    """Of the first 10,000 pending ones."""
    oldest_by_topic: dict[str, datetime] = field(default_factory=dict)
    """When the oldest of each of those topics was added."""
    added_by_topic: dict[str, int] = field(default_factory=dict)
    """Of the newest 1,000 events of the log (NEWEST), those that were added in the last minute (LATELY)."""
    added_since: datetime | None = None
    """When the first of those 1,000 was added, if all of them were in the last minute."""
    pending_about: int | None = None
    """How many are pending where they are not counted: an estimate by ids, which have gaps. None if there is none."""
    parked_by_topic: dict[str, dict[Status, int]] = field(default_factory=dict)
    """Of each topic the retrying, blocked, delayed and dead ones; of each state the first 10,000."""
    overdue_by_topic: dict[str, int] = field(default_factory=dict)
    """Of each topic the delayed ones whose time has come, of the first 10,000: with a relay at work they go at once."""
    oldest_due_at: datetime | None = None
    """When the time of the first of those came."""
    copies: int = 0
    """How many of the delayed ones, of the first 10,000, are copies of a replay: their events stay published."""
    copies_overdue: int = 0
    """How many of those whose time has come are."""
    blocked_lines: int = 0
    """In so many lines, which are mostly aggregates, the next event has to wait behind a retrying or dead one."""
    published_lately: int = 0
    """So many were published in the last minute (LATELY)."""
    table_bytes: dict[str, int] = field(default_factory=dict, compare=False)
    """What each table takes, with its indexes; one that keeps all of them in a file says "file"."""
    inbox_dead: int = 0
    inbox_waiting: int = 0
    """Received events that are stored, tried again, or wait behind one that is."""
    stopped: str | None = None
    """Why the log cannot be read on, with the cure; None if it can."""
    full: FullLot | None = None
    suspect_lanes: int = 0
    """With so many lanes relays have died again and again; their events go one at a time."""
    receives: bool = False
    """Whether a consumer has its inbox here."""
    slot: SlotSeen | None = None
    canary: CanarySeen | None = None

    @property
    def overdue(self) -> int:
        """How many delayed ones are there whose time has come, of the first 10,000."""
        return sum(self.overdue_by_topic.values())

    @property
    def oldest_waiting_at(self) -> datetime | None:
        """Since when the oldest waits that a relay could carry now: a pending one, or a delayed one that is due."""
        times = [at for at in (self.oldest_pending_at, self.oldest_due_at) if at is not None]
        return min(times, default=None)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long settled things are kept; None keeps for ever, zero deletes at once."""

    published: timedelta | None = timedelta(days=7)
    archive: timedelta | None = timedelta(0)
    inbox: timedelta | None = timedelta(days=30)


class Records(Protocol):
    """What an operator sees and does. None of it needs a lane; all of it is safe beside running relays."""

    async def stats(self) -> Stats:
        """Look at the whole; never counts over the log without a bound."""

    async def find(self, query: Query) -> Sequence[Record]:
        """Find events by what the query says."""

    async def group_dead(self, query: Query) -> Sequence[DeadGroup]:
        """Group the dead events that the query means by the first line of their error, the largest group first; the
        limit is one of groups. Never reads the log."""

    async def retry(self, query: Query) -> int:
        """Give dead (or waiting) events their tries back, due now; their followers follow in order. How many."""

    async def edit(self, event_id: str, data: str | bytes) -> int:
        """Let a dead event of the outbox carry something else, and retry it, at once or not at all; its id stays. The
        log keeps what was added; a replay and the archive have what was published. How many: 0 if it is not dead."""

    async def drop(self, query: Query) -> int:
        """Forget dead events for good; their followers go on. They stay visible as dropped. How many."""

    async def begin_replay(
        self, id: str, query: Query, *, again: bool = False, to: str | None = None, rate: float | None = None
    ) -> Replay:
        """Write down that the published events which the query means are to be published again, and how; none is yet.

        They go with the ids they have, in log order whatever the query says, outside the lines; at most as many as its
        limit. With `again` the id of the replay goes along with every message, so that handlers which ask for replays
        handle the event once more for each such id; without, a message is a copy to everybody. `to` is another topic
        that they go to. `rate` is how many become due in a second."""

    async def replay(self, id: str) -> Replay | None:
        """Hand the next events of a replay to the relay: one bounded batch, in the transaction that moves its place.
        None if there is no such replay; one that is over stays as it is. Several at once do the work of one.

        Whatever dies in between, within one replay no event goes twice, and none is left out that was published when
        it began and is still in the log or the archive, published, when its turn comes."""

    async def find_replay(self, id: str) -> Replay | None:
        """Look how far a replay is; None if there is none of this id."""

    async def resume_replay(self, id: str) -> None:
        """Write down who goes on with a replay: from now on, a line of its own in the audit counts what it does."""

    async def write_down(self, what: str) -> int:
        """Begin a line of the audit, for something done in batches, with a count of 0 so far; give its number."""

    async def prune(self, retention: Retention, deed: int | None = None) -> int:
        """Delete one bounded batch of what has been settled for long enough; 0 when there is nothing left to do. The
        line of the audit with this number counts it, in the same transaction."""

    async def pause(self, topic: str, who: str, why: str) -> Pause | None:
        """Stop publishing a topic; it keeps its place, others flow on. Survives restarts. If it is paused already,
        change nothing and give that pause."""

    async def resume(self, topic: str) -> bool:
        """Publish a topic again from where it stopped; False if it was not paused."""

    async def deeds(self, since: datetime | None = None, limit: int = 100) -> Sequence[Deed]:
        """Read the audit, the newest line first. Every retry, edit, drop, replay, pause and resume has left one, in the
        same transaction; a pause that changed nothing has not. What is done in batches has one line, which grows."""


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The version of the tables that are there (0: none) and the one that this release needs."""

    version: int
    needed: int
    missing: tuple[str, ...] = ()
    """What tables of that version have, and somebody has taken away: "the table pillarbox_parked"."""
    instead: str | None = None
    """Why there are none, where it is not just a database without them: "there is no database shop.db yet"."""
    elsewhere: bool = False
    """They do not belong there: it is something else than an application's database."""

    @property
    def fits(self) -> bool:
        """The tables are as this release needs them."""
        return self.version == self.needed and not self.missing

    @property
    def loss(self) -> str:
        """Say what is missing, and what to do: no migration can know what stood there."""
        what, are = ", ".join(self.missing), "is" if len(self.missing) == 1 else "are"
        return (
            f"{what} {are} missing, although the tables have version {self.version}: somebody has removed something;"
            " restore it from a backup, or make it as the script of `pillarbox migrate sql` does and expect that what"
            " stood there is lost"
        )


class Schema(Protocol):
    """The tables."""

    async def status(self) -> SchemaStatus:
        """Look which version is there."""

    async def up(self) -> Sequence[int]:
        """Bring the tables to the needed version; give the versions applied. Refuses tables from the future."""

    def sql(self) -> str:
        """Give the script that `up` would run on an empty database; needs no connection."""

    def roles(self) -> str:
        """Give the script that makes roles with just the rights they need. Raises ConfigError where there are none."""

    async def adopt(self) -> int:
        """Take tables over that were copied from another cluster: what was settled stays so, the rest is published.
        How many events are pending. Raises StoreError, having changed nothing, where there is nothing to adopt."""


class Store(Source, Lanes, Records, Schema, Protocol):
    """One database's tables, for the relay and the admin service."""

    async def open(self) -> None:
        """Connect. Raises StoreUnavailable or ConfigError; says nothing about the tables."""

    async def check(self) -> None:
        """Raise SchemaMismatch, which names the command to run, unless the tables are as this release needs them."""

    async def add_canary(self, event: Event[Any]) -> None:
        """Add an event of our own, in a transaction of its own that also notes it as the newest canary. Raises
        StoreError if whoever is connected may not add events."""

    async def close(self) -> None:
        """Disconnect; safe to call twice."""


class Watched(NamedTuple):
    """What a look at the slot has brought: why nothing is settled by it, if so, and how many events now are."""

    slot: str
    doubt: str | None
    settled: int


class WatchingStore(Store, Protocol):
    """A store whose events somebody else may carry: the reader of a replication slot, such as Debezium.

    What that reader has confirmed is settled, and nothing else. As long as it carries them, `take` refuses lanes.
    """

    async def watch(self) -> Watched | None:
        """Settle what the reader has confirmed; None if relays carry the events. Several at once do the work of one."""

    async def watch_slot(self, name: str) -> None:
        """Let the reader of this slot carry the events from now on. Raises StoreError, having changed nothing."""

    async def unwatch(self) -> None:
        """Let relays carry the events again, from where the reader was. Raises StoreError, having changed nothing."""


class Outcome(NamedTuple):
    """The broker's answer to one message: None if it has it durably, else why not."""

    ticket: int
    error: PublishError | None


class Publisher(Protocol):
    """The broker's near end.

    Every message handed to `send` gets exactly one outcome, at the latest when the publish timeout has passed. An
    outcome without error means: the broker's own durable acknowledgement for that very message. A deadline in which
    the broker acknowledged nothing at all is BrokerUnavailable; PublishTimeout only if it answered others of that send.
    """

    @property
    def prefix_safe(self) -> bool:
        """Of one key's messages in one `send`, the accepted ones always form a prefix, whatever fails."""

    def send(self, messages: Sequence[Message]) -> None:
        """Hand messages over, without waiting; never raises for what the broker does."""

    async def outcomes(self) -> Sequence[Outcome]:
        """Wait until something that was sent is answered; give all that has been answered since the last call.
        A wait that is cancelled loses none. Raises only what no retry can cure: ConfigError, SchemaMismatch."""

    async def close(self) -> None:
        """Let go of the broker; what was not answered may or may not have arrived."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How long a broker keeps the messages of a topic, also those that everybody has had."""

    topic: str
    age: timedelta | None
    """None: nothing is dropped for its age."""
    by: str
    """What says so, for people: "its retention.ms", "max_age of the stream ORDERS"."""


class Keeping(Protocol):
    """Asks a broker how long it keeps messages. Not for one that drops what was acknowledged, or keeps nothing."""

    async def __call__(self, topics: Sequence[str]) -> Sequence[Kept]:
        """Say it of each of these topics that the broker has. Raises BrokerUnavailable while it cannot be asked."""


class Trial(Protocol):
    """Topics of a broker that are made for a run, and removed at its end. For a broker where somebody has to."""

    async def make(self, topics: Sequence[str], consumer: str) -> None:
        """Make topics for this consumer (group); one that is there already is an error. Raises BrokerUnavailable while
        the broker cannot be asked, ConfigError for what cannot be made."""

    async def remove(self, topics: Sequence[str], consumer: str) -> None:
        """Remove topics with all that is in them, and what the broker remembers of the consumer. What is not there is
        passed over. Raises BrokerUnavailable while the broker cannot be asked."""


class Subscriber(Protocol):
    """The broker's far end, for one consumer (group) and its topics.

    Per key, deliveries come in the order in which the broker has them. What is not acknowledged comes again, to this or
    another member, marked `redelivered` where the broker can tell. While the broker is away, calls raise
    BrokerUnavailable: nothing is lost, and calling again helps.
    """

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        """Give at most `room` further deliveries; wait at most `patience` seconds for the first. A wait that is
        cancelled loses none."""

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Say that these need not come again. They come in the order in which they were delivered. What another
        member has taken over meanwhile is passed over in silence."""

    async def close(self) -> None:
        """Leave the group, so that others take over at once."""
