"""How a Redis keeps what it has: asked with ROLE, INFO, COMMAND and CONFIG GET, which some servers do not answer."""

import re
from collections.abc import Sequence

from pillarbox.brokers.redis.options import Options
from pillarbox.brokers.redis.wire import HANDSHAKE, Wire, packed
from pillarbox.facts import RedisFacts

_WAITAOF_SINCE = (7, 2)
PATIENCE = HANDSHAKE + 1
"""Seconds in which the server must answer."""
_ROLE, _INFO, _WAITAOF = packed("ROLE"), packed("INFO", "server"), packed("COMMAND", "INFO", "WAITAOF")
_NAMES = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")


class RedisLooking:
    """Asks for the server's settings."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def __call__(self, topics: Sequence[str]) -> RedisFacts:
        wire = Wire(self._options)
        try:
            asked = [_ROLE, _INFO, _WAITAOF, *(packed("CONFIG", "GET", name) for name in _NAMES)]
            role, told, waitaof, *answers = await wire.ask(asked, len(asked), PATIENCE)
        finally:
            await wire.finish()
        appendonly, appendfsync, maxmemory, policy = (_value(answer) for answer in answers)
        return RedisFacts(
            durable=self._options.durable,
            appendonly=appendonly,
            appendfsync=appendfsync,
            maxmemory=None if maxmemory is None else int(maxmemory),
            maxmemory_policy=policy,
            replica=isinstance(role, list) and role[:1] == [b"slave"],
            replicas=len(role[2]) if isinstance(role, list) and role[:1] == [b"master"] else 0,
            awaited=self._options.replicas,
            maxlen=self._options.maxlen,
            version=_version(told),
            waitaof=_has_waitaof(waitaof, _version(told)),
        )


def _version(told: object) -> tuple[int, int] | None:
    """Read what INFO says; Valkey says which Redis it is like."""
    found = re.search(rb"redis_version:(\d+)\.(\d+)", told) if isinstance(told, bytes) else None
    return None if found is None else (int(found[1]), int(found[2]))


def _has_waitaof(answer: object, version: tuple[int, int] | None) -> bool | None:
    """Read what COMMAND INFO says; where it is refused, go by the version."""
    if isinstance(answer, list) and len(answer) == 1:
        return answer[0] is not None
    return None if version is None else version >= _WAITAOF_SINCE


def _value(answer: object) -> str | None:
    return str(answer[1].decode()) if isinstance(answer, list) and len(answer) == 2 else None
