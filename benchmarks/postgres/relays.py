"""Relays in processes of their own, that count what they have settled; without a broker, publishing is free."""

from benchmarks.postgres import shop
from pillarbox.bench import drain as bench
from servers.postgres import RunningPostgres


def drain(url: str, until: int, broker: str | None = None) -> float:
    """Let one relay settle the first `until` events; give events a second since it took its lanes."""
    return bench.drain(shop.place_at(url, broker), until).rate


def drain_together(server: RunningPostgres, relays: int, count: int, broker: str | None = None) -> float:
    """Let relays that have shared the lanes settle everything; give events a second, all of them together."""
    with shop.database(server) as url:
        return bench.drain_together(shop.place_at(url, broker), relays, count, lambda: shop.fill(url, count)).rate
