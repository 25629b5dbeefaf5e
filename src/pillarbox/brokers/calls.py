"""Calls: a publisher's near end that calls something once per send, one call at a time, in order."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from pillarbox.brokers.sends import Send, Sends
from pillarbox.core.message import Message
from pillarbox.core.retry import place_of, words_of
from pillarbox.errors import BrokerUnavailable, PublishError
from pillarbox.ports import Outcome


class Calls:
    """Carries sends through `call`: it returns, and all are accepted, or it raises, and none is known to be."""

    def __init__(self, name: str, call: Callable[[list[Message]], Awaitable[None]], publish_timeout: timedelta) -> None:
        self._name, self._call, self._timeout = name, call, publish_timeout
        self._sends = Sends(publish_timeout)
        self._waiting: deque[Send] = deque()
        self._carrying: asyncio.Task[None] | None = None

    def send(self, messages: Sequence[Message]) -> None:
        """Queue messages for the next call."""
        self._waiting.append(self._sends.begin(messages))
        if self._carrying is None or self._carrying.done():
            self._carrying = asyncio.create_task(self._carry(), name=self._name)

    async def outcomes(self) -> Sequence[Outcome]:
        """Wait for answers."""
        return await self._sends.outcomes()

    async def close(self) -> None:
        """Stop waiting for the call that is under way, and make no other."""
        if self._carrying is not None:
            self._carrying.cancel()
            await asyncio.wait([self._carrying])
        self._sends.fail_all(BrokerUnavailable("closed before it was answered; it may or may not have arrived"))

    async def _carry(self) -> None:
        while self._waiting:
            send = self._waiting.popleft()
            if asyncio.get_running_loop().time() >= send.deadline:
                continue  # its deadline has answered for it while it waited behind another call
            error = await self._outcome(send)
            self._sends.answer(send, [Outcome(message.ticket, error) for message in send.messages])

    async def _outcome(self, send: Send) -> PublishError | None:
        """Make one call and say what it means; everything but our own cancellation is an answer."""
        deadline = asyncio.timeout_at(send.deadline)
        try:
            async with deadline:
                # The ticket is the relay's own mark and nobody else's.
                await self._call([message._replace(ticket=0) for message in send.messages])
        except PublishError as error:
            return error
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return self._failed(error)
        except (Exception, SystemExit, GeneratorExit) as error:  # whatever it raises fails the batch, never the relay
            if isinstance(error, GeneratorExit) and asyncio.current_task() is not self._carrying:
                raise  # nobody raised it: this coroutine is closed
            if deadline.expired():
                return BrokerUnavailable(f"{self._name} did not return within {self._timeout.total_seconds():g} s")
            return self._failed(error)
        return None

    def _failed(self, error: BaseException) -> PublishError:
        raised = f"{self._name} raised {type(error).__name__}"
        failure = PublishError(f"{raised}: {words_of(error)}", brief=f"{raised}{place_of(error)}")
        failure.__cause__ = error
        return failure
