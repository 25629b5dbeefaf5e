"""Streams for a run: they are there with their first entry, and are removed with their groups' bookkeeping."""

from collections.abc import Sequence

from pillarbox.brokers.redis.looking import PATIENCE
from pillarbox.brokers.redis.member import state_of
from pillarbox.brokers.redis.options import Options
from pillarbox.brokers.redis.wire import Wire, is_error, meaning, packed
from pillarbox.errors import ConfigError


class RedisTrial:
    """Removes streams."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def make(self, topics: Sequence[str], consumer: str) -> None:
        for there in await self._ask("EXISTS", topics):
            raise ConfigError(f"broker: a key {there} is there already, and is not ours")

    async def remove(self, topics: Sequence[str], consumer: str) -> None:
        await self._ask("DEL", [key for topic in topics for key in (topic, state_of(topic, consumer))])

    async def _ask(self, command: str, keys: Sequence[str]) -> list[str]:
        """Ask of each key, and give those of which the server says yes."""
        wire = Wire(self._options)
        try:
            answers = await wire.ask([packed(command, key) for key in keys], len(keys), PATIENCE)
        finally:
            await wire.finish()
        for answer in answers:
            if is_error(answer):
                raise meaning(answer, self._options)
        return [key for key, answer in zip(keys, answers, strict=True) if answer]
