"""The doorbell: a connection that listens for NOTIFY, so that an idle relay need not wait for its next look.

Writers ring it only if they are told to (it costs them). Behind a pooler nobody can listen: the relay looks by itself.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg

from pillarbox.stores.postgres.connection import conninfo

AGAIN = 5.0
"""Seconds until a connection that broke is tried again: without it the relay only looks less often."""


class Doorbell:
    """Listens on one channel, from the first `listen` on."""

    def __init__(self, url: str, channel: str) -> None:
        self._conninfo, self._channel = conninfo(url, "pillarbox doorbell"), channel
        self._task: asyncio.Task[None] | None = None

    def listen(self, ring: Callable[[], None], *, direct: bool) -> None:
        """Begin to listen, if that is possible and not done yet."""
        if direct and self._task is None:
            self._task = asyncio.create_task(self._listen(ring), name="doorbell")

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _listen(self, ring: Callable[[], None]) -> None:
        while True:
            try:
                await self._hear(ring)
            except psycopg.Error:  # whoever reads says that the database is away
                await asyncio.sleep(AGAIN)

    async def _hear(self, ring: Callable[[], None]) -> None:
        connection: psycopg.AsyncConnection[Any]
        connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        async with connection:
            await connection.execute(f"LISTEN {self._channel}".encode())
            async for _ in connection.notifies():
                ring()
