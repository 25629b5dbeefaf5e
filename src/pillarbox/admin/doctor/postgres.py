"""How a PostgreSQL server is: that it keeps what it has, vacuums, and lets this user do what a relay does."""

from collections.abc import Iterator
from datetime import timedelta

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble, not_looked_at
from pillarbox.admin.wording import command, counted
from pillarbox.facts import Lax, PostgresFacts, Rights, XminHolder
from pillarbox.settings import Settings
from pillarbox.settings.durations import about

NEWEST = 18
"""The newest major version that the tests know."""
LONG, TOO_LONG = timedelta(minutes=5), timedelta(hours=1)
"""A transaction that is open for so long is noted; from there on it is a problem."""
FAR, TOO_FAR = 1_000_000, 100_000_000
"""So many transactions vacuum may lag behind before it is noted; from there on it is a problem."""
DEAD = 100_000
"""So many dead rows, and more than there are living ones, are noted."""
SKEW = timedelta(seconds=1)
_NO_TABLES = "there are no tables yet"


def _of(facts: Facts) -> PostgresFacts:
    assert isinstance(facts.store, PostgresFacts)
    return facts.store


def _version(facts: Facts) -> Iterator[Trouble]:
    """A server that is too old is refused by everything that connects."""
    if (major := _of(facts).version // 10_000) > NEWEST:
        yield Trouble("note", f"PostgreSQL {major} is newer than what this release was tested with ({NEWEST})")


def _refusal(facts: Facts) -> Iterator[Trouble]:
    if (why := _of(facts).refusal) is not None:
        yield Trouble("problem", f"no relay starts on this server: {why}")


def _standby(facts: Facts) -> Iterator[Trouble]:
    if _of(facts).standby:
        line = (
            "this server is a standby: no relay can work on it, for it stores what it has read; name the primary in"
            " the database's URL, or several hosts and target_session_attrs=read-write"
        )
        yield Trouble("problem", line)


def _durability(facts: Facts) -> Iterator[Trouble]:
    store = _of(facts)
    for name, holds in (("fsync", store.fsync), ("full_page_writes", store.full_page_writes)):
        if not holds:
            line = (
                f"{name} is off: after a power cut or a crash of the machine the database may be damaged, and events"
                " and positions with it"
            )
            yield Trouble("problem", line, (f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",))


def _commits(facts: Facts) -> Iterator[Trouble]:
    for lax in _of(facts).lax:
        line = (
            f"synchronous_commit is off {_whose(lax)}: after a crash what was committed last is gone, with its events;"
            " and a consumer has told the broker that it handled what its database then has forgotten: that is lost"
        )
        yield Trouble("problem", line, (_tighten(lax),))


def _whose(lax: Lax) -> str:
    if lax.role is not None:
        return f"for the user {lax.role}" + ("" if lax.database is None else f" in the database {lax.database}")
    return "on this server" if lax.database is None else f"for the database {lax.database}"


def _tighten(lax: Lax) -> str:
    if lax.role is not None:
        where = "" if lax.database is None else f" IN DATABASE {_quoted(lax.database)}"
        return f"ALTER ROLE {_quoted(lax.role)}{where} RESET synchronous_commit"
    if lax.database is not None:
        return f"ALTER DATABASE {_quoted(lax.database)} RESET synchronous_commit"
    return "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf()"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _rights(facts: Facts) -> Iterator[Trouble]:
    rights, settings = _of(facts).rights, facts.settings
    prefix = f"{settings.outbox.prefix}relay"
    if not _of(facts).schema.version and not rights.superuser:
        yield not_looked_at(_NO_TABLES)
    if rights.missing:
        some, more = ", ".join(rights.missing[:3]), len(rights.missing) - 3
        mends, statement = _granted(rights, settings)
        line = (
            f"the user {rights.user} lacks rights that a relay needs ({some}{f' and {more} more' if more > 0 else ''}):"
            f" a relay of its would stop at the first of them; {mends}. Who only looks needs none of them:"
            f" {settings.outbox.prefix}viewer is enough"
        )
        yield Trouble("problem", line, (statement,))
    if rights.superuser or rights.owner or rights.beyond:
        what = (
            "is a superuser"
            if rights.superuser
            else "owns the tables"
            if rights.owner
            else f"may do more with the outbox than a relay does ({', '.join(rights.beyond)})"
        )
        line = (
            f"the user {rights.user} {what}: whoever gets hold of its password, or of a relay, can change events that"
            f" others rely on; let relays log in as a user with the role {prefix} alone"
        )
        yield Trouble("note", line, (command("migrate sql --roles", settings),))
    outbox = f"{settings.outbox.schema}.{settings.outbox.prefix}outbox"
    for role in rights.others:
        what = ", ".join(role.rights)
        line = (
            f"the role {role.name} may do more with the outbox than its work asks for ({what}): writers only add"
            " events, and nobody changes one; whoever gets hold of it can do so"
        )
        yield Trouble("note", line, (f"REVOKE {what} ON {outbox} FROM {_quoted(role.name)}",))
    for table in rights.public:
        line = (
            f"everybody who can connect has rights on {table}, granted to PUBLIC: events may be read, forged or deleted"
        )
        yield Trouble("problem", line, (f"REVOKE ALL ON {table} FROM PUBLIC",))


def _granted(rights: Rights, settings: Settings) -> tuple[str, str]:
    """Say how the user comes by the relay's rights, and with which command that begins."""
    role, script = f"{settings.outbox.prefix}relay", command("migrate sql --roles", settings)
    grant = f"GRANT {role} TO {_quoted(rights.user)}"
    if rights.has_role is None:
        return f"there is no role {role} yet: run the script that makes it, then {grant}", script
    if rights.has_role:
        return f"it has the role {role}, which lacks them itself: run the script with the roles again", script
    return f"grant it the role {role}", grant


def _identity(facts: Facts) -> Iterator[Trouble]:
    if not _of(facts).schema.version:
        yield not_looked_at(_NO_TABLES)
    if (cache := _of(facts).identity_cache) > 1:
        outbox = f"{facts.settings.outbox.schema}.{facts.settings.outbox.prefix}outbox"
        line = (
            f"each session draws {cache} ids of {outbox} at once: an event that was added later may get a lower one,"
            " and the order per aggregate is lost"
        )
        yield Trouble("problem", line, (f"ALTER TABLE {outbox} ALTER id SET CACHE 1",))


def _transactions(facts: Facts) -> Iterator[Trouble]:
    store = _of(facts)
    for one in store.transactions:
        if (age := facts.now - one.since) >= LONG:
            who = f"{one.user or 'somebody'} ({one.program})" if one.program else one.user or "somebody"
            line = (
                f"the session {one.pid} of {who} has had a transaction open for {about(age)} ({one.state}): vacuum and"
                " retention cannot remove what it might still see, so tables grow; find out why it does not end, or"
                " end it"
            )
            yield Trouble("problem" if age >= TOO_LONG else "note", line, (f"SELECT pg_terminate_backend({one.pid})",))
    if not store.rights.sees_others:
        line = (
            f"the user {store.rights.user} does not see what other users' sessions are at, so nothing is known of them"
        )
        yield Trouble("note", line, (f"GRANT pg_read_all_stats TO {_quoted(store.rights.user)}",))


def _prepared(facts: Facts) -> Iterator[Trouble]:
    for one in _of(facts).prepared:
        if (age := facts.now - one.since) >= LONG:
            line = (
                f"the transaction {one.gid} of {one.owner} was prepared {about(age)} ago, and neither committed nor"
                " rolled back: it survives restarts, its events are not published, it keeps its locks, and vacuum waits"
                " for it; ask its transaction manager, then end it"
            )
            ends = tuple(f"{verb} PREPARED {_literal(one.gid)}" for verb in ("COMMIT", "ROLLBACK"))
            yield Trouble("problem", line, ends)


def _xmin(facts: Facts) -> Iterator[Trouble]:
    for holder in _of(facts).xmin:
        if holder.behind >= FAR:
            named, cure, statement = _held_by(holder)
            line = (
                f"{named} holds vacuum back by {counted(holder.behind, 'transaction')}: what was deleted is not"
                f" removed, tables grow and reading becomes slow; {cure}"
            )
            yield Trouble("problem" if holder.behind >= TOO_FAR else "note", line, statement)


def _held_by(holder: XminHolder) -> tuple[str, str, tuple[str, ...]]:
    name = holder.name
    match holder.kind:
        case "slot":
            drop = (f"SELECT pg_drop_replication_slot({_literal(name)})",)
            return f"the replication slot {name}", "let its reader go on, or drop it if nobody needs it", drop
        case "prepared transaction":
            return f"the prepared transaction {name}", "end it", (f"ROLLBACK PREPARED {_literal(name)}",)
        case "standby":
            return f"a standby (walsender {name})", "look for a long query there (hot_standby_feedback is on)", ()
        case "transaction":
            return f"the session {name}", "end its transaction", (f"SELECT pg_terminate_backend({name})",)


def _vacuum(facts: Facts) -> Iterator[Trouble]:
    store, schema = _of(facts), facts.settings.outbox.schema
    grow = "deleted rows stay, tables grow and reading becomes slow; in the end the server stops"
    if not store.autovacuum:
        yield Trouble(
            "problem", f"autovacuum is off: {grow}", ("ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()",)
        )
    if not store.track_counts:
        line = f"track_counts is off, so autovacuum does not know where to work: {grow}"
        yield Trouble("problem", line, ("ALTER SYSTEM SET track_counts = on; SELECT pg_reload_conf()",))
    for table in store.tables:
        name = f"{schema}.{table.name}"
        if not table.autovacuum:
            yield Trouble(
                "problem", f"autovacuum is off for {name}: {grow}", (f"ALTER TABLE {name} RESET (autovacuum_enabled)",)
            )
        if table.dead >= DEAD and table.dead > table.live:
            line = (
                f"{name} has {counted(table.dead, 'dead row')} and {counted(table.live, 'living one')}: vacuum does not"
                " keep up, or is held back; reading becomes slow"
            )
            yield Trouble("note", line, (f"VACUUM (VERBOSE) {name}",))


def _clock(facts: Facts) -> Iterator[Trouble]:
    skew = _of(facts).skew
    if abs(skew) >= SKEW:
        line = (
            f"the database's clock is {about(abs(skew))} {'ahead of' if skew > timedelta(0) else 'behind'} this"
            " machine's: delayed events go early or late, and ages and latencies are wrong by that (leases go by the"
            " database's clock alone, and hold); let both machines take their time from NTP"
        )
        yield Trouble("problem", line)


def _pooler(facts: Facts) -> Iterator[Trouble]:
    mode = _of(facts).pooler
    if mode == "statement":
        line = (
            "a pooler in statement mode stands between: it allows no transaction, so no event can be added through it,"
            " and no relay starts; set its pool_mode to transaction or session, or connect to the server itself"
        )
        yield Trouble("problem", line)
    elif mode is not None:
        line = (
            f"a pooler in {mode} mode stands between: it works, but a relay that was killed is replaced only when its"
            " lease has run out (relay.lease), and new events do not ring (LISTEN); give relays a direct connection if"
            " that matters"
        )
        yield Trouble("note", line)


CHECKS: Checks = {
    "version of the server": _version,
    "kind of server": _refusal,
    "primary": _standby,
    "fsync": _durability,
    "synchronous_commit": _commits,
    "rights": _rights,
    "identity cache": _identity,
    "open transactions": _transactions,
    "prepared transactions": _prepared,
    "vacuum held back": _xmin,
    "autovacuum": _vacuum,
    "clock": _clock,
    "pooler": _pooler,
}
