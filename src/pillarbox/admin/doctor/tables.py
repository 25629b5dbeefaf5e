"""Whether the database can be read, its tables are as they should be, and somebody relays what is in them."""

from collections.abc import Iterator

from pillarbox.admin.diagnosis import living
from pillarbox.admin.doctor.finding import Checks, Facts, Trouble, not_looked_at
from pillarbox.admin.wording import command, counted
from pillarbox.settings.durations import about

SHOWN = 10
"""So many things that are not as they should be are told one by one."""


def _database(facts: Facts) -> Iterator[Trouble]:
    if "database" in facts.unset:
        line = "not looked at: none is set (database in pillarbox.toml, or --database)"
        yield Trouble("note" if facts.settings.broker else "problem", line)
    if facts.unread is not None:
        yield Trouble("problem", f"the database cannot be read: {facts.unread}")


def _version(facts: Facts) -> Iterator[Trouble]:
    assert facts.store is not None
    version, needed = facts.store.schema.version, facts.store.schema.needed
    if version > needed:
        line = (
            f"the tables have version {version}, and this release knows {needed}: a newer one made them, and this one"
            " refuses to work on them; use the newer one"
        )
        yield Trouble("problem", line, ("pip install --upgrade pillarbox",))
    elif version < needed:
        there = f"the tables have version {version}, and this release needs {needed}" if version else "there are none"
        cures = () if facts.store.schema.elsewhere else (command("migrate up", facts.settings),)
        line = facts.store.schema.instead or there
        yield Trouble("problem", f"{line}: no relay starts, and no event can be added", cures)


def _drift(facts: Facts) -> Iterator[Trouble]:
    """Name what somebody has changed since the migrations made it."""
    assert facts.store is not None
    if facts.store.schema.version != facts.store.schema.needed:
        yield not_looked_at("there are none of this release")
    for drift in facts.store.drift[:SHOWN]:
        mend = "" if drift.statement else "; make it as the script of `pillarbox migrate sql` does"
        line = f"{drift.what}: somebody has changed the tables, and commands may fail or become slow{mend}"
        yield Trouble("problem", line, (drift.statement,) if drift.statement else ())
    if (more := len(facts.store.drift) - SHOWN) > 0:
        yield Trouble(
            "problem", f"{counted(more, 'more thing')} of the tables changed; compare `pillarbox migrate sql`"
        )


def _unrelayed(facts: Facts) -> Iterator[Trouble]:
    """Look for events that nobody carries."""
    stats = facts.stats
    assert stats is not None
    if stats.slot is not None and stats.pending and not stats.slot.is_read:
        line = (
            f"nobody reads the replication slot {stats.slot.name}, which carries the events: they do not reach the"
            " broker, and the server keeps its WAL for it until the disk is full; look after the connector"
        )
        yield Trouble("problem", line, (command("status", facts.settings),))
    waiting, oldest_at = stats.pending + stats.overdue, stats.oldest_waiting_at
    if stats.slot is not None or not waiting or living(stats.relays, facts.now):
        return
    seen = max((relay.seen_at for relay in stats.relays), default=None)
    since = "no relay has ever run here" if seen is None else f"no relay was seen for {about(facts.now - seen)}"
    oldest = "" if oldest_at is None else f", the oldest for {about(facts.now - oldest_at)}"
    more = "" if stats.pending_exact else "more than "
    line = (
        f"{since}, and {more}{counted(waiting, 'event')} {'waits' if waiting == 1 else 'wait'}{oldest}:"
        " nothing reaches the broker; run one, and let something start it again when it ends"
    )
    yield Trouble("problem", line, (command("relay run", facts.settings, broker=True),))


def _expired(facts: Facts) -> Iterator[Trouble]:
    """Look for relays that died and whose lanes nobody has taken over."""
    assert facts.stats is not None
    for relay in facts.stats.relays:
        if relay.lanes and relay.lease_until < facts.now:
            line = (
                f"relay {relay.owner} was last seen {about(facts.now - relay.seen_at)} ago, its lease has run out, and"
                f" it still holds {counted(relay.lanes, 'lane')}: it died, and the events of these lanes wait until"
                " another relay takes them over; look into its log, and run one"
            )
            yield Trouble("problem", line, (command("relay run", facts.settings, broker=True),))


DATABASE: Checks = {"database": _database}
TABLES: Checks = {"version of the tables": _version, "tables": _drift}
RELAYS: Checks = {"events are relayed": _unrelayed, "expired relays": _expired}
