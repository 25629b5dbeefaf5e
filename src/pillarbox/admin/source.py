"""The source: who carries the events of an outbox, relays or the reader of a replication slot, and the change of it."""

from pillarbox.admin.admin import Admin
from pillarbox.ports import Clock, WatchingStore


class SourceAdmin(Admin):
    """An admin service that can also hand the events over to somebody else, and take them back."""

    def __init__(self, store: WatchingStore, who: str, clock: Clock) -> None:
        super().__init__(store, who, clock)
        self._watching = store

    async def watch_slot(self, name: str) -> None:
        """Let the reader of a replication slot carry the events from now on."""
        await self._watching.watch_slot(name)

    async def unwatch(self) -> None:
        """Let relays carry the events again, from where that reader was."""
        await self._watching.unwatch()
