"""The function broker: the user's own way out. A function is called with a list of messages."""

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from pillarbox.brokers.calls import Calls
from pillarbox.brokers.worker import Worker
from pillarbox.core.message import Message
from pillarbox.core.retry import place_of, words_of
from pillarbox.errors import PublishError
from pillarbox.ports import Outcome


class FunctionPublisher:
    """Calls `function` with a list of messages, one call at a time and in order.

    An async function is awaited; another one runs in a thread, so that it does not block the relay. If it returns, the
    messages are published. If it raises, the batch failed: a PublishError as what it says, anything else is counted and
    retried. If it does not return in time, the broker counts as away; a thread cannot be stopped, so a call that hangs
    keeps the later ones waiting until it returns or their own time is up too: order is kept.
    """

    # Not prefix-safe: a call that raised may have sent any part of its batch, and nobody can say which.
    prefix_safe = False

    def __init__(self, function: Callable[[list[Message]], Any], *, publish_timeout: timedelta) -> None:
        self._function = function
        self._worker = Worker("publish function")
        self._awaits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is as good
        )
        name = getattr(function, "__qualname__", type(function).__qualname__)
        self._name = f"the publish function {name}"
        self._calls = Calls(self._name, self._call, publish_timeout)

    def send(self, messages: Sequence[Message]) -> None:
        self._calls.send(messages)

    async def outcomes(self) -> Sequence[Outcome]:
        return await self._calls.outcomes()

    async def close(self) -> None:
        await self._calls.close()
        self._worker.stop()

    async def _call(self, messages: list[Message]) -> None:
        if self._awaits:
            await self._function(messages)
            return
        answer = await self._worker.do(lambda: self._in_thread(messages))
        if inspect.isawaitable(answer):
            await answer

    def _in_thread(self, messages: list[Message]) -> Any:
        try:
            return self._function(messages)
        except (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt) as error:
            # A future cannot carry the first, and the loop would end of the others.
            raised = f"{self._name} raised {type(error).__name__}"
            raise PublishError(
                f"{raised}: {words_of(error)}", brief=f"{raised}{place_of(error, self._function)}"
            ) from error
