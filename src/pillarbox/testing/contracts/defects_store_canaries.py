"""Stores that lose sight of their canary."""

from dataclasses import replace
from typing import Any

from pillarbox.core.event import Event
from pillarbox.ports import CanarySeen, Query, Stats
from pillarbox.testing.contracts.store_defect import StoreDefect, into
from pillarbox.testing.memory_records import MemoryStore

DEFECTS: list[StoreDefect] = []
breaks = into(DEFECTS)


@breaks("test_without_a_canary_none_is_seen")
class TakesAnyEventForACanary(MemoryStore):
    async def stats(self) -> Stats:
        newest = await self.find(Query(limit=1))
        seen = [CanarySeen(one.event_id, one.created_at, one.status) for one in newest]
        return replace(await super().stats(), canary=next(iter(seen), None))


@breaks("test_a_canary_comes_out_as_any_event_does", "test_people_see_what_has_become_of_the_canary")
class NotesACanaryAndSendsNone(MemoryStore):
    async def add_canary(self, event: Event[Any]) -> None:
        self.database.canary = str(event.id), self.database.clock.now()


@breaks("test_people_see_what_has_become_of_the_canary", "test_of_several_canaries_the_newest_is_seen")
class TakesWhatWasAddedForPublished(MemoryStore):
    async def _canary(self) -> CanarySeen | None:
        seen = await super()._canary()
        return seen and replace(seen, status="published")


@breaks("test_people_see_why_the_canary_died")
class KeepsTheReasonToItself(MemoryStore):
    async def _canary(self) -> CanarySeen | None:
        seen = await super()._canary()
        return seen and replace(seen, error=None)


@breaks("test_of_several_canaries_the_newest_is_seen")
class RemembersTheFirstCanary(MemoryStore):
    async def add_canary(self, event: Event[Any]) -> None:
        first = self.database.canary
        await super().add_canary(event)
        self.database.canary = first or self.database.canary


@breaks("test_a_canary_that_was_pruned_was_published")
class ForgetsACanaryThatWasPruned(MemoryStore):
    async def _canary(self) -> CanarySeen | None:
        seen = await super()._canary()
        return seen if seen and await self.find(Query(ids=(seen.event_id,))) else None
