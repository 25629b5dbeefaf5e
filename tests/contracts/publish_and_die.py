"""Publishes from a process that is killed as soon as everything is acknowledged: a function, and the process itself."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pillarbox.core.message import Message
from pillarbox.settings import RelaySettings, Settings
from pillarbox.telemetry.hooks import Hooks
from pillarbox.wiring import SystemClock, _publisher


async def publish_and_die(broker: str, messages: Sequence[Message], **options: Any) -> None:
    """Publish messages, whose bodies are text, to the broker at a URL."""
    sent = json.dumps([[*message[:3], message.body.decode(), message.ticket] for message in messages])
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, broker, json.dumps(options), sent)
    assert await process.wait() == -signal.SIGKILL


async def main(broker: str, options: dict[str, Any], sent: list[Any]) -> None:
    settings = Settings(broker=broker, options=options, relay=RelaySettings(publish_timeout=timedelta(seconds=10)))
    publisher = _publisher(settings, None, SystemClock(), Hooks())()
    publisher.send([Message(topic, key, headers, body.encode(), n) for topic, key, headers, body, n in sent])
    waiting = len(sent)
    while waiting:
        waiting -= sum(outcome.error is None for outcome in await publisher.outcomes())
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])))
