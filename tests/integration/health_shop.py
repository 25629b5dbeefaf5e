"""A shop in an SQLite file with daemons that serve their health, and a client that asks them over real HTTP."""

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from pillarbox import Event, Relay, Settings
from pillarbox.dbapi import Outbox
from pillarbox.settings import HealthSettings
from pillarbox.stores.sqlite.schema import Tables
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from servers.process import free_port


class Moments:
    """Listens, and can be waited on."""

    def __init__(self) -> None:
        self._reached: dict[Moment, int] = {}
        self._news = asyncio.Event()

    def __call__(self, moment: Moment, facts: Facts) -> None:
        self._reached[moment] = self._reached.get(moment, 0) + 1
        self._news.set()

    async def until(self, moment: Moment, times: int = 1) -> None:
        async with asyncio.timeout(20):
            while self._reached.get(moment, 0) < times:
                self._news.clear()
                await self._news.wait()


class HealthShop:
    """An outbox with tables, and a port that is free."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "shop.db"
        self.port = free_port()
        self.database = f"sqlite:///{self.file}"
        self.moments = Moments()
        connection = sqlite3.connect(self.file)
        connection.isolation_level = None
        Tables(str(self.file), "pillarbox_").up(connection)
        connection.close()

    def settings(self, *, oldest_pending: timedelta = timedelta(minutes=5), database: str | None = None) -> Settings:
        health = HealthSettings(listen=f"127.0.0.1:{self.port}", oldest_pending=oldest_pending)
        return Settings(database=database or self.database, health=health)

    def relay(self, publish: Callable[..., Any], settings: Settings | None = None) -> Relay:
        """Make a relay that tells us its moments."""
        return Relay(settings or self.settings(), publish=publish, hooks=Hooks(self.moments))

    def add(self, *events: Event[Any]) -> None:
        connection = sqlite3.connect(self.file)
        with connection:
            Outbox().add(connection, *events)
        connection.close()

    async def get(self, path: str, method: str = "GET") -> httpx.Response:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=10) as client:
            return await client.request(method, path)

    async def metrics(self) -> dict[str, float]:
        """Scrape, and give each sample under its name and labels."""
        answer = await self.get("/metrics")
        assert answer.status_code == 200, answer.text
        return {
            sample.name + "".join(f"{{{name}={value}}}" for name, value in sample.labels.items()): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }


async def nowhere(messages: list[Any]) -> None:
    """Publish, and keep nothing."""


def placed(number: int = 1) -> Event[Any]:
    return Event("OrderPlaced", {"order": number}, aggregate=("order", number))
