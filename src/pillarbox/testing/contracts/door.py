"""The contract of a door, rule by rule: what `Outbox.add`, `first_time` and the inbox promise inside a transaction."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Protocol
from uuid import uuid4

from pillarbox.core.event import Event
from pillarbox.core.insert import OnDuplicate
from pillarbox.core.message import Message
from pillarbox.errors import DuplicateEvent, HandlerFailed, InvalidEvent, NoTransaction
from pillarbox.testing.contracts.rules import Bench, needs

LONG = 20.0
"""Seconds after which a rule gives up."""
MOMENT = 0.2
"""Seconds in which somebody who need not wait would be done."""


@dataclass(frozen=True, slots=True)
class DoorFeatures:
    """What a tool can do."""

    savepoints: bool = True
    autocommit: bool = True
    """It can be asked to commit every statement by itself."""
    inbox: bool = True
    """It receives, too."""
    traces: bool = find_spec("opentelemetry") is not None
    """There is OpenTelemetry to try it with."""


Transaction = Any
"""The tool's own: a connection or a session, with a transaction on it."""


class DoorBench(Bench, Protocol):
    """A door on the bench, with an empty outbox and inbox, and a table `effects (what)` for business writes."""

    features: DoorFeatures

    async def begin(self) -> Transaction:
        """Open a transaction on a connection of its own."""

    async def commit(self, transaction: Transaction) -> None: ...
    async def roll_back(self, transaction: Transaction) -> None: ...
    async def autocommit(self) -> Transaction:
        """Open a connection that commits every statement by itself."""

    async def savepoint(self, transaction: Transaction) -> Any: ...
    async def roll_back_to(self, transaction: Transaction, savepoint: Any) -> None: ...
    async def write(self, transaction: Transaction, what: str) -> None:
        """Write a row of `effects` with the tool itself."""

    async def add(self, transaction: Transaction, *events: Event[Any], on_duplicate: OnDuplicate = "raise") -> None:
        """Add events through the door, with an Outbox(max_payload=1000)."""

    async def first_time(self, transaction: Transaction, message_id: str) -> bool:
        """Ask the door's inbox."""

    async def handle(self, message: Message, what: str, *, fail: bool = False) -> object:
        """Receive a message through the door's inbox, with a handler that writes `what` and then fails if asked to."""

    def round_trips(self) -> int:
        """Count the calls to the driver that ran a statement, so far."""

    async def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        """Read the rows of `outbox`, `inbox` or `effects` in their order, without the door's help."""


def order(number: int, **more: Any) -> Event[Any]:
    """Make an event of one aggregate; `n` in its payload tells it from others."""
    return Event("OrderPlaced", {"n": number}, aggregate=("order", 7), **more)


TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def current_trace() -> Iterator[None]:
    """Let TRACEPARENT be the current trace context, with a state."""
    from opentelemetry import trace

    _, trace_id, span_id, flags = TRACEPARENT.split("-")
    state = trace.TraceState([("shop", "blue")])
    context = trace.SpanContext(int(trace_id, 16), int(span_id, 16), False, trace.TraceFlags(int(flags)), state)
    with trace.use_span(trace.NonRecordingSpan(context)):
        yield


@contextmanager
def refused(error: type[Exception]) -> Iterator[None]:
    """Expect this error."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"{error.__name__} was expected, and nothing was refused")


async def added(bench: DoorBench) -> list[int]:
    """List the `n` of what the outbox has, in its order."""
    return [json.loads(row["payload"])["n"] for row in await bench.rows("outbox")]


async def only(bench: DoorBench, event: Event[Any]) -> Mapping[str, Any]:
    """Add an event in a transaction of its own; give its row."""
    transaction = await bench.begin()
    await bench.add(transaction, event)
    await bench.commit(transaction)
    (row,) = await bench.rows("outbox")
    return row


def message(id: str) -> Message:
    """Make a message that a handler of `OrderPlaced` receives."""
    return Message("order-events", "7", {"id": id, "type": "OrderPlaced"}, b"{}")


class DoorContract:
    """The rules."""

    async def test_a_commit_keeps_the_change_and_its_event(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        await bench.write(transaction, "paid")
        await bench.add(transaction, order(1))
        await bench.commit(transaction)
        assert [row["what"] for row in await bench.rows("effects")] == ["paid"]
        assert await added(bench) == [1]

    async def test_a_rollback_takes_the_event_with_the_change(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        await bench.write(transaction, "paid")
        await bench.add(transaction, order(1))
        await bench.roll_back(transaction)
        assert not await bench.rows("effects")
        assert await added(bench) == []

    async def test_nobody_sees_the_event_before_the_commit(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        await bench.add(transaction, order(1))
        assert await added(bench) == []
        await bench.commit(transaction)
        assert await added(bench) == [1]

    @needs("savepoints")
    async def test_a_savepoint_takes_its_events_along(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        await bench.add(transaction, order(1))
        savepoint = await bench.savepoint(transaction)
        await bench.add(transaction, order(2))
        await bench.roll_back_to(transaction, savepoint)
        await bench.add(transaction, order(3))
        await bench.commit(transaction)
        assert await added(bench) == [1, 3]

    async def test_events_keep_the_order_of_one_call(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        await bench.add(transaction, *(order(n) for n in range(20)))
        await bench.commit(transaction)
        assert await added(bench) == list(range(20))

    async def test_events_keep_the_order_of_the_calls(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        for n in range(5):
            await bench.add(transaction, order(2 * n), order(2 * n + 1))
        await bench.commit(transaction)
        assert await added(bench) == list(range(10))

    async def test_many_events_go_in_one_round_trip(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        await bench.write(transaction, "paid")
        before = bench.round_trips()
        await bench.add(transaction, *(order(n) for n in range(100)))
        assert bench.round_trips() - before == 1
        await bench.commit(transaction)
        assert len(await added(bench)) == 100

    async def test_adding_nothing_asks_the_database_nothing(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        before = bench.round_trips()
        await bench.add(transaction)
        assert bench.round_trips() == before
        await bench.roll_back(transaction)

    @needs("autocommit")
    async def test_autocommit_is_refused(self, bench: DoorBench) -> None:
        connection = await bench.autocommit()
        with refused(NoTransaction):
            await bench.add(connection, order(1))
        assert await added(bench) == []

    async def test_numbers_count_per_aggregate(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        other = Event("OrderPlaced", {"n": 0}, aggregate=("order", 8), numbered=True)
        await bench.add(transaction, order(1, numbered=True), other, order(2, numbered=True))
        await bench.add(transaction, order(3, numbered=True))
        await bench.commit(transaction)
        numbers = [(row["aggregate_id"], row["number"]) for row in await bench.rows("outbox")]
        assert numbers == [("7", 1), ("8", 1), ("7", 2), ("7", 3)]

    async def test_numbers_have_no_gap_after_a_rollback(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        await bench.add(transaction, order(1, numbered=True))
        await bench.roll_back(transaction)
        assert (await only(bench, order(2, numbered=True)))["number"] == 1

    async def test_a_refused_event_leaves_no_gap_and_no_key(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        too_large = Event("OrderPlaced", {"n": 0, "text": "x" * 1000}, aggregate=("order", 7))
        with refused(InvalidEvent):
            await bench.add(transaction, order(1, numbered=True, idempotency_key="a"), too_large)
        await bench.add(transaction, order(2, numbered=True, idempotency_key="a"))
        await bench.commit(transaction)
        assert [(row["payload"], row["number"]) for row in await bench.rows("outbox")] == [('{"n":2}', 1)]

    async def test_a_key_that_is_there_already_is_refused(self, bench: DoorBench) -> None:
        await only(bench, order(1, idempotency_key="paid-7"))
        transaction = await bench.begin()
        with refused(DuplicateEvent):
            await bench.add(transaction, order(2, idempotency_key="paid-7"))
        await bench.commit(transaction)
        assert await added(bench) == [1]

    async def test_a_refused_key_leaves_the_transaction_usable(self, bench: DoorBench) -> None:
        await only(bench, order(1, idempotency_key="paid-7"))
        transaction = await bench.begin()
        await bench.write(transaction, "paid")
        with refused(DuplicateEvent):
            await bench.add(transaction, order(2, idempotency_key="paid-7"))
        await bench.add(transaction, order(3))
        await bench.commit(transaction)
        assert [row["what"] for row in await bench.rows("effects")] == ["paid"]
        assert await added(bench) == [1, 3]

    async def test_nothing_of_a_refused_call_remains(self, bench: DoorBench) -> None:
        await only(bench, order(1, idempotency_key="a"))
        transaction = await bench.begin()
        with refused(DuplicateEvent):
            await bench.add(transaction, order(2), order(3, idempotency_key="b"), order(4, idempotency_key="a"))
        await bench.add(transaction, order(5, idempotency_key="b"))
        await bench.commit(transaction)
        assert await added(bench) == [1, 5]

    async def test_a_duplicate_can_be_ignored(self, bench: DoorBench) -> None:
        await only(bench, order(1, idempotency_key="a"))
        transaction = await bench.begin()
        await bench.add(transaction, order(2, idempotency_key="a"), order(3), on_duplicate="ignore")
        await bench.commit(transaction)
        assert await added(bench) == [1, 3]

    async def test_a_rolled_back_key_is_free_again(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        await bench.add(transaction, order(1, idempotency_key="a"))
        await bench.roll_back(transaction)
        await only(bench, order(2, idempotency_key="a"))
        assert await added(bench) == [2]

    async def test_the_topic_is_settled_when_the_event_is_added(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        await bench.add(transaction, order(1), order(2, topic="special"), Event("Ping", {"n": 3}))
        await bench.commit(transaction)
        assert [row["topic"] for row in await bench.rows("outbox")] == ["order-events", "special", "events"]

    async def test_the_payload_is_kept_byte_for_byte(self, bench: DoorBench) -> None:
        event = Event("OrderPlaced", {"name": "Zoë ☃", "z": 1, "a": [1.50, None]}, aggregate=("order", 7))
        row = await only(bench, event)
        assert (row["payload"], row["body"]) == ('{"name":"Zoë ☃","z":1,"a":[1.5,null]}', None)

    async def test_bytes_are_kept_as_they_are(self, bench: DoorBench) -> None:
        row = await only(bench, Event("OrderPlaced", b"\x00\xff{}", content_type="application/avro"))
        assert (row["payload"], bytes(row["body"]), row["content_type"]) == (None, b"\x00\xff{}", "application/avro")

    async def test_everything_an_event_says_is_kept(self, bench: DoorBench) -> None:
        at = datetime(2026, 3, 4, 5, 6, 7, 123456, tzinfo=UTC)
        event = order(1, headers={"tenant": "é"}, occurred_at=at, available_at=at, idempotency_key="k")
        row = await only(bench, event)
        assert json.loads(row["headers"]) == {"tenant": "é"}
        assert (row["event_id"], row["event_type"], row["idempotency_key"]) == (str(event.id), "OrderPlaced", "k")
        assert (row["aggregate_type"], row["aggregate_id"]) == ("order", "7")
        assert row["occurred_at"] == row["available_at"] == 1_772_600_767_123_456

    @needs("traces")
    async def test_an_event_carries_the_trace_that_is_current_when_it_is_added(self, bench: DoorBench) -> None:
        transaction = await bench.begin()
        with current_trace():
            await bench.add(transaction, order(1), order(2, headers={"tenant": "a"}))
        await bench.add(transaction, order(3))
        await bench.commit(transaction)
        carried = {"traceparent": TRACEPARENT, "tracestate": "shop=blue"}
        headers = [json.loads(row["headers"] or "null") for row in await bench.rows("outbox")]
        assert headers == [carried, {"tenant": "a", **carried}, None]

    @needs("traces")
    async def test_an_event_that_carries_a_trace_keeps_it(self, bench: DoorBench) -> None:
        own = {"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-00"}
        with current_trace():
            row = await only(bench, order(1, headers=own))
        assert json.loads(row["headers"]) == own

    @needs("inbox")
    async def test_the_first_time_is_true_once(self, bench: DoorBench) -> None:
        id = str(uuid4())
        answers = []
        for _ in range(2):
            transaction = await bench.begin()
            answers += [await bench.first_time(transaction, id), await bench.first_time(transaction, id)]
            await bench.commit(transaction)
        assert answers == [True, False, False, False]

    @needs("inbox")
    async def test_after_a_rollback_it_is_the_first_time_again(self, bench: DoorBench) -> None:
        id = str(uuid4())
        transaction = await bench.begin()
        assert await bench.first_time(transaction, id)
        await bench.roll_back(transaction)
        transaction = await bench.begin()
        assert await bench.first_time(transaction, id)
        await bench.roll_back(transaction)
        assert not await bench.rows("inbox")

    @needs("autocommit", "inbox")
    async def test_the_first_time_is_refused_outside_a_transaction(self, bench: DoorBench) -> None:
        connection = await bench.autocommit()
        with refused(NoTransaction):
            await bench.first_time(connection, str(uuid4()))
        assert not await bench.rows("inbox")

    @needs("inbox")
    async def test_a_copy_waits_for_the_first_and_finds_it_done(self, bench: DoorBench) -> None:
        assert await self._meanwhile(bench, bench.commit) is False

    @needs("inbox")
    async def test_a_copy_does_it_if_the_first_rolled_back(self, bench: DoorBench) -> None:
        assert await self._meanwhile(bench, bench.roll_back) is True

    async def _meanwhile(self, bench: DoorBench, end: Any) -> bool:
        """Give the answer to a copy that asked while the first one's transaction was open."""
        id = str(uuid4())
        first, second = await bench.begin(), await bench.begin()
        assert await bench.first_time(first, id)
        copy = asyncio.create_task(bench.first_time(second, id))
        done, _ = await asyncio.wait({copy}, timeout=MOMENT)
        assert not done, "the copy did not wait for the first one's commit"
        await end(first)
        async with asyncio.timeout(LONG):
            answer = await copy
        await bench.commit(second)
        return answer

    @needs("inbox")
    async def test_the_effects_and_the_inbox_row_are_one(self, bench: DoorBench) -> None:
        id = str(uuid4())
        await bench.handle(message(id), "billed")
        assert [row["what"] for row in await bench.rows("effects")] == ["billed"]
        assert [row["event_id"] for row in await bench.rows("inbox")] == [id]

    @needs("inbox")
    async def test_a_copy_has_no_effect(self, bench: DoorBench) -> None:
        id = str(uuid4())
        await bench.handle(message(id), "billed")
        await bench.handle(message(id), "billed again")
        assert [row["what"] for row in await bench.rows("effects")] == ["billed"]

    @needs("inbox")
    async def test_a_failed_handler_leaves_neither_effect_nor_row(self, bench: DoorBench) -> None:
        id = str(uuid4())
        with refused(HandlerFailed):
            await bench.handle(message(id), "half done", fail=True)
        assert not await bench.rows("effects")
        assert not await bench.rows("inbox")
        await bench.handle(message(id), "billed")
        assert [row["what"] for row in await bench.rows("effects")] == ["billed"]
