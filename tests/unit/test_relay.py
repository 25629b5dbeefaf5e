"""The relay on the memory store and the memory broker: outages, drains, lost lanes, fair shares. No time passes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from pillarbox.brokers.memory import MemoryBroker
from pillarbox.core.entry import Entry
from pillarbox.core.event import Event
from pillarbox.core.message import Message, identity
from pillarbox.core.window import Settlement
from pillarbox.errors import (
    BrokerUnavailable,
    ConfigError,
    PublishError,
    PublishRejected,
    PublishTimeout,
    SchemaMismatch,
    StoreUnavailable,
)
from pillarbox.ports import Outcome, Publisher, Query
from pillarbox.relay.pump import Pump
from pillarbox.relay.relay import Parts, Relay
from pillarbox.settings import RelaySettings, Settings
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.clock import ManualClock, simulate
from pillarbox.testing.memory import MemoryDatabase, MemoryOutbox
from pillarbox.testing.memory_records import MemoryStore

SETTINGS = Settings(relay=RelaySettings(batch=10))


class Scene:
    """A shop in memory with a broker, and relays between them."""

    def __init__(self, clock: ManualClock, *, prefix_safe: bool = True) -> None:
        self.clock, self.database = clock, MemoryDatabase(clock)
        self.broker = MemoryBroker(prefix_safe=prefix_safe)
        self.desk = MemoryStore(self.database, "desk")
        self.heard: list[Moment] = []
        self.told: list[tuple[Moment, Facts]] = []

    def add(self, *events: Event[Any]) -> None:
        with self.database.transaction() as transaction:
            MemoryOutbox().add(transaction, *events)

    def place(self, count: int, *, orders: int = 3, start: int = 0) -> None:
        self.add(*(Event("Placed", n, aggregate=("order", n % orders)) for n in range(start, start + count)))

    def relay(self, owner: str = "a", store: type[MemoryStore] = MemoryStore, settings: Settings = SETTINGS) -> Relay:
        def hear(moment: Moment, facts: Facts) -> None:
            self.heard.append(moment)
            self.told.append((moment, facts))

        opened = store(self.database, owner, lease=settings.relay.lease)
        return Relay(lambda: Parts(opened, self.broker.publisher()), settings, self.clock, Hooks(hear), lambda: 0.5)

    @property
    def published(self) -> list[Any]:
        return [int(message.body) for message in self.broker.messages()]

    async def eventually(self, condition: Callable[[], bool], seconds: float = 600) -> None:
        deadline = self.clock.elapsed + seconds
        while not condition():
            assert self.clock.elapsed < deadline, "it did not come to pass"
            await asyncio.sleep(0.01)

    async def statuses(self) -> dict[int, str]:
        return {int(record.data): record.status for record in await self.desk.find(Query(limit=1000))}


def play(act: Callable[[Scene], Awaitable[None]], **scene: Any) -> None:
    clock = ManualClock()

    async def acted() -> None:
        await act(Scene(clock, **scene))

    simulate(acted(), clock)


@pytest.mark.parametrize("prefix_safe", [True, False])
def test_everything_that_was_committed_is_published_in_order_per_aggregate(prefix_safe: bool) -> None:
    async def act(scene: Scene) -> None:
        scene.broker.latency = lambda: 0.01
        scene.place(50)
        assert await scene.relay().run_once() == 50
        for order in range(3):
            assert [n for n in scene.published if n % 3 == order] == [n for n in range(50) if n % 3 == order]
        assert set((await scene.statuses()).values()) == {"published"}

    play(act, prefix_safe=prefix_safe)


def test_nothing_is_settled_before_the_broker_has_answered() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.latency = lambda: 1.0
        scene.place(5)
        async with scene.relay():
            await asyncio.sleep(0.9)
            assert set((await scene.statuses()).values()) == {"pending"}
            await asyncio.sleep(0.3)
            assert set((await scene.statuses()).values()) == {"published"}

    play(act)


def test_an_outage_however_long_counts_no_attempt_and_loses_no_order() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.down = True
        scene.place(30)
        async with scene.relay():
            await asyncio.sleep(3600)
            stats = await scene.desk.stats()
            assert (stats.pending, stats.retrying, stats.dead) == (30, 0, 0)
            assert stats.relays[0].away is not None
            assert scene.clock.now() - stats.relays[0].away.since > timedelta(minutes=59)
            scene.broker.heal()
            await scene.eventually(lambda: len(scene.published) == 30, seconds=10)
            assert [n for n in scene.published if n % 3 == 0] == list(range(0, 30, 3))
        assert scene.heard.count(Moment.BROKER_AWAY) == scene.heard.count(Moment.BROKER_BACK) == 1

    play(act)


def test_a_refused_event_is_dead_in_one_attempt_and_holds_back_its_aggregate_only() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.refuse(lambda message: message.body == b"3", PublishRejected("too large"))
        scene.place(12)
        await scene.relay().run_once()
        statuses = await scene.statuses()
        assert statuses[3] == "dead"
        assert [statuses[n] for n in (0, 6, 9)] == ["published", "blocked", "blocked"]
        assert all(statuses[n] == "published" for n in range(12) if n % 3)
        [dead] = await scene.desk.find(Query(status=("dead",)))
        assert (dead.attempts, dead.last_error) == (1, "too large")

    play(act)


def test_a_failing_event_is_retried_five_times_and_its_followers_come_after_it() -> None:
    async def act(scene: Scene) -> None:
        tries = []

        def fails(message: Any) -> bool:
            if message.body == b"0":
                tries.append(round(scene.clock.elapsed))
            return message.body == b"0" and len(tries) <= 5

        scene.broker.refuse(fails, PublishError("try again"))
        scene.place(4, orders=1)
        async with scene.relay():
            await scene.eventually(lambda: len(scene.published) == 4)
        assert scene.published == [0, 1, 2, 3]
        assert tries == pytest.approx([0, 1, 3, 7, 15, 31], abs=3)

    play(act)


def test_an_event_out_of_retries_is_dead_and_goes_after_a_retry_by_hand() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.refuse(lambda message: message.body == b"0", PublishError("try again"))
        scene.place(2, orders=1)
        async with scene.relay():
            await asyncio.sleep(60)
            assert await scene.statuses() == {0: "dead", 1: "blocked"}
            scene.broker.heal()
            assert await scene.desk.retry(Query(status=("dead",))) == 1
            await scene.eventually(lambda: scene.published == [0, 1])

    play(act)


def test_when_the_store_is_away_while_settling_nothing_is_sent_twice() -> None:
    class Full(MemoryStore):
        fails = 20

        async def settle(self, settlements: Sequence[Any]) -> None:
            if Full.fails:
                Full.fails -= 1
                raise StoreUnavailable("database or disk is full")
            await super().settle(settlements)

    async def act(scene: Scene) -> None:
        scene.place(40)
        async with scene.relay(store=Full):
            await scene.eventually(lambda: len(scene.published) == 40)
            await asyncio.sleep(1)
        assert sorted(scene.published) == list(range(40))
        assert set((await scene.statuses()).values()) == {"published"}

    play(act)


def test_a_relay_that_lost_its_lanes_forgets_everything_and_begins_again() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.latency = lambda: 1.0
        scene.place(10)
        async with scene.relay():
            await asyncio.sleep(0.5)
            for lane in scene.database.lanes:
                lane.owner, lane.epoch = "thief", lane.epoch + 1000
            await scene.eventually(lambda: Moment.LANES_LOST in scene.heard)
            await scene.eventually(lambda: len(scene.published) == 20)
            await asyncio.sleep(2)
        assert set((await scene.statuses()).values()) == {"published"}

    play(act)


def test_a_relay_sends_nothing_once_its_lease_has_run_out() -> None:
    class Silent(MemoryStore):
        async def renew(self, away: Any) -> Any:
            raise StoreUnavailable("no answer")

    async def act(scene: Scene) -> None:
        async with scene.relay(store=Silent):
            await asyncio.sleep(14)
            scene.place(1)
            await scene.eventually(lambda: scene.published == [0])
            await asyncio.sleep(2)
            scene.place(1, start=1)
            await scene.eventually(lambda: Moment.LANES_LOST in scene.heard)
            await scene.eventually(lambda: scene.published == [0, 1])

    play(act)


def test_a_relay_that_prunes_for_long_renews_its_lease_between_the_batches() -> None:
    class Full(MemoryStore):
        batches = 0

        async def prune(self, retention: Any, deed: Any = None) -> int:
            await asyncio.sleep(10)  # of a lease of 15
            Full.batches += 1
            return 5_000

    async def act(scene: Scene) -> None:
        async with scene.relay(store=Full):
            await scene.eventually(lambda: Full.batches == 8, seconds=100)
        assert Moment.LANES_LOST not in scene.heard

    play(act)


def test_little_that_is_left_to_prune_waits_for_its_minute() -> None:
    class Little(MemoryStore):
        asked = 0

        async def prune(self, retention: Any, deed: Any = None) -> int:
            Little.asked += 1
            return 999

    async def act(scene: Scene) -> None:
        async with scene.relay(store=Little):
            await asyncio.sleep(64)
            assert Little.asked == 1
            await asyncio.sleep(2)
            assert Little.asked == 2

    play(act)


def test_stopping_settles_what_is_in_flight_and_hands_over() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.latency = lambda: 1.0
        scene.place(10)
        async with scene.relay():
            await asyncio.sleep(0.5)
            scene.place(10, start=10)
        assert sorted(scene.published) == list(range(10))
        statuses = await scene.statuses()
        assert [statuses[n] for n in (0, 9, 10, 19)] == ["published", "published", "pending", "pending"]
        assert all(lane.owner is None for lane in scene.database.lanes)

    play(act)


def test_stopping_while_the_broker_is_away_does_not_wait_for_it() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.down = True
        scene.place(5)
        async with scene.relay():
            await asyncio.sleep(60)
            before = scene.clock.elapsed
        assert scene.clock.elapsed - before < 6
        assert (await scene.desk.stats()).pending == 5

    play(act)


def test_cancelling_a_relay_releases_its_lanes() -> None:
    async def act(scene: Scene) -> None:
        task = asyncio.create_task(scene.relay().run())
        await scene.eventually(lambda: Moment.LANES_TAKEN in scene.heard)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert all(lane.owner is None for lane in scene.database.lanes)

    play(act)


@pytest.mark.parametrize("once", [True, False])
def test_an_end_that_somebody_can_mend_releases_the_lanes(once: bool) -> None:
    """A wrong password, say: whoever restarts the relay until it is right must not make an event look guilty."""

    async def act(scene: Scene) -> None:
        scene.place(1)
        relay = scene.relay()
        with (
            mock.patch.object(Pump, "_answer", side_effect=ConfigError("redis: the password is wrong")),
            pytest.raises(ConfigError),
        ):
            await (relay.run_once() if once else relay.run())
        assert all(lane.owner is None for lane in scene.database.lanes)
        assert await scene.relay().run_once() == 1

    play(act)


def test_an_end_that_nobody_foresaw_counts_as_a_death() -> None:
    """It may be the event's doing: careful mode must hear of it."""

    async def act(scene: Scene) -> None:
        scene.place(1)
        with mock.patch.object(Pump, "_answer", side_effect=ZeroDivisionError), pytest.raises(ZeroDivisionError):
            await scene.relay().run()
        assert all(lane.owner is not None for lane in scene.database.lanes)

    play(act)


def test_an_outage_that_becomes_another_one_is_told_once_more() -> None:
    async def act(scene: Scene) -> None:
        def say(words: str) -> None:
            scene.broker.heal()
            scene.broker.refuse(lambda message: True, BrokerUnavailable(words))

        say("connection refused")
        scene.place(3)
        async with scene.relay():
            await scene.eventually(lambda: Moment.BROKER_AWAY in scene.heard)
            for words in ("wrong password", "connection refused", "wrong password"):
                say(words)
                await asyncio.sleep(60)
            assert scene.heard.count(Moment.BROKER_STILL_AWAY) == 1
            scene.broker.heal()
            await scene.eventually(lambda: len(scene.published) == 3, seconds=10)
        assert scene.heard.count(Moment.BROKER_AWAY) == scene.heard.count(Moment.BROKER_BACK) == 1

    play(act)


def test_running_once_tells_that_the_broker_is_away() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.down = True
        scene.place(1)
        with pytest.raises(BrokerUnavailable, match="nothing is lost, run again later"):
            await scene.relay().run_once()
        scene.broker.heal()
        assert await scene.relay().run_once() == 1

    play(act)


def test_running_once_beside_another_relay_says_so() -> None:
    class Alone(MemoryStore):
        def _share(self) -> int:
            return 64

    async def act(scene: Scene) -> None:
        async with scene.relay("a", store=Alone):
            await scene.eventually(lambda: Moment.LANES_TAKEN in scene.heard)
            with pytest.raises(StoreUnavailable, match="another relay is at work"):
                await scene.relay("b", store=Alone).run_once()
        [told] = [facts for moment, facts in scene.told if moment is Moment.LANES_AWAITED]
        assert told == {"relays": ("a",), "patience": timedelta(seconds=16)}

    play(act)


class OneAtATime(MemoryStore):
    """Gives nothing out before the last one is settled, and takes its time to settle."""

    given = False

    async def entries(self, room: int) -> Sequence[Entry]:
        entries = [] if self.given else await super().entries(1)
        self.given = self.given or bool(entries)
        return entries

    async def settle(self, settlements: Sequence[Settlement[Entry]]) -> None:
        await asyncio.sleep(1)
        await super().settle(settlements)
        self.given = False


def test_running_once_does_not_end_while_the_last_one_is_being_settled() -> None:
    async def act(scene: Scene) -> None:
        scene.place(10)
        scene.broker.latency = lambda: 0.02  # answers come while the next read naps
        assert await scene.relay(store=OneAtATime).run_once() == 10

    play(act)


async def half_taken(scene: Scene) -> MemoryStore:
    """Let another relay hold one half of the lanes; it does nothing with them."""
    other = MemoryStore(scene.database, "other", lease=SETTINGS.relay.lease)
    lanes = (await other.take()).lanes
    await other.release(sorted(lanes)[: len(lanes) // 2])
    return other


def test_running_once_carries_what_a_relay_leaves_that_hangs() -> None:
    async def act(scene: Scene) -> None:
        scene.place(50, orders=50)
        await half_taken(scene)
        assert await scene.relay().run_once() == 50

    play(act)


def test_running_once_leaves_the_lanes_of_another_relay_that_lives_and_says_so() -> None:
    async def act(scene: Scene) -> None:
        scene.place(50, orders=50)
        other = await half_taken(scene)

        async def live() -> None:
            while True:
                await other.renew(None)
                await asyncio.sleep(1)

        alive = asyncio.create_task(live())
        with pytest.raises(StoreUnavailable, match=r"published \d+; the rest was left to another relay.* 32 of 64"):
            await scene.relay().run_once()
        assert 0 < len(scene.published) < 50
        assert len((await MemoryStore(scene.database, "next").take()).lanes) > 0, "its lanes are free"
        await scene.desk.pause("order-events", "me", "nobody waits for what is paused")
        await scene.relay("b").run_once()
        alive.cancel()

    play(act)


class AwayAtFirst(MemoryStore):
    """Cannot be reached for the first three times."""

    tries = 0

    async def open(self) -> None:
        self.tries += 1
        if self.tries <= 3:
            raise StoreUnavailable("no route to host")
        await super().open()


def test_a_relay_that_starts_while_the_store_is_away_waits_for_it() -> None:
    async def act(scene: Scene) -> None:
        scene.place(5)
        async with scene.relay(store=AwayAtFirst):
            assert Moment.STORE_AWAY in scene.heard
            await scene.eventually(lambda: len(scene.published) == 5)

    play(act)


def test_running_once_while_the_store_is_away_says_so() -> None:
    async def act(scene: Scene) -> None:
        with pytest.raises(StoreUnavailable, match="no route to host"):
            await scene.relay(store=AwayAtFirst).run_once()

    play(act)


def test_two_relays_share_the_lanes_and_one_takes_over_what_the_other_leaves() -> None:
    async def act(scene: Scene) -> None:
        def held() -> list[int]:
            owners = [lane.owner for lane in scene.database.lanes]
            return [owners.count("a"), owners.count("b")]

        async with scene.relay("a"):
            await scene.eventually(lambda: held() == [64, 0])
            async with scene.relay("b"):
                await scene.eventually(lambda: held() == [32, 32])
                scene.place(60, orders=20)
                await scene.eventually(lambda: len(scene.published) == 60)
            await scene.eventually(lambda: held() == [64, 0])
        assert sorted(scene.published) == list(range(60))

    play(act)


def test_a_dead_relay_is_replaced_at_once() -> None:
    async def act(scene: Scene) -> None:
        first = MemoryStore(scene.database, "first")
        await first.take()
        async with scene.relay("second"):
            scene.place(5)
            first.crash()
            await scene.eventually(lambda: len(scene.published) == 5, seconds=6)

    play(act)


def test_an_entry_that_cannot_be_encoded_is_dead_and_the_others_go() -> None:
    async def act(scene: Scene) -> None:
        scene.place(3)
        row = scene.database.rows[1]
        scene.database.rows[1] = row._replace(entry=row.entry._replace(headers="{not json"))
        await scene.relay().run_once()
        assert scene.published == [0, 2]
        [dead] = [row for row in scene.database.parked if row.state == "dead"]
        assert dead.entry.position == row.entry.position
        assert "headers are no JSON object" in (dead.last_error or "")

    play(act)


@pytest.mark.parametrize("prefix_safe", [True, False])
def test_what_follows_an_entry_that_cannot_be_encoded_waits_behind_it(prefix_safe: bool) -> None:
    async def act(scene: Scene) -> None:
        scene.place(4, orders=1)
        row = scene.database.rows[1]
        scene.database.rows[1] = row._replace(entry=row.entry._replace(headers="[]"))
        await scene.relay().run_once()
        assert scene.published == [0]
        assert [(parked.entry.position, parked.state, parked.attempts) for parked in scene.database.parked] == [
            (2, "dead", 1),
            (3, "blocked", 0),
            (4, "blocked", 0),
        ]

    play(act, prefix_safe=prefix_safe)


def test_a_delayed_event_goes_when_its_time_comes_and_holds_nobody_back() -> None:
    async def act(scene: Scene) -> None:
        later = scene.clock.now() + timedelta(minutes=5)
        scene.add(Event("Placed", 1, aggregate=("order", 1), available_at=later))
        scene.add(Event("Placed", 2, aggregate=("order", 1)))
        async with scene.relay():
            await scene.eventually(lambda: scene.published == [2])
            await scene.eventually(lambda: scene.published == [2, 1])
            assert scene.clock.now() >= later

    play(act)


@pytest.mark.parametrize("prefix_safe", [True, False])
def test_a_replay_keeps_the_order_of_each_aggregate_though_copies_fail(prefix_safe: bool) -> None:
    async def act(scene: Scene) -> None:
        scene.place(40)
        async with scene.relay():
            await scene.eventually(lambda: len(scene.published) == 40)
            failing = {b"3", b"7", b"9"}
            scene.broker.refuse(lambda message: message.body in failing, PublishError("not now"))
            await scene.desk.begin_replay("replay-1", Query())
            while (replay := await scene.desk.replay("replay-1")) and replay.finished_at is None:
                pass
            await scene.eventually(lambda: len(scene.published) > 50)
            scene.place(3, start=40)
            await scene.eventually(lambda: {40, 41, 42} <= set(scene.published), seconds=1)
            scene.broker.heal()
            await scene.eventually(lambda: len(scene.published) == 83)
        copies = [n for n in scene.published[40:] if n < 40]
        for order in range(3):
            assert [n for n in copies if n % 3 == order] == list(range(order, 40, 3))

    play(act, prefix_safe=prefix_safe)


def test_a_bell_ends_the_wait() -> None:
    async def act(scene: Scene) -> None:
        relay = scene.relay(settings=replace(SETTINGS, relay=replace(SETTINGS.relay, idle_longest=timedelta(hours=1))))
        async with relay:
            await asyncio.sleep(7200)
            scene.place(1)
            relay.ring()
            await scene.eventually(lambda: scene.published == [0], seconds=1)

    play(act)


def test_no_more_than_two_batches_are_held() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.latency = lambda: 1.0
        given = []

        class Counting(MemoryStore):
            async def entries(self, room: int) -> Sequence[Any]:
                found = await super().entries(room)
                given.append(len(found))
                return found

        scene.place(200)
        async with scene.relay(store=Counting):
            await asyncio.sleep(0.9)
            assert sum(given) == 20

    play(act)


def test_the_wire_carries_the_event_s_id() -> None:
    async def act(scene: Scene) -> None:
        event = Event("Placed", 1, aggregate=("order", 1))
        scene.add(event)
        await scene.relay().run_once()
        assert identity(scene.broker.messages()[0])[0] == str(event.id)

    play(act)


def test_a_relay_that_cannot_begin_says_so_where_it_is_entered() -> None:
    class NoTables(MemoryStore):
        async def check(self) -> None:
            raise SchemaMismatch("there are no tables: run pillarbox migrate up")

    async def act(scene: Scene) -> None:
        with pytest.raises(SchemaMismatch, match="run pillarbox migrate up"):
            async with scene.relay(store=NoTables):
                pytest.fail("the block ran although the relay did not")

    play(act)


def test_cancelling_a_relay_while_the_store_is_away_is_still_a_cancellation() -> None:
    class Locked(MemoryStore):
        async def release(self, lanes: Any = None) -> None:
            raise StoreUnavailable("the database is locked")

    async def act(scene: Scene) -> None:
        task = asyncio.create_task(scene.relay(store=Locked).run())
        await scene.eventually(lambda: Moment.LANES_TAKEN in scene.heard)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    play(act)


def test_an_error_while_waiting_for_new_entries_ends_the_relay() -> None:
    class Broken(MemoryStore):
        async def wait(self, seconds: float) -> None:
            raise LookupError("no way to wait")

    async def act(scene: Scene) -> None:
        with pytest.raises(LookupError, match="no way to wait"):
            await scene.relay(store=Broken).run()

    play(act)


@pytest.mark.parametrize("error", [BrokerUnavailable("no leader"), PublishTimeout("no answer")], ids=["away", "late"])
@pytest.mark.parametrize("prefix_safe", [True, False])
def test_a_topic_that_fails_is_held_while_others_flow_and_goes_on_in_order(
    prefix_safe: bool, error: PublishError
) -> None:
    async def act(scene: Scene) -> None:
        def place(start: int) -> None:
            for n in range(start, start + 60):
                scene.add(Event("E", n, aggregate=("order", n % 4), topic=("orders", "invoices")[n % 2]))

        scene.broker.refuse(lambda message: message.topic == "orders", error)
        async with scene.relay(settings=Settings(relay=RelaySettings(batch=20, retries=100))):
            place(0)
            await scene.eventually(lambda: Moment.TOPIC_AWAY in scene.heard)
            place(60)
            await scene.eventually(lambda: {n for n in scene.published if n % 2} == set(range(1, 120, 2)), 30)
            assert not [n for n in scene.published if n % 2 == 0]
            scene.broker.heal()
            await scene.eventually(lambda: len(set(scene.published)) == 120)
            await scene.eventually(lambda: Moment.TOPIC_BACK in scene.heard)
        first = list(dict.fromkeys(scene.published))
        for order in range(4):
            mine = [n for n in first if n % 4 == order]
            assert mine == sorted(mine)
        assert set((await scene.statuses()).values()) == {"published"}

    play(act, prefix_safe=prefix_safe)


def test_what_was_being_read_when_its_topic_was_held_goes_back_too() -> None:
    """The later event of the line is given out before its topic fails, and comes in when the earlier went back."""
    is_held = asyncio.Event()

    class Slow(MemoryStore):
        async def entries(self, room: int) -> Sequence[Any]:
            found = await super().entries(room)
            if "100" in [entry.data for entry in found]:
                await is_held.wait()
            return found

        def hold(self, topics: frozenset[str]) -> None:
            super().hold(topics)
            if topics:
                is_held.set()

        async def settle(self, settlements: Sequence[Any]) -> None:
            await super().settle(settlements)
            if is_held.is_set():
                await asyncio.sleep(2)  # meanwhile the time to try the topic has come

    async def act(scene: Scene) -> None:
        scene.broker.refuse(lambda message: message.topic == "orders" and not is_held.is_set(), BrokerUnavailable("no"))
        scene.add(Event("E", 0, aggregate=("order", 1), topic="orders"))
        scene.add(*(Event("E", n, aggregate=("order", 1), topic="invoices") for n in range(1, 40)))
        scene.add(Event("E", 100, aggregate=("order", 1), topic="orders"))
        async with scene.relay(store=Slow, settings=Settings(relay=RelaySettings(batch=40))):
            await scene.eventually(lambda: {0, 100} <= set(scene.published))
        first = list(dict.fromkeys(scene.published))
        assert first.index(0) < first.index(100)

    play(act, prefix_safe=False)


def test_an_entry_that_cannot_be_encoded_does_not_end_the_tries_of_its_topic() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.refuse(lambda message: message.topic == "orders", BrokerUnavailable("no leader"))
        scene.add(*(Event("E", n, aggregate=("order", n), topic=("orders", "invoices")[n % 2]) for n in range(60)))
        async with scene.relay(settings=Settings(relay=RelaySettings(batch=20))):
            await scene.eventually(lambda: Moment.TOPIC_AWAY in scene.heard)
            row = scene.database.rows[0]
            scene.database.rows[0] = row._replace(entry=row.entry._replace(headers="{not json"))
            scene.broker.heal()
            await scene.eventually(lambda: set(scene.published) == set(range(1, 60)))

    play(act)


def test_a_topic_is_held_until_everything_of_it_that_was_in_flight_is_answered() -> None:
    """The first event is answered long after its topic may be tried again: the second must not be read before."""

    class Mute(MemoryBroker):
        ignored = False

        def receive(self, messages: Sequence[Message]) -> list[Outcome]:
            if not self.ignored and (first := [message for message in messages if message.body == b"0"]):
                self.ignored = True
                messages = [message for message in messages if message not in first]
            return super().receive(messages)

    async def act(scene: Scene) -> None:
        scene.broker = Mute(prefix_safe=False)
        scene.broker.refuse(lambda message: message.topic == "orders", PublishTimeout("no answer"))
        scene.add(*(Event("E", n, aggregate=("order", n), topic=("orders", "invoices")[n % 2]) for n in range(60)))
        async with scene.relay(settings=Settings(relay=RelaySettings(batch=60))):
            await scene.eventually(lambda: Moment.TOPIC_AWAY in scene.heard)
            scene.add(Event("E", 100, aggregate=("order", 0), topic="orders"))
            scene.broker.heal()
            await scene.eventually(lambda: {0, 100} <= set(scene.published))
        first = list(dict.fromkeys(scene.published))
        assert first.index(0) < first.index(100)

    play(act)


def test_an_event_that_is_refused_when_its_topic_is_tried_is_dead_and_the_topic_goes_on() -> None:
    async def act(scene: Scene) -> None:
        def place(numbers: range) -> None:
            scene.add(*(Event("E", n, aggregate=("order", n), topic=("orders", "invoices")[n % 2]) for n in numbers))

        scene.broker.refuse(lambda message: message.topic == "orders", PublishTimeout("no answer"))
        place(range(60))
        async with scene.relay(settings=Settings(relay=RelaySettings(batch=60))):
            await scene.eventually(lambda: Moment.TOPIC_AWAY in scene.heard)
            scene.broker.heal()
            scene.broker.refuse(lambda message: message.body == b"0", PublishRejected("too large"))
            place(range(60, 80))
            await scene.eventually(lambda: set(scene.published) == set(range(1, 80)), seconds=10)
        assert (await scene.statuses())[0] == "dead"
        assert [row.attempts for row in scene.database.parked] == [1]

    play(act)


def test_a_topic_is_held_although_the_window_is_full_of_it_and_others_went_only_in_the_first_answer() -> None:
    async def act(scene: Scene) -> None:
        scene.broker.latency = lambda: 0.1  # so the first answer comes when the window is full
        scene.broker.refuse(lambda message: message.topic == "orders", BrokerUnavailable("no leader"))
        for n in range(200):
            scene.add(Event("E", n, aggregate=("order", n), topic=("orders", "invoices")[n % 2]))
        async with scene.relay(settings=Settings(relay=RelaySettings(batch=40))):
            await scene.eventually(lambda: set(scene.published) == set(range(1, 200, 2)), seconds=5)
            assert Moment.BROKER_AWAY not in scene.heard

    play(act)


def test_a_topic_that_is_held_is_tried_although_what_nobody_answers_stands_before_it() -> None:
    """A few events of one topic are never answered, and stand first; another topic fails just for a while."""

    async def act(scene: Scene) -> None:
        away = BrokerUnavailable("no leader")
        scene.broker.refuse(lambda message: int(message.body) < 5 or message.topic == "orders", away)
        for n in range(60):
            scene.add(Event("E", n, aggregate=("order", n), topic="invoices" if n < 30 else "orders"))
        async with scene.relay(settings=Settings(relay=RelaySettings(batch=60))):
            await scene.eventually(lambda: Moment.TOPIC_AWAY in scene.heard)
            scene.broker.heal()
            scene.broker.refuse(lambda message: int(message.body) < 5, away)
            await scene.eventually(lambda: set(scene.published) == set(range(5, 60)), seconds=60)
            scene.broker.heal()
            await scene.eventually(lambda: set(scene.published) == set(range(60)), seconds=60)
        assert set((await scene.statuses()).values()) == {"published"}

    play(act)


class LateSilence:
    """A publisher that says two seconds later what nobody answered for."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._late: list[tuple[float, Outcome]] = []
        self._next: asyncio.Task[Sequence[Outcome]] | None = None

    @property
    def prefix_safe(self) -> bool:
        return self._publisher.prefix_safe

    def send(self, messages: Sequence[Message]) -> None:
        self._publisher.send(messages)

    async def outcomes(self) -> Sequence[Outcome]:
        loop = asyncio.get_running_loop()
        while True:
            due = [outcome for at, outcome in self._late if at <= loop.time()]
            if due:
                self._late = [one for one in self._late if one[0] > loop.time()]
                return due
            self._next = self._next or asyncio.create_task(self._publisher.outcomes())
            first = min((at - loop.time() for at, _ in self._late), default=None)
            if not (await asyncio.wait({self._next}, timeout=first))[0]:
                continue
            outcomes, self._next = self._next.result(), None
            self._late += [(loop.time() + 2.0, outcome) for outcome in outcomes if outcome.error is not None]
            if answered := [outcome for outcome in outcomes if outcome.error is None]:
                return answered

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
        await self._publisher.close()


@pytest.mark.parametrize("prefix_safe", [True, False])
def test_who_takes_over_while_a_topic_fails_does_not_stop_the_others(prefix_safe: bool) -> None:
    async def act(scene: Scene) -> None:
        scene.broker.refuse(lambda message: message.topic == "letters", BrokerUnavailable("no leader"))
        settings = Settings(relay=RelaySettings(batch=20))

        def relay(name: str) -> Relay:
            parts = Parts(MemoryStore(scene.database, name), scene.broker.publisher())
            return Relay(lambda: parts, settings, scene.clock, Hooks(), lambda: 0.5)

        def add(numbers: range) -> None:  # many more letters than the window holds
            for n in numbers:
                scene.add(Event("E", n, aggregate=("order", n), topic="orders" if n % 5 == 0 else "letters"))

        add(range(500))
        async with relay("first"):
            await scene.eventually(lambda: set(scene.published) == set(range(0, 500, 5)), seconds=60)
        async with relay("second"):
            add(range(500, 600))
            await scene.eventually(lambda: set(scene.published) == set(range(0, 600, 5)), seconds=5)
            scene.broker.heal()
            await scene.eventually(lambda: set(scene.published) == set(range(600)), seconds=60)

    play(act, prefix_safe=prefix_safe)


@pytest.mark.parametrize("prefix_safe", [True, False])
@pytest.mark.parametrize("silent", [2, 10], ids=["each second one is silent", "one in ten is silent"])
def test_a_topic_that_nobody_answers_for_does_not_stop_the_others_though_it_fills_the_window(
    prefix_safe: bool, silent: int
) -> None:
    async def act(scene: Scene) -> None:
        scene.broker.refuse(lambda message: message.topic == "letters", BrokerUnavailable("no leader"))
        for n in range(400):
            scene.add(Event("E", n, aggregate=("order", n), topic="letters" if n % silent == 0 else "orders"))
        store = MemoryStore(scene.database, "a")
        publisher = LateSilence(scene.broker.publisher())
        settings = Settings(relay=RelaySettings(batch=40))
        relay = Relay(lambda: Parts(store, publisher), settings, scene.clock, Hooks(), lambda: 0.5)
        orders = {n for n in range(400) if n % silent}
        async with relay:
            await scene.eventually(lambda: set(scene.published) == orders, seconds=60)
            scene.broker.heal()
            await scene.eventually(lambda: set(scene.published) == set(range(400)), seconds=60)

    play(act, prefix_safe=prefix_safe)
