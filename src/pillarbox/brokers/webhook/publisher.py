"""The near end of webhooks: a bounded number of workers call the endpoint, never two for one topic and key at once."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import NamedTuple

from pillarbox.brokers.webhook.answers import judge, pause
from pillarbox.brokers.webhook.breaks import Breaks
from pillarbox.brokers.webhook.client import Answer, Broken, Client, Unreachable
from pillarbox.brokers.webhook.options import WebhookOptions
from pillarbox.brokers.webhook.signature import sign
from pillarbox.brokers.webhook.wire import id_of, pack
from pillarbox.core.message import Message
from pillarbox.core.retry import brief_of, words_of
from pillarbox.errors import BrokerUnavailable, PublishError, PublishTimeout
from pillarbox.ports import Outcome


class _Send:
    """What the messages of one send have in common: whether one of them was acknowledged."""

    __slots__ = ("acknowledged",)

    def __init__(self) -> None:
        self.acknowledged = False


class _Call:
    """A message that is to be posted."""

    __slots__ = ("began", "message", "send")

    def __init__(self, message: Message, send: _Send) -> None:
        self.message, self.send, self.began = message, send, 0.0

    @property
    def line(self) -> tuple[str, str] | None:
        """What it must not overtake, and must not be overtaken by."""
        return None if self.message.key is None else (self.message.topic, self.message.key)


class _Result(NamedTuple):
    """What has become of a call. `absent`: nobody else need try now, for the endpoint is away or wants a pause; that a
    connection broke in mid-call does not say so, for one event may be at fault."""

    error: PublishError | None
    absent: bool = False


class WebhookPublisher:
    """Posts each message to the endpoint, signed; a 2xx answer means published.

    A call has the publish timeout for itself. What waits for its turn waits as long as the endpoint answers the others;
    once it turns out to be away, all that waits is answered at once, and nothing of it was sent.
    """

    # What follows a message that failed is posted all the same, so the relay sends one of an aggregate at a time.
    prefix_safe = False

    def __init__(self, options: WebhookOptions, *, publish_timeout: timedelta) -> None:
        self._client, self._options = Client(options), options
        self._timeout = publish_timeout.total_seconds()
        self._ready: deque[_Call] = deque()
        self._lines: dict[tuple[str, str], deque[_Call]] = {}
        self._flying: dict[_Call, None] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._outcomes: list[Outcome] = []
        self._news = asyncio.Event()
        self._newest_acknowledged = 0.0
        self._breaks = Breaks()
        self._pause: PublishError | None = None
        self._paused_until = 0.0
        self._closed = False

    def send(self, messages: Sequence[Message]) -> None:
        send = _Send()
        for message in messages:
            self._queue(_Call(message, send))
        if self._closed:
            self._fail_waiting(BrokerUnavailable("closed: make a new one"))
        for _ in range(min(len(self._ready), self._options.connections - len(self._workers))):
            worker = asyncio.create_task(self._work(), name=f"call {self._options.origin}")
            self._workers.add(worker)

    async def outcomes(self) -> Sequence[Outcome]:
        while not self._outcomes:
            self._news.clear()
            await self._news.wait()
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    async def close(self) -> None:
        self._closed = True
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers)
        error = BrokerUnavailable("closed before the endpoint answered; it may or may not have arrived")
        for call in list(self._flying):
            self._end(call, error)
        self._fail_waiting(error)
        await self._client.close()

    def _queue(self, call: _Call) -> None:
        line = call.line
        if line is None:
            self._ready.append(call)
        elif line in self._lines:
            self._lines[line].append(call)
        else:
            self._lines[line] = deque()
            self._ready.append(call)

    async def _work(self) -> None:
        """Make one call after the other while there are some."""
        try:
            while self._ready:
                call = self._ready.popleft()
                self._flying[call] = None
                result = await self._answered_for(call)
                self._end(call, result.error)
                if result.absent:
                    self._fail_waiting(result.error)
        finally:
            self._workers.discard(asyncio.current_task())

    def _end(self, call: _Call, error: PublishError | None) -> None:
        """Tell what has become of a call, and let the next one of its line go."""
        del self._flying[call]
        if error is None:
            call.send.acknowledged = True
            self._newest_acknowledged = max(self._newest_acknowledged, call.began)
        self._outcomes.append(Outcome(call.message.ticket, error))
        self._news.set()
        line = call.line
        if line is not None:
            if behind := self._lines[line]:
                self._ready.append(behind.popleft())
            else:
                del self._lines[line]

    def _fail_waiting(self, error: PublishError | None) -> None:
        """Give everything that was not sent the same answer."""
        waiting = list(self._ready)
        self._ready.clear()
        for line in [call.line for call in waiting if call.line is not None]:
            waiting += self._lines.pop(line)
        for behind in self._lines.values():
            waiting += behind
            behind.clear()
        self._outcomes += [Outcome(call.message.ticket, error) for call in waiting]
        if waiting:
            self._news.set()

    async def _answered_for(self, call: _Call) -> _Result:
        """Make one call and say what has become of it, whatever is raised: the relay would wait for ever."""
        try:
            return await self._make(call)
        except asyncio.CancelledError:
            if not self._closed:  # by somebody else: this worker ends, and nobody would take its place
                error = BrokerUnavailable("the call was broken off; it may or may not have arrived")
                self._end(call, error)
                self._fail_waiting(error)
            raise
        except Exception as error:  # noqa: BLE001 - whatever a library raises is an answer
            raised = f"{self._options.origin}: {type(error).__name__}"
            return _Result(PublishError(f"{raised}: {self._options.quiet(words_of(error))}", brief=raised))

    async def _make(self, call: _Call) -> _Result:
        """Make one call and say what it means."""
        call.began = asyncio.get_running_loop().time()
        if call.began < self._paused_until:
            return _Result(self._pause, absent=True)
        message, now = call.message, time.time()
        id = id_of(message)
        headers = [*pack(message).items(), ("webhook-id", id), ("webhook-timestamp", str(int(now)))]
        if self._options.keys:
            headers.append(("webhook-signature", sign(self._options.keys, id, int(now), message.body)))
        try:
            answer = await self._client.post(headers, bytes(message.body), call.began + self._timeout)
        except TimeoutError:
            return self._late(call)
        except Unreachable as error:
            return _Result(BrokerUnavailable(str(error)), absent=True)
        except Broken as error:
            return self._broken(call, id, error)
        except PublishError as error:
            return _Result(error)
        if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:  # above, a proxy may speak for an endpoint that is away
            self._breaks.answered((message.topic, id), asyncio.get_running_loop().time())
        return self._judged(answer)

    def _broken(self, call: _Call, id: str, error: Broken) -> _Result:
        """Say what a connection that broke means; nobody else need wait, for this event may be at fault."""
        if self._breaks.broke((call.message.topic, id), asyncio.get_running_loop().time()):
            again = " (again on this event, while it answered others)"
            return _Result(PublishError(f"{error}{again}", brief=f"{brief_of(error)}{again}"))
        return _Result(BrokerUnavailable(str(error), brief=error.brief))

    def _judged(self, answer: Answer) -> _Result:
        seconds = pause(answer.status, answer.headers, datetime.now(UTC))
        error = judge(answer.status, answer.words, seconds)
        if error is not None and seconds:
            until = asyncio.get_running_loop().time() + seconds
            if until > self._paused_until:
                self._pause, self._paused_until = error, until
            return _Result(error, absent=True)
        return _Result(error)

    def _late(self, call: _Call) -> _Result:
        """Say what it means that the endpoint did not answer in time: whether it is away, or minds this very event."""
        words = f"{self._options.origin} did not answer within {self._timeout:g} s"
        if call.send.acknowledged or self._newest_acknowledged > call.began:
            return _Result(PublishTimeout(f"{words}, while it answered others"))
        return _Result(BrokerUnavailable(f"{words}; it is tried again by itself"), absent=True)
