"""The Redis hint of an inbox, with a real Redis and a real PostgreSQL: it saves look-ups, and nothing hangs on it."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import pillarbox
from pillarbox.brokers.memory import MemoryBroker
from pillarbox.brokers.redis.hint import RedisHint, read_hint
from pillarbox.core.event import Event
from pillarbox.core.message import Delivery, Message
from pillarbox.core.routing import Topic, Topics
from pillarbox.inbox.consumer import Consumer
from pillarbox.inbox.hint import Where, stand
from pillarbox.psycopg import Inbox
from pillarbox.settings import InboxSettings, RetentionSettings, Settings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.wiring import _subscriber
from servers.postgres import Postgres
from servers.process import run_tool
from servers.redis import Redis
from tests.acceptance.streams import STREAMS, Stream, stream_on
from tests.conftest import skip_unless_ours
from tests.integration.inbox_bench import Bench, effect
from tests.integration.postgres_world import burn, migrate, next_xid, soon
from tests.integration.receiving_doors import DOORS, Act, Acts
from tests.unit.consumer_bench import TOPIC, Deliveries, id_of, message

PSYCOPG, ASYNC = DOORS[0], DOORS[1]
Deliver = Callable[[Sequence[Message]], Awaitable[None]]
AMPLE = 5.0
"""Seconds that a busy Redis may take in a test that is not about a slow one."""


def apply(event: Event[Any]) -> list[Act]:
    return [effect(event)]


class HintBench(Bench):
    """A bench whose consumers have a hint. `asked` says for each transaction whether it was only for reading."""

    redis: Redis
    patience = AMPLE

    def inbox(self, acts: Acts, **options: Any) -> Any:
        inbox = super().inbox(acts, **options)
        perform: Any = inbox.perform
        perform_each: Any = getattr(inbox, "perform_each", None)
        self.asked: list[bool] = []

        def counted(program: Any, *, reading: bool = False) -> Any:
            self.asked.append(reading)
            return perform(program, reading=reading)

        def counted_each(programs: Iterator[Any], done: Any) -> None:
            def asked() -> Iterator[Any]:
                for program in programs:
                    self.asked.append(False)
                    yield program

            perform_each(asked(), done)

        inbox.perform = counted
        if perform_each is not None:  # not every door sends the end of a transaction with the next one's beginning
            inbox.perform_each = counted_each
        return inbox

    def open_hint(self) -> RedisHint:
        return RedisHint(read_hint(self.redis.url()), patience=self.patience)

    async def receive(self, *messages: Message, inbox: Any = None, **more: Any) -> int:
        """Let a new broker deliver messages to a new consumer; give how many were handled."""
        broker = MemoryBroker()
        broker.receive(messages)
        inbox = inbox or self.inbox(apply)
        async with asyncio.timeout(30):
            handled = await self.consumer(inbox, broker, open_hint=self.open_hint, **more).run_once(0.05)
        group = broker._groups["billing"]
        assert not any(broker.read(partition, row.position, 1) for partition, row in group.rows.items())
        return handled

    def writes(self) -> int:
        """Count the transactions through the newest inbox that were not only for reading."""
        return self.asked.count(False)

    def told(self, moment: Moment) -> list[Facts]:
        return [facts for one, facts in self.moments if one is moment]

    def copies(self) -> int:
        return sum(facts["copies"] for facts in self.told(Moment.ACKNOWLEDGED))  # type: ignore[misc]

    def notes(self) -> set[str]:
        with self.redis.client() as client:
            found = client.scan_iter("pillarbox:hint:*:*:*:*")
            return {name.decode().rpartition(":")[2] for name in found}

    def forge(self, number: int) -> None:
        """Note that an event was handled, beside those that were."""
        with self.redis.client() as client:
            beside, _, _ = next(client.scan_iter("pillarbox:hint:*:*:*:*")).decode().rpartition(":")
            client.set(f"{beside}:{id_of(number)}", 1)


@asynccontextmanager
async def bench_on(url: str, redis: Redis, door: Any = PSYCOPG) -> AsyncIterator[HintBench]:
    bench = HintBench(url, door)
    bench.redis = redis
    yield bench
    await bench.close()


@pytest.fixture
async def bench(migrated: str, redis: Redis) -> AsyncIterator[HintBench]:
    async with bench_on(migrated, redis) as bench:
        yield bench


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
async def test_copies_are_recognised_without_looking_them_up(migrated: str, redis: Redis, door: Any) -> None:
    async with bench_on(migrated, redis, door) as bench:
        events = [message(n, str(n % 5)) for n in range(40)]
        assert await bench.receive(*events) == 40
        assert bench.notes() == {id_of(n) for n in range(40)}
        assert bench.copies() == 0
        assert await bench.receive(*events) == 0
        assert bench.writes() == 0
        assert bench.copies() == 40
        assert await bench.receive(*events, message(40)) == 1
        assert bench.applied().count(40) == 1
        assert len(bench.applied()) == 41


async def test_copies_are_not_stored_either(bench: HintBench) -> None:
    events = [message(n, str(n % 5)) for n in range(40)]
    assert await bench.receive(*events, stores=True) == 40
    assert bench.notes() == {id_of(n) for n in range(40)}
    assert await bench.receive(*events, stores=True) == 0
    assert bench.writes() == 0
    assert bench.copies() == 40
    assert await bench.receive(*events, message(40), stores=True) == 1
    assert sorted(bench.applied()) == list(range(41))


class Slowly(Deliveries):
    """Counts how often it was asked, too."""

    asked = 0

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        self.asked += 1
        return await super().deliveries(room, patience)


async def test_a_known_copy_is_not_acknowledged_before_what_stands_before_it(migrated: str, redis: Redis) -> None:
    async with bench_on(migrated, redis, ASYNC) as bench:
        await bench.receive(message(2, "8"))
        begun, go_on = asyncio.Event(), asyncio.Event()

        def wait() -> Any:
            begun.set()
            return go_on.wait()

        subscriber = Slowly(Delivery(message(1, "7")), Delivery(message(2, "8")))
        consumer = bench.consumer(bench.inbox(lambda event: [effect(event), wait]), open_hint=bench.open_hint)
        consumer._open_subscriber = lambda: subscriber
        async with asyncio.timeout(30), consumer:
            await begun.wait()
            turns = subscriber.asked + 5
            await soon(lambda: subscriber.asked >= turns, "the consumer has gone round several times")
            assert subscriber.acknowledged == []
            go_on.set()
            await soon(lambda: len(subscriber.acknowledged) == 2, "both are acknowledged")
        assert [one.message.headers["id"] for one in subscriber.acknowledged] == [id_of(1), id_of(2)]
        assert bench.applied() == [2, 1]


async def test_what_is_out_of_the_parking_lot_is_not_asked_about(bench: HintBench) -> None:
    def acts(event: Event[Any]) -> list[Act]:
        fails = event.payload["n"] == 1 and bench.tries[1] == 1
        return [effect(event), RuntimeError("no") if fails else None]

    inbox = bench.inbox(acts)
    assert await bench.receive(message(1), message(3, "8"), inbox=inbox) == 1
    assert bench.notes() == {id_of(3)}, "what failed was noted as handled"
    bench.forge(1)
    assert await bench.consume(inbox, after=5, open_hint=bench.open_hint) == 1
    assert bench.applied() == [3, 1]


async def ended_before_the_commit(bench: HintBench, *, noted_before: bool) -> list[int]:
    """Let a consumer end in the middle of a handler, and another one get the event again; give what was applied."""
    await bench.receive(message(1))
    begun = asyncio.Event()

    async def wait() -> None:
        if noted_before:
            bench.forge(2)
        begun.set()
        await asyncio.Event().wait()

    bench.broker.receive([message(2)])
    consumer = bench.consumer(bench.inbox(lambda event: [effect(event), wait]), open_hint=bench.open_hint)
    async with asyncio.timeout(30):
        running = asyncio.create_task(consumer.run())
        await begun.wait()
        running.cancel()
        await asyncio.wait({running})
        await bench.consume(bench.inbox(apply), open_hint=bench.open_hint)
    return bench.applied()


async def test_what_was_rolled_back_is_not_noted_and_is_handled(migrated: str, redis: Redis) -> None:
    async with bench_on(migrated, redis, ASYNC) as bench:
        assert await ended_before_the_commit(bench, noted_before=False) == [1, 2]


async def test_an_event_would_be_lost_if_it_were_noted_before_the_commit(migrated: str, redis: Redis) -> None:
    async with bench_on(migrated, redis, ASYNC) as bench:
        assert await ended_before_the_commit(bench, noted_before=True) == [1]


class Used(RedisHint):
    """Remembers what it said of: this was handled."""

    def __init__(self, *given: Any, used: set[str], **more: Any) -> None:
        super().__init__(*given, **more)
        self._used = used

    async def known(self, where: Where, keys: Sequence[str]) -> set[str]:
        known = await super().known(where, keys)
        self._used |= known
        return known


class Trouble:
    """A Redis that has lost things, and a consumer that goes on. `deliver` gives it messages."""

    deliver: Deliver

    def __init__(self, bench: HintBench) -> None:
        self.bench, self.sent = bench, 0
        self.snapshot = Path(bench.redis.directory, "snapshot.rdb")
        self.used: set[str] = set()
        self._held, self._begun, self._go_on = -1, threading.Event(), threading.Event()

    def open_hint(self) -> RedisHint:
        return Used(read_hint(self.bench.redis.url()), patience=self.bench.patience, used=self.used)

    def acts(self, event: Event[Any]) -> list[Act]:
        return [effect(event), self._wait if event.payload["n"] == self._held else None]

    def _wait(self) -> None:
        self._begun.set()
        assert self._go_on.wait(60)

    async def send(self, copies: Sequence[int] | None = None, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Deliver twenty new events, and copies of older ones: twenty, if nobody says which; wait until all is
        acknowledged. `meanwhile` happens while the first of the new ones is being handled: the hint was asked about
        it, and it is not noted yet."""
        first, self.sent = self.sent, self.sent + 20
        before = self.acknowledged()
        copies = range(max(0, first - 20), first) if copies is None else copies
        self._begun.clear()
        self._go_on.clear()
        self._held = first if meanwhile else -1
        await self.deliver([message(n, str(n % 5)) for n in (*copies, *range(first, self.sent))])
        if meanwhile:
            try:
                assert await asyncio.to_thread(self._begun.wait, 60), "its handler has not begun"
                await asyncio.to_thread(meanwhile)
            finally:
                self._go_on.set()
        await soon(lambda: self.acknowledged() >= before + len(copies) + 20, f"{self.sent} events are acknowledged")

    async def send_until(self, moment: Moment, times: int) -> None:
        """Send more until somebody has been told so often: nobody asks Redis while nothing comes."""
        while len(self.bench.told(moment)) < times:
            await self.send()

    def acknowledged(self) -> int:
        return sum(facts["count"] for facts in self.bench.told(Moment.ACKNOWLEDGED))  # type: ignore[misc]

    def flush(self) -> None:
        with self.bench.redis.client() as client:
            client.flushall()

    def save(self) -> None:
        with self.bench.redis.client() as client:
            client.save()
        shutil.copy(self.bench.redis.directory / "dump.rdb", self.snapshot)

    def restore(self) -> None:
        shutil.copyfile(self.snapshot, self.bench.redis.directory / "dump.rdb")
        self.bench.redis.start()


@pytest.fixture
def stream(broker: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stream | None]:
    """A stream on a real broker; None for the one in memory."""
    if broker == "memory":
        yield None
        return
    with stream_on(broker, f"orders-{uuid4().hex[:8]}", tmp_path, request) as stream:
        yield stream


def consumer_of(trouble: Trouble, stream: Stream | None, *, stores: bool) -> Consumer:
    """Make a consumer with a hint; from now on messages are delivered to it."""
    bench = trouble.bench
    consumer = bench.consumer(bench.inbox(trouble.acts), open_hint=trouble.open_hint, stores=stores)
    if stream is not None:
        settings = Settings(broker=stream.url)
        consumer._open_subscriber = _subscriber(settings, None, "billing", [stream.topic], bench.clock, Hooks())

    async def deliver(messages: Sequence[Message]) -> None:
        if stream is None:
            bench.broker.receive(messages)
        else:
            await asyncio.to_thread(stream.publish, messages)

    trouble.deliver = deliver
    return consumer


@pytest.mark.parametrize(
    ("mode", "broker"),
    [
        pytest.param(mode, broker, marks=[pytest.mark.soak] if mode == "store" and broker != "memory" else [])
        for mode in ("handle", "store")
        for broker in ("memory", *STREAMS)
    ],
)
async def test_each_effect_once_while_redis_is_flushed_stopped_and_restored(
    migrated: str, own_redis: Callable[..., Redis], stream: Stream | None, mode: str
) -> None:
    server = own_redis("redis", appendonly="no")
    async with bench_on(migrated, server) as bench:
        trouble = Trouble(bench)
        first = {id_of(n) for n in range(20)}
        async with asyncio.timeout(120), consumer_of(trouble, stream, stores=mode == "store"):
            await trouble.send()
            await soon(lambda: bench.notes() >= first, "all are noted")
            trouble.save()
            await trouble.send()
            assert trouble.used >= first, "nobody made use of what was noted"
            await trouble.send(meanwhile=trouble.flush)
            assert not bench.notes() & first, "nothing was lost"
            await trouble.send()
            await trouble.send(meanwhile=server.stop)
            await trouble.send_until(Moment.HINT_AWAY, 1)
            await trouble.send(meanwhile=server.start)
            await trouble.send_until(Moment.HINT_BACK, 1)
            await trouble.send(meanwhile=server.stop)
            await trouble.send_until(Moment.HINT_AWAY, 2)
            await trouble.send(meanwhile=trouble.restore)
            await trouble.send_until(Moment.HINT_BACK, 2)
            assert bench.notes() >= first, "the old snapshot was not restored"
            trouble.used.clear()
            while not trouble.used >= first:
                await trouble.send(range(20))
            await soon(lambda: len(bench.applied()) == trouble.sent, "all are handled")
        applied = bench.applied()
        assert sorted(applied) == list(range(trouble.sent))
        for order in range(5):
            assert [n for n in applied if n % 5 == order] == list(range(order, trouble.sent, 5))


async def test_a_redis_that_does_not_answer_is_told_of_once_and_done_without(
    migrated: str, own_redis: Callable[..., Redis]
) -> None:
    server = own_redis("redis")
    async with bench_on(migrated, server) as bench:
        await bench.receive(*(message(n) for n in range(5)))
        bench.patience = 0.05
        server.freeze()
        try:
            assert await bench.receive(*(message(n, str(n)) for n in range(30))) == 25
        finally:
            server.thaw()
        assert len(bench.told(Moment.HINT_AWAY)) == 1
        assert sorted(bench.applied()) == list(range(30))
        bench.patience = AMPLE
        await bench.receive(message(30))
        assert id_of(30) in bench.notes()


class Asked(RedisHint):
    """Counts what it is asked."""

    asked = 0

    async def known(self, where: Where, keys: Sequence[str]) -> set[str]:
        self.asked += 1
        return await super().known(where, keys)

    async def last(self, database: str) -> tuple[str, int]:
        self.asked += 1
        return await super().last(database)


class OneByOne(Slowly):
    """Delivers one at a time, whatever the room."""

    async def deliveries(self, room: int, patience: float) -> Sequence[Delivery]:
        return await super().deliveries(1, patience)


async def test_a_redis_that_does_not_answer_is_left_alone_for_a_while(
    migrated: str, own_redis: Callable[..., Redis]
) -> None:
    server = own_redis("redis")
    hint = Asked(read_hint(server.url()), patience=0.05)
    async with bench_on(migrated, server) as bench:
        subscriber = OneByOne(*(Delivery(message(n, str(n))) for n in range(40)))
        consumer = bench.consumer(bench.inbox(apply), open_hint=lambda: hint)
        consumer._open_subscriber = lambda: subscriber
        server.freeze()
        try:
            async with asyncio.timeout(30), consumer:
                await soon(lambda: len(subscriber.acknowledged) == 40, "all are acknowledged")
        finally:
            server.thaw()
        assert 0 < hint.asked < 15, "it was asked for each delivery"
        assert len(bench.told(Moment.HINT_AWAY)) == 1
        assert sorted(bench.applied()) == list(range(40))


async def test_what_it_said_before_the_database_was_away_does_not_count_after(bench: HintBench) -> None:
    """The whole topic is one line, so that a known copy waits for the one before it; meanwhile the database goes."""
    await bench.receive(message(2))

    def lose() -> None:
        if bench.tries[1] > 1:
            return
        bench.db.execute("DELETE FROM pillarbox_inbox WHERE event_id = %s", [id_of(2)])
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        bench.rows(f"SELECT pg_terminate_backend(pid) {others}")

    inbox = bench.inbox(lambda event: [lose if event.payload["n"] == 1 else None, effect(event)])
    subscriber = Deliveries(Delivery(message(1)), Delivery(message(2)))
    consumer = bench.consumer(inbox, open_hint=bench.open_hint)
    consumer._open_subscriber = lambda: subscriber
    consumer._rules = replace(consumer._rules, topics=Topics({TOPIC: Topic(order="global")}))
    async with asyncio.timeout(30), consumer:
        await soon(lambda: len(subscriber.acknowledged) == 2, "both are acknowledged")
    assert bench.told(Moment.STORE_AWAY)
    assert bench.applied() == [2, 1, 2]


async def test_what_came_before_a_new_generation_is_noted_in_the_old_one(
    migrated: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been committed before the database went back."""
    monkeypatch.setattr("pillarbox.inbox.hint.FRESH", 0.0)
    monkeypatch.setattr("pillarbox.inbox.hint.CHECK_EVERY", 0.0)
    async with bench_on(migrated, redis, ASYNC) as bench:
        begun, go_on = asyncio.Event(), asyncio.Event()

        def wait() -> Any:
            begun.set()
            return go_on.wait()

        inbox = bench.inbox(lambda event: [effect(event), wait if event.payload["n"] == 1 else None])
        bench.broker.receive([message(1, "7")])
        async with asyncio.timeout(30), bench.consumer(inbox, open_hint=bench.open_hint):
            await begun.wait()
            hint = bench.open_hint()
            database, _, transaction = await asyncio.to_thread(_stand_of, migrated)
            old, _ = await hint.last(database)
            new = await hint.drop(database, transaction)
            await hint.close()
            bench.broker.receive([message(2, "8")])
            await soon(lambda: bench.applied() == [2], "the second one is committed")
            go_on.set()
            await soon(lambda: bench.notes() == {id_of(1), id_of(2)}, "both are noted")
        with redis.client() as client:
            found = {tuple(name.decode().split(":")[3::2]) for name in client.scan_iter("pillarbox:hint:*:*:*:*")}
        assert found == {(old, id_of(1)), (new, id_of(2))}


async def test_a_number_that_somebody_else_has_told_meanwhile_drops_nothing(bench: HintBench) -> None:
    class Overtaken(RedisHint):
        async def last(self, database: str) -> tuple[str, int]:
            burn(bench.url, 10)
            await self.see(database, next_xid(bench.url))
            return await super().last(database)

    hint = Overtaken(read_hint(bench.redis.url()), patience=AMPLE)
    bench.broker.receive([message(1)])
    assert await bench.consume(bench.inbox(apply), open_hint=lambda: hint) == 1
    assert bench.told(Moment.HINT_DROPPED) == []
    assert bench.notes() == {id_of(1)}


async def test_a_redis_that_is_full_or_lets_nobody_in_is_done_without(
    migrated: str, own_redis: Callable[..., Redis]
) -> None:
    server = own_redis("redis")
    async with bench_on(migrated, server) as bench:
        server.configure(maxmemory=1, maxmemory_policy="noeviction")
        assert await bench.receive(message(1), message(2, "8")) == 2
        [full] = bench.told(Moment.HINT_AWAY)
        assert "OOM" in str(full["error"])
        server.configure(maxmemory=0, requirepass="hunter2")
        assert await bench.receive(message(2, "8"), message(3)) == 1
        [_, shut] = bench.told(Moment.HINT_AWAY)
        assert "inbox.hint" in str(shut["error"])
        assert "broker:" not in str(shut["error"])
        assert sorted(bench.applied()) == [1, 2, 3]


class Restored:
    """A PostgreSQL whose data directory is copied while it stands, and put back later."""

    def __init__(self, server: Postgres) -> None:
        self.server, self.copy = server, server.directory / "copy"

    def save(self) -> None:
        self.server.stop()
        self._copy(self.server.data, self.copy)
        self.server.start()

    def restore(self) -> None:
        self.server.stop()
        shutil.rmtree(self.server.data)
        self._copy(self.copy, self.server.data)
        self.server.start()

    def _copy(self, source: Path, target: Path) -> None:
        run_tool(["cp", "-a", source, target], directory=self.server.directory, environment={})


@pytest.fixture
async def restored(own_postgres: Callable[[str], Postgres]) -> Restored:
    server = own_postgres("15")
    await migrate(server.create_database("shop"))
    return Restored(server)


async def again_after_a_restore(restored: Restored, redis: Redis, *, burning: bool) -> HintBench:
    """Handle 1, save the database, handle 2, restore it, and deliver both again."""
    url = restored.server.url("shop")
    async with bench_on(url, redis) as bench:
        assert await bench.receive(message(1)) == 1
    restored.save()
    bench.db, bench.moments = psycopg.connect(url, autocommit=True), []
    burn(url, 100)
    assert await bench.receive(message(2)) == 1
    before = next_xid(url)
    await bench.close()
    restored.restore()
    bench.db = psycopg.connect(url, autocommit=True)
    assert bench.applied() == [1]
    if burning:
        burn(url, before - next_xid(url) + 10)
    await bench.receive(message(1), message(2))
    assert bench.applied() == [1, 2]
    await bench.close()
    return bench


async def test_a_restored_database_gets_what_it_has_lost_and_somebody_is_told(restored: Restored, redis: Redis) -> None:
    bench = await again_after_a_restore(restored, redis, burning=False)
    assert len(bench.told(Moment.HINT_DROPPED)) == 1


async def test_a_restored_database_gets_what_it_has_lost_however_far_it_counts(
    restored: Restored, redis: Redis
) -> None:
    bench = await again_after_a_restore(restored, redis, burning=True)
    assert bench.told(Moment.HINT_DROPPED) == []


async def test_transactions_that_count_lower_than_before_drop_what_was_noted(bench: HintBench) -> None:
    """What a machine does that is put back to a picture of its memory: its server was not started again."""
    await bench.receive(message(1), message(2, "8"))
    with bench.redis.client() as client:
        (name,) = client.scan_iter("pillarbox:hint:*:transaction")
        client.set(name, next_xid(bench.url) + 1000)
    bench.db.execute("DELETE FROM pillarbox_inbox WHERE event_id = %s", [id_of(2)])
    assert await bench.receive(message(1), message(2, "8")) == 1
    assert len(bench.told(Moment.HINT_DROPPED)) == 1
    assert await bench.receive(message(2, "8"), message(3)) == 1
    assert len(bench.told(Moment.HINT_DROPPED)) == 1
    assert bench.copies() == 2
    assert bench.writes() == 1


async def test_what_was_noted_of_another_generation_is_not_known(bench: HintBench) -> None:
    """Somebody else finds that the database went back, between two questions of ours."""
    await bench.receive(message(1))
    hint = bench.open_hint()
    where = (await asyncio.to_thread(_stand_of, bench.url))[:2]
    generation, transaction = await hint.last(where[0])
    ours = (where[0], generation, where[1])
    assert await hint.known(ours, [id_of(1), id_of(2)]) == {id_of(1)}
    new = await hint.drop(where[0], transaction)
    assert await hint.known(ours, [id_of(1)]) == set()
    assert await hint.last(where[0]) == (new, transaction)
    await hint.close()


async def test_a_truncated_inbox_is_another_one(bench: HintBench) -> None:
    await bench.receive(message(1))
    bench.db.execute("TRUNCATE pillarbox_inbox")
    assert await bench.receive(message(1)) == 1


def _stand_of(url: str) -> Any:
    inbox = Inbox("billing", lambda: psycopg.connect(url))
    try:
        return inbox.perform(stand(inbox.texts), reading=True)
    finally:
        inbox.close()


def test_a_user_who_may_not_see_the_cluster_has_a_hint_too(migrated: str) -> None:
    skip_unless_ours()
    seen = _stand_of(migrated)
    with psycopg.connect(migrated, autocommit=True) as db:
        db.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        db.execute("DO $$ BEGIN CREATE ROLE hint_reader LOGIN; EXCEPTION WHEN duplicate_object THEN END $$")
    unseen = _stand_of(migrated.replace("postgres@", "hint_reader@"))
    assert unseen.state == seen.state
    assert unseen.database != seen.database
    assert unseen.transaction >= seen.transaction


def _lives(redis: Redis) -> dict[str, int]:
    """Say for how many seconds each thing lives yet."""
    with redis.client() as client:
        return {name.decode().rpartition(":")[2]: client.ttl(name) for name in client.scan_iter("pillarbox:hint:*")}


async def test_the_setting_names_the_redis_and_notes_live_no_longer_than_the_inbox_remembers(
    bench: HintBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.brokers.redis.hint.PATIENCE", AMPLE)
    settings = Settings(
        inbox=InboxSettings(hint=bench.redis.url()), retention=RetentionSettings(inbox=timedelta(hours=1))
    )
    bench.broker.receive([message(1)])
    consumer = pillarbox.Consumer(bench.inbox(apply), topics=[TOPIC], broker=bench.broker, settings=settings)
    assert await consumer.run_once(0.05) == 1
    assert 0 < _lives(bench.redis)[id_of(1)] <= 3600


async def test_notes_expire_after_a_day_and_what_they_hang_on_later(bench: HintBench) -> None:
    await bench.receive(message(1))
    lives = _lives(bench.redis)
    assert 0 < lives[id_of(1)] <= 86_400 < lives["generation"]
    assert lives["transaction"] > 86_400
