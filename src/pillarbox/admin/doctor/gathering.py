"""Gathering: asks the database and the broker for what the checks want to know. What is away is a fact too."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from pillarbox.admin.doctor.finding import Facts
from pillarbox.core.secrets import quiet
from pillarbox.errors import BrokerUnavailable, ConfigError, StoreError
from pillarbox.facts import FactStore, Looking, PostgresFacts
from pillarbox.ports import Clock, Keeping, Query
from pillarbox.settings import Settings

NEWEST = 500
"""The topics of so many of the newest events are asked about."""


class Doctor:
    """Asks one outbox and one broker, either of which may not be there."""

    def __init__(
        self,
        settings: Settings,
        store: FactStore | None,
        keeping: Keeping | None,
        looking: Looking | None,
        clock: Clock,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._store, self._keeping, self._looking = store, keeping, looking

    async def gather(self, topics: Sequence[str] = ()) -> Facts:
        """Ask about these topics, or those that the settings name and that events went to lately."""
        facts = Facts(
            self._settings,
            self._clock.now(),
            topics=topics or sorted(self._settings.topics),
            unset=[name for name, is_set in self._ends().items() if not is_set],
        )
        if self._store is not None:
            facts = await self._ask_store(self._store, facts, known=not topics)
        return await self._ask_broker(facts)

    def _ends(self) -> dict[str, object]:
        return {"database": self._store, "broker": self._settings.broker or self._keeping or self._looking}

    async def _ask_store(self, store: FactStore, facts: Facts, *, known: bool) -> Facts:
        try:
            found = await store.facts()
            # What is written there has the database's time, and is judged by it.
            ahead = found.skew if isinstance(found, PostgresFacts) else timedelta(0)
            facts = replace(facts, store=found, now=self._clock.now() + ahead)
            if not found.readable:
                return facts
            await store.open()
            facts = replace(facts, stats=await store.stats(), now=self._clock.now() + ahead)
            if known:
                newest = {record.topic for record in await store.find(Query(limit=NEWEST))}
                facts = replace(facts, topics=sorted({*facts.topics, *newest}))
            return facts
        except (StoreError, ConfigError) as error:  # a server that lets nobody in finds fault with the settings
            return replace(facts, unread=quiet(str(error)))
        finally:
            await store.close()

    async def _ask_broker(self, facts: Facts) -> Facts:
        try:
            if self._keeping is not None:
                facts = replace(facts, kept=await self._keeping(facts.topics))
            if self._looking is not None:
                facts = replace(facts, broker=await self._looking(facts.topics))
            return facts
        except (BrokerUnavailable, ConfigError) as error:
            return replace(facts, away=quiet(str(error)).removesuffix("."))
