"""The near end: what is sent goes out in order, one MULTI/EXEC and one round trip per batch."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from pillarbox.brokers.redis.entries import fields_of
from pillarbox.brokers.redis.options import read_options
from pillarbox.brokers.redis.wire import Wire, is_error, meaning, packed, words
from pillarbox.brokers.sends import Send, Sends
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, ConfigError, PublishError, PublishRejected
from pillarbox.ports import Outcome
from pillarbox.telemetry.hooks import Hooks, Moment

LARGEST_TRANSACTION = 8 << 20
"""About so many bytes go in one transaction: the server holds all of them until EXEC."""
MOST_AT_ONCE = 10_000

_MULTI, _EXEC = packed("MULTI"), packed("EXEC")
_FACTS = (packed("CONFIG", "GET", "proto-max-bulk-len"), packed("CONFIG", "GET", "maxmemory-policy"))
_ON_DISK = packed("WAITAOF", 1, 0, 1)
_logger = logging.getLogger("pillarbox")


class Order(NamedTuple):
    """A message on its way: its send, itself, and its XADD as the server reads it."""

    send: Send
    message: Message
    command: bytes

    @property
    def line(self) -> tuple[int, str, str] | None:
        """What must stay in order: of one send, a key in its topic."""
        topic, key, *_ = self.message
        return None if key is None else (id(self.send), topic, key)


class RedisPublisher:
    """Adds entries to streams. Published means: the server returned the entry's id, and with `durable` it is on disk.

    Prefix-safe: a batch is one transaction, which is executed as a whole or not at all. What the server refuses when it
    is queued aborts the transaction, and it is sent again without that and what stands behind it in its line; what is
    refused when it is executed is refused for its whole stream.
    """

    prefix_safe = True

    def __init__(
        self, url: str, *, options: Mapping[str, Any] | None = None, publish_timeout: timedelta, hooks: Hooks
    ) -> None:
        self._options, self._hooks = read_options(url, options or {}), hooks
        self._wire = Wire(self._options)
        self._sends = Sends(publish_timeout)
        self._waiting: deque[Send] = deque()
        self._carrying: asyncio.Task[None] | None = None
        self._largest = self._options.largest_value
        self._trim: tuple[str, ...] = ("MAXLEN", "~", str(self._options.maxlen)) if self._options.maxlen else ()
        self._waits_for_disk = self._options.durable
        self._told_of_no_disk = False

    def send(self, messages: Sequence[Message]) -> None:
        self._waiting.append(self._sends.begin(messages))
        if self._carrying is None or self._carrying.done():
            self._carrying = asyncio.create_task(self._carry(), name="publisher of redis")

    async def outcomes(self) -> Sequence[Outcome]:
        return await self._sends.outcomes()

    async def close(self) -> None:
        if self._carrying is not None:
            self._carrying.cancel()
            await asyncio.wait([self._carrying])
        await self._wire.finish()
        self._sends.fail_all(BrokerUnavailable("closed before Redis answered; it may or may not have arrived"))

    async def _carry(self) -> None:
        """Store what waits until nothing does; what fails as a whole fails as a whole."""
        while self._waiting:
            sends = list(self._gather())
            try:
                async with asyncio.timeout_at(min((send.deadline for send in sends), default=None)):
                    await self._store(sends)
            except TimeoutError:
                pass  # the deadline itself answers, and the connection is closed
            except PublishError as error:
                if isinstance(error, BrokerUnavailable):
                    await self._wire.close()  # a former primary keeps us; the address may lead to the new one by now
                for send in sends:
                    self._sends.fail(send, error)
            except Exception as error:  # noqa: BLE001 - settings that are wrong, or our own fault: no retry cures it
                self._sends.die(error)
                return

    def _gather(self) -> Iterator[Send]:
        """Take the sends that wait; those whose time is over have been answered."""
        count, now = 0, asyncio.get_running_loop().time()
        while self._waiting and count < MOST_AT_ONCE:
            send = self._waiting.popleft()
            if send.deadline > now:
                count += len(send.messages)
                yield send

    async def _store(self, sends: Sequence[Send]) -> None:
        if not self._wire.is_open:
            await self._meet()
        refused: list[tuple[Order, PublishError]] = []
        for orders in self._transactions(sends, refused):
            await self._transact(orders, refused)
        self._answer(refused)

    async def _meet(self) -> None:
        """Open the connection and ask for what must be known before anything is sent."""
        self._waits_for_disk = self._options.durable  # it may be another server than the last time, or a newer one
        asked = (*_FACTS, _ON_DISK) if self._waits_for_disk else _FACTS
        facts = await self._wire.ask(asked, len(asked))
        largest, policy = map(_value, facts[: len(_FACTS)])
        self._largest = min(self._options.largest_value, int(largest or self._options.largest_value))
        # A server that cannot wait for its disk says so here: after a batch, that would be stored at every try.
        self._check_waits(facts[-1])
        if policy.startswith("allkeys"):
            _logger.warning(
                "Redis at %s may evict whole streams when its memory is full (maxmemory-policy is %s): published "
                "events would be lost; set it to noeviction",
                self._options.address,
                policy,
            )

    def _transactions(self, sends: Iterable[Send], refused: list[tuple[Order, PublishError]]) -> Iterator[list[Order]]:
        """Cut what was sent into transactions, in order; what can never be sent is put aside with all behind it."""
        orders: list[Order] = []
        held: set[tuple[int, str, str]] = set()
        size = 0
        for send in sends:
            for message in send.messages:
                order, error = self._order(send, message)
                if orders and size + len(order.command) > LARGEST_TRANSACTION:
                    yield orders
                    orders, size = [], 0
                    held.update(line for refusal, _ in refused if (line := refusal.line) is not None)
                # Looked at after the cut: what was refused before it may stand in front of this one.
                if held and order.line in held:
                    error = _held_back(order)
                if error is not None:
                    refused.append((order, error))
                    if order.line is not None:
                        held.add(order.line)
                    continue
                orders.append(order)
                size += len(order.command)
        if orders:
            yield orders

    def _order(self, send: Send, message: Message) -> tuple[Order, PublishError | None]:
        try:
            fields = fields_of(message)
            command = packed("XADD", message.topic, *self._trim, "*", *fields)
        except UnicodeEncodeError as error:
            return Order(send, message, b""), PublishRejected(f"event {_id(message)}: its text is no UTF-8: {error}")
        if len(command) > self._largest and (longest := max(map(_size, fields))) > self._largest:
            why = f"a value of {longest} bytes, and the server takes {self._largest} (proto-max-bulk-len)"
            return Order(send, message, b""), PublishRejected(f"event {_id(message)} is too large: {why}")
        return Order(send, message, command), None

    async def _transact(self, orders: list[Order], refused: list[tuple[Order, PublishError]]) -> None:
        """Store orders in one transaction; if some are refused while they are queued, store the others."""
        while orders:
            commands = [_MULTI, *(order.command for order in orders), _EXEC]
            if self._waits_for_disk:
                commands.append(self._wait_for_disk(orders[0].send.deadline))
            begun, *queued = await self._wire.ask(commands, len(commands))
            on_disk = queued.pop() if self._waits_for_disk else None
            done = queued.pop()
            if not is_error(done):
                self._check_disk(on_disk)
                self._note(orders, done, refused)
                return
            orders = self._without_refused(orders, [begun, *queued, done], refused)

    def _note(self, orders: Sequence[Order], done: Sequence[Any], refused: list[tuple[Order, PublishError]]) -> None:
        """Hand the answers of a transaction that was executed to the loop."""
        self._hooks.reach(Moment.STORED_BY_BROKER, count=len(orders))
        accepted: dict[Send, list[Outcome]] = {}
        for order, answer in zip(orders, done, strict=True):
            if answer.__class__ is bytes:
                accepted.setdefault(order.send, []).append(Outcome(order.message.ticket, None))
            else:
                refused.append((order, self._refusal(answer, order)))
        for send, outcomes in accepted.items():
            self._sends.answer(send, outcomes)

    def _without_refused(
        self, orders: list[Order], answers: Sequence[Any], refused: list[tuple[Order, PublishError]]
    ) -> list[Order]:
        """Put aside what aborted the transaction and what stands behind it; raise what is nobody's fault."""
        begun, *queued, done = answers
        if is_error(begun) or not any(map(is_error, queued)):
            raise meaning(begun if is_error(begun) else done, self._options)
        rest: list[Order] = []
        held: set[tuple[int, str, str] | None] = set()
        for order, answer in zip(orders, queued, strict=True):
            if is_error(answer):
                refused.append((order, self._refusal(answer, order)))
            elif order.line is None or order.line not in held:
                rest.append(order)
                continue
            else:
                refused.append((order, _held_back(order)))
            held.add(order.line)
        return rest

    def _refusal(self, answer: BaseException, order: Order) -> PublishError:
        """Say what an error means for one message; raise it if it is about more than that."""
        error = meaning(answer, self._options)
        if isinstance(error, ConfigError | BrokerUnavailable):
            raise error from answer
        named = type(error)(f"event {_id(order.message)} for {order.message.topic!r}: {error}")
        named.__cause__ = answer
        return named

    def _answer(self, refused: Iterable[tuple[Order, PublishError]]) -> None:
        """Hand over the refusals; of a line only the first is one, the others stand behind it."""
        lines: set[tuple[int, str, str]] = set()
        for order, error in refused:
            line = order.line
            if line is not None and line in lines:
                error = _held_back(order)
            elif line is not None:
                lines.add(line)
            self._sends.answer(order.send, [Outcome(order.message.ticket, error)])

    def _wait_for_disk(self, deadline: float) -> bytes:
        left = deadline - asyncio.get_running_loop().time()
        # A little less than there is: the answer still has to come back.
        return packed("WAITAOF", 1, self._options.replicas, max(1, int(left * 900)))

    def _check_disk(self, answer: Any) -> None:
        """Raise BrokerUnavailable unless the server says that the batch is on disk."""
        self._check_waits(answer)
        if self._waits_for_disk and (answer[0] < 1 or answer[1] < self._options.replicas):
            raise BrokerUnavailable(
                f"Redis at {self._options.address} has it in memory, but not on disk in time: {answer[0]} of 1 here, "
                f"{answer[1]} of {self._options.replicas} on replicas"
            )

    def _check_waits(self, answer: Any) -> None:
        """Raise what keeps the server from waiting for its disk; do without where it has no WAITAOF."""
        if not self._waits_for_disk:
            return
        said = words(answer) if is_error(answer) else ""
        if said.startswith("unknown command"):
            self._waits_for_disk = False
            self._tell_of_no_disk()
        elif "appendonly is disabled" in said:
            raise BrokerUnavailable(
                f"redis.durable: Redis at {self._options.address} says: {said}; set appendonly yes there"
            )
        elif said:
            raise meaning(answer, self._options)
        else:
            self._told_of_no_disk = False

    def _tell_of_no_disk(self) -> None:
        if not self._told_of_no_disk:
            self._told_of_no_disk = True
            _logger.warning(
                "redis.durable: the server at %s has no WAITAOF (Redis 7.2 or Valkey has), so published means in its "
                "memory, and its restart may lose it; set appendonly yes and appendfsync always there, or run a newer "
                "one",
                self._options.address,
            )


def _id(message: Message) -> str:
    return message.headers.get("id") or message.headers.get("ce_id") or "without an id"


def _held_back(order: Order) -> PublishError:
    return PublishError(f"held back: an earlier message of the key {order.message.key!r} was refused")


def _size(field: str | bytes) -> int:
    return len(field if isinstance(field, bytes) else field.encode())


def _value(answer: Any) -> str:
    """Read what CONFIG GET answered; a server that does not tell has nothing to say."""
    return str(answer[1].decode()) if isinstance(answer, list) and len(answer) == 2 else ""
