"""The embedded broker's near end: a worker thread that appends what is sent, in durable transactions of some MB."""

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from pillarbox.brokers.partitions import partition_of
from pillarbox.brokers.sends import Send, Sends
from pillarbox.brokers.sqlite.file import broker_errors, check, check_still_there, connect, identity, now, transaction
from pillarbox.brokers.sqlite.retention import BATCH, prune
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected
from pillarbox.ports import Outcome
from pillarbox.telemetry.hooks import Hooks, Moment

MOST_AT_ONCE = 10_000
LARGEST_TRANSACTION = 8 << 20
"""About so many bytes of bodies are stored at once: a commit must not outlast the patience of those who wait."""
PRUNE_EVERY = 60.0
_APPEND = "INSERT INTO messages (topic, partition, key, headers, body, at) VALUES (?, ?, ?, ?, ?, ?)"
_json = json.JSONEncoder(separators=(",", ":")).encode

Row = tuple[str, int, str | None, str, bytes, int]


class _Order(NamedTuple):
    """A send on its way to the worker."""

    send: Send
    deadline: float
    loop: asyncio.AbstractEventLoop


class _Chunk:
    """What is stored in one transaction, and what its senders hear once it is."""

    __slots__ = ("answers", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.answers: list[tuple[_Order, list[Outcome]]] = []
        self.size = 0


class SqlitePublisher:
    """Appends messages to the broker's file. Raises ConfigError or SchemaMismatch if the file can never be used.

    Prefix-safe: what one `send` brings is stored in order, and after a transaction that fails nothing more of it; of a
    key with a message that can never be stored, the later ones of that send are not stored either.
    """

    prefix_safe = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        publish_timeout: timedelta,
        hooks: Hooks,
        largest_message: int = 999_000_000,
    ) -> None:
        self._path, self._hooks, self._largest = Path(path), hooks, largest_message
        check(self._path)
        self._timeout = publish_timeout.total_seconds()
        self._sends = Sends(publish_timeout)
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._prune_at = time.monotonic() + PRUNE_EVERY
        self._renewed_until = 0.0

    def send(self, messages: Sequence[Message]) -> None:
        order = _Order(self._sends.begin(messages), time.monotonic() + self._timeout, asyncio.get_running_loop())
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"publisher of {self._path.name}", daemon=True)
            self._thread.start()
        self._orders.put(order)

    async def outcomes(self) -> Sequence[Outcome]:
        return await self._sends.outcomes()

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            self._orders.put(None)
            await asyncio.to_thread(thread.join, self._timeout)
            await asyncio.sleep(0)  # the worker's last answers are on their way to the loop
        self._sends.fail_all(BrokerUnavailable("closed before it was stored; it may or may not have arrived"))

    def _work(self) -> None:
        """Append until told to stop. Runs in the worker thread, as everything below."""
        while orders := self._gather():
            try:
                self._append(orders)
                self._prune_now_and_then()
            except Exception as error:  # noqa: BLE001 - whatever it is, the relay must hear of it
                self._disconnect()
                orders[-1].loop.call_soon_threadsafe(self._sends.die, error)
        self._disconnect()

    def _gather(self) -> list[_Order]:
        """Wait for a send and take along those that wait behind it: they share a transaction."""
        orders: list[_Order] = []
        count = 0
        try:
            while count < MOST_AT_ONCE:
                order = self._orders.get_nowait() if orders else self._orders.get()
                if order is None:
                    if orders:
                        self._orders.put(None)
                    break
                orders.append(order)
                count += len(order.send.messages)
        except Empty:
            pass  # nobody waits behind them: what there is goes now
        return orders

    def _append(self, orders: list[_Order]) -> None:
        # What waited too long is answered by its deadline; it is too late to store it now.
        orders = [order for order in orders if self._deadline(order) > time.monotonic()]
        try:
            for chunk in self._chunks(orders):
                if chunk.rows:
                    self._store(chunk)
                    self._hooks.reach(Moment.STORED_BY_BROKER, count=len(chunk.rows))
                    self._renewed_until = time.monotonic() + self._timeout
                for order, outcomes in chunk.answers:
                    _on_the_loop(order, self._sends.answer, order.send, outcomes)
                    _on_the_loop(order, self._sends.go_on, chunk)
        except PublishError as error:  # nothing of a send is stored behind what failed
            self._disconnect()
            for order in orders:
                _on_the_loop(order, self._sends.fail, order.send, error)

    def _deadline(self, order: _Order) -> float:
        return max(order.deadline, self._renewed_until)

    def _chunks(self, orders: list[_Order]) -> Iterator[_Chunk]:
        """Cut what was sent into transactions, in order; rows are made only when their turn has come."""
        chunk = _Chunk()
        for order in orders:
            outcomes: list[Outcome] = []
            chunk.answers.append((order, outcomes))
            held_back: set[tuple[str, str | None]] = set()
            for message in order.send.messages:
                if chunk.rows and chunk.size + len(message.body) > LARGEST_TRANSACTION:
                    yield chunk
                    chunk, outcomes = _Chunk(), []
                    chunk.answers.append((order, outcomes))
                outcomes.append(Outcome(message.ticket, self._add(message, chunk, held_back)))
        yield chunk

    def _add(self, message: Message, chunk: _Chunk, held_back: set[tuple[str, str | None]]) -> PublishError | None:
        """Add a message to what is stored next, or say why it is not."""
        topic, key, headers, body, _ = message
        if held_back and key is not None and (topic, key) in held_back:
            return PublishError(f"held back: an earlier message of the key {key!r} cannot be stored")
        try:
            self._check(message)
            chunk.rows.append((topic, partition_of(message), key, _json(headers), body, now()))
        except (TypeError, ValueError) as cause:
            held_back.add((topic, key))
            return PublishRejected(f"the embedded broker cannot store event {headers.get('id')}: {cause}")
        chunk.size += len(body)
        return None

    def _check(self, message: Message) -> None:
        if len(message.body) > self._largest:
            raise ValueError(f"its body has {len(message.body)} bytes, at most {self._largest} fit")
        message.topic.encode()  # SQLite would fail the whole transaction for a lone surrogate

    def _store(self, chunk: _Chunk) -> None:
        deadline = self._deadline(chunk.answers[0][0])
        with broker_errors(self._path):
            if self._connection is None:
                self._connection = self._open(deadline - time.monotonic())
                self._file = identity(self._path)
            patience = max(1, int((deadline - time.monotonic()) * 1000))
            self._connection.execute(f"PRAGMA busy_timeout = {patience}")
            with transaction(self._connection):
                if time.monotonic() >= deadline:
                    raise BrokerUnavailable("another process kept the broker's file locked until it was too late")
                for order, _ in chunk.answers:
                    order.send.storing = chunk
                self._connection.executemany(_APPEND, chunk.rows)
            if identity(self._path) != self._file:
                raise BrokerUnavailable(f"the broker's file {self._path} was deleted or replaced; it is opened anew")

    def _open(self, timeout: float) -> sqlite3.Connection:
        check_still_there(self._path)
        return connect(self._path, durable=True, timeout=max(0.0, timeout))

    def _prune_now_and_then(self) -> None:
        if time.monotonic() < self._prune_at or self._connection is None:
            return
        try:
            with broker_errors(self._path):
                full = prune(self._connection, now()) >= BATCH
        except BrokerUnavailable:
            full = False  # the next send meets the same trouble and answers for it
        self._prune_at = time.monotonic() + (1.0 if full else PRUNE_EVERY)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _on_the_loop(order: _Order, call: Callable[..., None], *args: object) -> None:
    try:
        order.loop.call_soon_threadsafe(call, *args)
    except RuntimeError:
        pass  # the loop is closed: nobody waits for an answer any more
