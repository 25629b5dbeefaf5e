"""How a Redis keeps what it has: asked with CONFIG GET, which some servers do not answer."""

from collections.abc import Sequence

from pillarbox.brokers.redis.options import Options
from pillarbox.brokers.redis.wire import HANDSHAKE, Wire, packed
from pillarbox.facts import RedisFacts

PATIENCE = HANDSHAKE + 1
"""Seconds in which the server must answer."""
_NAMES = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")


class RedisLooking:
    """Asks for the server's settings."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def __call__(self, topics: Sequence[str]) -> RedisFacts:
        wire = Wire(self._options)
        try:
            answers = await wire.ask([packed("CONFIG", "GET", name) for name in _NAMES], len(_NAMES), PATIENCE)
        finally:
            await wire.finish()
        appendonly, appendfsync, maxmemory, policy = (_value(answer) for answer in answers)
        return RedisFacts(
            durable=self._options.durable,
            appendonly=appendonly,
            appendfsync=appendfsync,
            maxmemory=None if maxmemory is None else int(maxmemory),
            maxmemory_policy=policy,
        )


def _value(answer: object) -> str | None:
    return str(answer[1].decode()) if isinstance(answer, list) and len(answer) == 2 else None
