"""How an SQLite file is. (One on a network file system is refused by everything that opens it.)"""

from collections.abc import Iterator

from pillarbox.admin.doctor.finding import Checks, Facts, Trouble, not_looked_at
from pillarbox.facts import SqliteFacts

FULL = 2
_NAMES = {0: "OFF", 1: "NORMAL"}


def _journal_mode(facts: Facts) -> Iterator[Trouble]:
    assert isinstance(facts.store, SqliteFacts)
    mode = facts.store.journal_mode
    # Without tables nobody has set it yet.
    if not facts.store.schema.version:
        yield not_looked_at(facts.store.schema.instead or "`pillarbox migrate up` sets it with the tables")
    if facts.store.schema.version and mode not in (None, "wal"):
        line = (
            f"the journal mode of the file is {mode}, not wal: the relay and the application lock each other out, and"
            " requests fail with `database is locked`; a relay sets it right when it starts, so look in the"
            " application for what sets it back"
        )
        yield Trouble("problem", line, ("PRAGMA journal_mode = WAL",))


def _synchronous(facts: Facts) -> Iterator[Trouble]:
    assert isinstance(facts.store, SqliteFacts)
    level = facts.store.synchronous
    if level is None:
        yield not_looked_at("there is no file yet")
    elif level < FULL:
        line = (
            f"SQLite was built here to open files with synchronous = {_NAMES.get(level, level)}: after a power cut what"
            " an application, or a consumer's handler, has committed last may be gone, although the broker was told"
            " that it was handled; set it on every connection of yours (Pillarbox does so on its own)"
        )
        yield Trouble("problem", line, ("PRAGMA synchronous = FULL",))


CHECKS: Checks = {"journal mode": _journal_mode, "synchronous": _synchronous}
