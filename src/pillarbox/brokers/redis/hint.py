"""The inbox's hint in Redis: notes of what was handled, which expire. Whatever the server does, only time is lost.

pillarbox:hint:<database>:generation                    a word that nobody has used before
pillarbox:hint:<database>:transaction                   the highest one that was seen
pillarbox:hint:<database>:<generation>:<state>:<key>    this event was handled
"""

import asyncio
import secrets
from collections.abc import Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pillarbox.brokers.redis.options import Options, read_options
from pillarbox.brokers.redis.wire import HANDSHAKE, Wire, is_error, meaning, packed
from pillarbox.errors import BrokerUnavailable, ConfigError, PillarboxError

LONGEST = timedelta(days=1)
"""How long a note is kept at most."""
PATIENCE = 0.05
"""How long an answer is waited for, in seconds: about as long as the look-ups take that it could save."""
LONG_KEY = 64
"""Of a longer key, its digest is noted."""
_PREFIX = "pillarbox:hint:"


def read_hint(url: str) -> Options:
    """Take the setting's URL apart; raise ConfigError, without a word of what may be a secret."""
    try:
        options = read_options(url, {})
    except ConfigError as error:
        raise _ours(error) from None
    for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if not name.startswith("ssl_") and name != "unsafe":
            raise ConfigError(f"inbox.hint: {name} is an option of the broker, and means nothing here: leave it out")
    return options


class RedisHint:
    """Keeps an inbox's hints in Redis, each for as long as `kept` says."""

    def __init__(self, options: Options, kept: timedelta = LONGEST, patience: float | None = None) -> None:
        self._options, self._patience = options, PATIENCE if patience is None else patience
        self._seconds = max(1, int(kept.total_seconds()))
        self._wire = Wire(options)
        self._opening: asyncio.Task[list[Any]] | None = None

    async def last(self, database: str) -> tuple[str, int]:
        """Give the generation of a database's notes, which is new if there is none, and its highest transaction."""
        generation = f"{_PREFIX}{database}:generation"
        _, found, _, transaction = await self._ask(
            packed("SET", generation, secrets.token_hex(8), "NX", "EX", self._memory),
            packed("GET", generation),
            packed("EXPIRE", generation, self._memory),
            packed("GET", f"{_PREFIX}{database}:transaction"),
        )
        if found is None:
            raise BrokerUnavailable(f"Redis at {self._options.address} has forgotten at once what it was to keep")
        return found.decode(), int(transaction or 0)

    async def see(self, database: str, transaction: int) -> None:
        """Keep the highest transaction of a database."""
        await self._ask(packed("SET", f"{_PREFIX}{database}:transaction", transaction, "EX", self._memory))

    async def drop(self, database: str, transaction: int) -> str:
        """Begin a new generation, so that nothing noted before is known; give it."""
        generation = secrets.token_hex(8)
        # In this order: if the second one is lost, the database is found to have gone back once more.
        await self._ask(
            packed("SET", f"{_PREFIX}{database}:generation", generation, "EX", self._memory),
            packed("SET", f"{_PREFIX}{database}:transaction", transaction, "EX", self._memory),
        )
        return generation

    async def known(self, where: tuple[str, str, str], keys: Sequence[str]) -> set[str]:
        """Say which of these are noted; none if there is another generation by now."""
        database, generation, _ = where
        names = [_name(where, key) for key in keys]
        ((now, *found),) = await self._ask(packed("MGET", f"{_PREFIX}{database}:generation", *names))
        if now is None or now.decode() != generation:
            return set()
        return {key for key, note in zip(keys, found, strict=True) if note is not None}

    async def note(self, where: tuple[str, str, str], keys: Sequence[str]) -> None:
        """Note what was handled."""
        await self._ask(*(packed("SET", _name(where, key), 1, "EX", self._seconds) for key in keys))

    async def close(self) -> None:
        """Leave the server."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening})
        await self._wire.finish()

    @property
    def _memory(self) -> int:
        """How long is kept what the notes hang on: longer than they are."""
        return 2 * self._seconds

    async def _ask(self, *commands: bytes) -> list[Any]:
        try:
            if self._opening is not None or not self._wire.is_open:
                await self._open()
            answers = await self._wire.ask(commands, len(commands), self._patience)
        except (BrokerUnavailable, ConfigError) as error:
            raise _ours(error) from error
        for answer in answers:
            if is_error(answer):
                raise _ours(meaning(answer, self._options)) from answer
        return answers

    async def _open(self) -> None:
        """Open the connection beside everything else: to be let in may take longer than anybody waits here."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._wire.ask([packed("PING")], 1, HANDSHAKE + 1), name="hint")
        done, _ = await asyncio.wait({self._opening}, timeout=self._patience)
        if not done:
            raise BrokerUnavailable(f"Redis at {self._options.address} has not let us in yet")
        opening, self._opening = self._opening, None
        opening.result()


def _name(where: tuple[str, str, str], key: str) -> str:
    short = key if len(key) <= LONG_KEY else blake2b(key.encode(), digest_size=24).hexdigest()
    return f"{_PREFIX}{':'.join(where)}:{short}"


def _ours(error: PillarboxError) -> PillarboxError:
    """Say it of the setting that it is about."""
    if isinstance(error, BrokerUnavailable):
        return BrokerUnavailable(str(error).replace("in the broker's URL", "in inbox.hint"))
    if not isinstance(error, ConfigError):
        return error
    words = str(error).replace("broker:", "inbox.hint:", 1)
    return ConfigError(words if words.startswith("inbox.hint") else f"inbox.hint: {words}")
