"""The hint: a note outside the database that an event was handled. It may only save a look-up.

It is written after the commit, asked once for a batch of deliveries, and never waited for: without it, all goes on.
What is noted holds for one state of one database. A database that was restored to an earlier state has lost what the
notes speak of, so they carry

database     cluster, database and table
state        when its server was started, and the table's file: a restored copy has to be started, a truncated table has
             another file
generation   changes when the database's transactions count lower than they did: then it went back all the same
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol, TypeVar

from pillarbox.errors import PillarboxError, StoreUnavailable
from pillarbox.inbox.outage import Outage
from pillarbox.inbox.received import Received
from pillarbox.inbox.statements import Texts
from pillarbox.inbox.steps import Program
from pillarbox.telemetry.hooks import Hooks, Moment

R = TypeVar("R")
FRESH = 0.25
"""How many seconds it is believed that the database is still the one it was, unless it was away meanwhile."""
CHECK_EVERY = 2.0
Where = tuple[str, str, str]
"""Where notes are: database, generation, state."""


class Hint(Protocol):
    """Keeps the notes. Everything may be lost at any time; each call answers in a moment, or raises a PillarboxError.

    `note` may only be called for what is committed in the database that `where` speaks of.
    """

    async def last(self, database: str) -> tuple[str, int]:
        """Give the generation of a database's notes, which is new if there is none, and its highest transaction."""

    async def see(self, database: str, transaction: int) -> None:
        """Keep the highest transaction of a database."""

    async def drop(self, database: str, transaction: int) -> str:
        """Begin a new generation, so that nothing noted before is known; give it."""

    async def known(self, where: Where, keys: Sequence[str]) -> set[str]:
        """Say which of these are noted; none if there is another generation by now."""

    async def note(self, where: Where, keys: Sequence[str]) -> None:
        """Note what was handled."""

    async def close(self) -> None:
        """Let go of what is open."""


class Stand(NamedTuple):
    """Which database this is, in which state, and how far its transactions count."""

    database: str
    state: str
    transaction: int


def stand(texts: Texts) -> Program[Stand]:
    """Look which database this is."""
    ((named,),) = yield texts("names_cluster")
    ((cluster, database, table, file, started, transaction),) = yield texts("stand_named" if named else "stand")
    return Stand(_digest(cluster, database, table, texts.consumer), _digest(file, started), int(transaction))


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


class Hinting:
    """What a consumer does with its hint. `look` performs a program in the database; `store` knows when that was away.
    Whatever goes wrong with the hint, there is none for a while, and nobody else hears of it but the hooks."""

    def __init__(
        self,
        hint: Hint,
        texts: Callable[[], Texts],
        look: Callable[[Program[Stand]], Awaitable[Stand]],
        store: Outage,
        hooks: Hooks,
    ) -> None:
        self._hint, self._texts, self._look, self._store, self._hooks = hint, texts, look, store, hooks
        self._outage = Outage(hooks, Moment.HINT_AWAY, Moment.HINT_BACK)
        self._fresh_until = self._check_at = 0.0
        self._times = 0
        self.where: Where | None = None
        """Where notes are kept at the moment, if that is known."""

    async def recognise(self, arrived: Sequence[Received]) -> None:
        """Mark what was handled before as known; and what is not, with where it may be noted later."""
        asked = [received for received in arrived if not (received.ignored or received.hopeless)]
        if not asked or not await self._ready():
            return
        where, times = self.where, self._times
        assert where is not None
        known = await self._ask(self._hint.known(where, [received.key for received in asked])) or ()
        for received in asked:
            received.where = where
            if received.key in known:
                received.known = times

    def place(self, parked: Iterable[Received]) -> None:
        """Mark what comes out of the parking lot with where it may be noted; nobody asks the hint about it."""
        for received in parked:
            received.where = self.where

    async def note(self, settled: Iterable[Received]) -> None:
        """Note what was handled and committed. What came before the database changed is noted where it was then."""
        if self._outage.pause:
            return
        keys: dict[Where, list[str]] = defaultdict(list)
        for received in settled:
            if received.applied and received.where is not None:
                keys[received.where].append(received.key)
        for where, its in keys.items():
            await self._ask(self._hint.note(where, its))

    async def close(self) -> None:
        """Let go of it."""
        await self._hint.close()

    async def _ready(self) -> bool:
        """Make sure that the database is the one that the notes speak of."""
        if self._outage.pause or self._store.error:
            return False
        now, times = asyncio.get_running_loop().time(), self._store.times
        if self.where is not None and now < self._fresh_until and times == self._times:
            return True
        try:
            found = await self._look(stand(self._texts()))
            if self.where is None or self.where[::2] != found[:2] or now >= self._check_at:
                self.where = await self._check(found)
                self._check_at = now + CHECK_EVERY
        except StoreUnavailable:
            self.where = None
        self._fresh_until, self._times = now + FRESH, times
        return self.where is not None

    async def _check(self, found: Stand) -> Where | None:
        """Find out whether the database went back; give where notes are kept now."""
        database, state, transaction = found
        last = await self._ask(self._hint.last(database))
        if last is None:
            return None
        generation, seen = last
        if transaction < seen:  # or somebody else has looked after us, and told it before
            transaction = (await self._look(stand(self._texts()))).transaction
        if transaction < seen:
            new = await self._ask(self._hint.drop(database, transaction))
            if new is not None:
                self._hooks.reach(Moment.HINT_DROPPED, seen=seen, found=transaction)
            return None if new is None else (database, new, state)
        if transaction > seen:
            await self._ask(self._hint.see(database, transaction))
        return database, generation, state

    async def _ask(self, question: Awaitable[R]) -> R | None:
        """Ask the hint; None if it does not answer, and then it is left alone for a while."""
        try:
            answer = await question
        except PillarboxError as error:
            self._outage.struck(error)
            self.where = None
            return None
        self._outage.over()
        return answer
