"""The rules of what an operator sees: stats, and the events that are found."""

from datetime import UTC, datetime, timedelta

from pillarbox.core.event import Event
from pillarbox.core.retry import PUBLISHED, Dead
from pillarbox.core.window import BLOCKED, Delayed
from pillarbox.ports import NEWEST, Query
from pillarbox.testing.contracts.store_bench import (
    DEAD,
    ROUNDS,
    SKIPPED,
    StoreBench,
    due,
    event,
    found,
    holder,
    publish_all,
    read,
    record,
    replayed,
    settle,
    settle_each,
    soon,
)


class SeeingRules:
    """Stats and find."""

    async def test_what_was_added_is_pending(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("A"), event("B", topic="invoices"))
        stats = await store.stats()
        assert (stats.pending, stats.pending_exact) == (2, True)
        assert stats.pending_by_topic == {"orders": 1, "invoices": 1}
        assert stats.oldest_pending_at == (await record(store, "A")).created_at
        assert (await record(store, "A")).status == "pending"

    async def test_the_age_of_what_is_pending_is_that_of_the_oldest(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        newest = oldest = (await record(store, "A")).created_at
        for n in range(ROUNDS):  # where the database's clock counts, until it has moved on
            bench.clock.advance(60)
            await bench.add(event(f"B{n}"))
            newest = (await record(store, f"B{n}")).created_at
            if newest > oldest:
                break
        assert newest > oldest
        assert (await store.stats()).oldest_pending_at == oldest
        await settle(store, (await read(store))[:-1])
        assert (await store.stats()).oldest_pending_at == newest

    async def test_the_oldest_of_each_topic_is_known(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B", "2", topic="invoices"))
        await bench.add(event("C"))
        assert (await store.stats()).oldest_by_topic == {
            "orders": (await record(store, "A")).created_at,
            "invoices": (await record(store, "B")).created_at,
        }
        await publish_all(store)
        assert (await store.stats()).oldest_by_topic == {}

    async def test_what_was_added_in_the_last_minute_is_counted_by_its_topic(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B"), event("C", topic="invoices"))
        await publish_all(store)
        stats = await store.stats()
        assert (stats.added_by_topic, stats.added_since) == ({"orders": 2, "invoices": 1}, None)
        bench.clock.advance(timedelta(days=3650).total_seconds())  # also where the database's clock counts
        assert (await store.stats()).added_by_topic == {}

    async def test_of_many_that_were_added_the_newest_are_counted(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("First", topic="invoices"))
        await bench.add(*(event("A", None) for _ in range(NEWEST)))
        stats = await store.stats()
        assert stats.added_by_topic == {"orders": NEWEST}
        assert stats.added_since == min(one.created_at for one in await store.find(Query(limit=NEWEST)))

    async def test_what_was_given_out_is_pending_until_it_is_settled(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await read(store)
        assert (await store.stats()).pending == 1

    async def test_what_was_settled_is_published_with_its_time(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await publish_all(store)
        published = bench.clock.now()
        bench.clock.advance(60)
        await bench.add(event("B"))
        await publish_all(store)
        assert (await record(store, "A")).published_at == published
        assert (await record(store, "B")).published_at == bench.clock.now()
        stats = await store.stats()
        assert (stats.pending, stats.oldest_pending_at, stats.last_published_at) == (0, None, bench.clock.now())

    async def test_what_was_parked_is_published_with_the_time_it_went(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("Head"), event("Follower"), event("Free", None), event("Skipped", "2"))
        failed = soon(bench)
        await settle_each(store, await read(store), Head=failed, Follower=BLOCKED, Free=failed, Skipped=SKIPPED)
        bench.clock.advance(60)
        await store.retry(Query(type="Skipped"))
        assert len(await publish_all(store)) == 4
        published = bench.clock.now()
        bench.clock.advance(60)
        seen = {one.type: (one.status, one.published_at) for one in await store.find(Query())}
        assert seen == dict.fromkeys(("Head", "Follower", "Free", "Skipped"), ("published", published))

    async def test_what_was_delayed_is_published_with_the_time_it_went(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("Later", available_at=due(bench, 60)))
        await settle(store, await read(store), Delayed(due(bench, 60)))
        bench.clock.advance(90)
        assert await publish_all(store) == ["Later"]
        published = bench.clock.now()
        bench.clock.advance(60)
        seen = await record(store, "Later")
        assert (seen.status, seen.published_at, seen.next_try_at) == ("published", published, None)

    async def test_the_last_publishing_may_be_that_of_a_parked_one(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench))
        bench.clock.advance(60)
        await publish_all(store)
        assert (await store.stats()).last_published_at == bench.clock.now()

    async def test_a_failure_is_no_publishing(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), DEAD)
        assert (await store.stats()).last_published_at is None

    async def test_what_is_parked_is_counted_by_its_topic(self, bench: StoreBench) -> None:
        store = await holder(bench)
        later = event("L", "3", topic="invoices", available_at=due(bench, 60))
        await bench.add(event("R", "1"), event("D", "2", topic="invoices"), event("B", "2", topic="invoices"), later)
        await settle_each(store, await read(store), R=soon(bench), D=DEAD, B=BLOCKED, L=Delayed(due(bench, 60)))
        stats = await store.stats()
        invoices = {"dead": 1, "blocked": 1, "delayed": 1}
        assert stats.parked_by_topic == {"orders": {"retrying": 1}, "invoices": invoices}

    async def test_lines_behind_a_failure_are_counted_once_each(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("R", "1"), event("D", "2"), event("B", "2"), event("F", None), event("S", "3"))
        failed = soon(bench)
        await settle_each(store, await read(store), R=failed, D=DEAD, B=BLOCKED, F=failed, S=SKIPPED)
        assert (await store.stats()).blocked_lines == 2

    async def test_what_was_published_in_the_last_minute_is_counted(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"), event("B", "2"))
        await settle_each(store, await read(store), A=PUBLISHED, B=soon(bench))
        bench.clock.advance(30)
        await bench.add(event("C", "3"))
        assert sorted(await publish_all(store)) == ["B", "C"]
        assert (await store.stats()).published_lately == 3
        bench.clock.advance(31)
        assert (await store.stats()).published_lately == 2
        bench.clock.advance(60)
        assert (await store.stats()).published_lately == 0

    async def test_what_was_paused_is_counted_when_it_is_published(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await store.pause("orders", "me", "why not")
        await bench.add(event("A"), event("B", "2"))
        assert await read(store) == []
        await store.resume("orders")
        assert sorted(await publish_all(store)) == ["A", "B"]
        await store.release()
        assert (await store.stats()).published_lately == 2

    async def test_what_is_parked_is_counted_by_its_state(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("R", "1"), event("D", "2"), event("B", "2"), event("L", "3"))
        await settle_each(store, await read(store), R=soon(bench), D=DEAD, B=BLOCKED, L=Delayed(due(bench, 60)))
        stats = await store.stats()
        assert (stats.retrying, stats.dead, stats.blocked, stats.delayed, stats.pending) == (1, 1, 1, 1, 0)

    async def test_what_is_delayed_is_overdue_once_its_time_has_come(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("L", "1"), event("M", "2"), event("R", None))
        first, second = due(bench, 60), due(bench, 90)
        await settle_each(store, await read(store), L=Delayed(first), M=Delayed(second), R=soon(bench, 50))
        stats = await store.stats()
        assert (stats.overdue_by_topic, stats.oldest_due_at, stats.delayed) == ({}, None, 2)
        bench.clock.advance(60)
        stats = await store.stats()
        assert (stats.overdue_by_topic, stats.oldest_due_at, stats.delayed) == ({"orders": 1}, first, 2)
        bench.clock.advance(30)
        stats = await store.stats()
        assert (stats.overdue_by_topic, stats.oldest_due_at, stats.delayed) == ({"orders": 2}, first, 2)

    async def test_copies_of_a_replay_are_counted_among_what_is_delayed(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"), event("B", "2"), event("L", "3"))
        await settle_each(store, await read(store), A=PUBLISHED, B=PUBLISHED, L=Delayed(due(bench, 60)))
        assert await replayed(store, Query(status=("published",)), rate=0.1) == 2
        stats = await store.stats()
        assert (stats.delayed, stats.copies, stats.overdue, stats.copies_overdue) == (3, 2, 1, 1)
        bench.clock.advance(60)
        stats = await store.stats()
        assert (stats.delayed, stats.copies, stats.overdue, stats.copies_overdue) == (3, 2, 3, 2)

    async def test_people_see_the_heads_of_blocked_lines(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("D"), event("B"))
        await settle(store, await read(store), DEAD, BLOCKED)
        [head] = (await store.stats()).heads
        assert (head.type, head.status, head.last_error) == ("D", "dead", "refused for good")

    async def test_people_see_the_oldest_20_heads_in_their_order(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await store.pause("orders", "ada", "the shop moves")
        await bench.add(event("First"))
        await bench.add(*(event(f"E{n}", str(n), topic="invoices") for n in range(21)))
        await settle(store, await read(store), DEAD)
        await store.resume("orders")
        await settle(store, await read(store), DEAD)
        heads = (await store.stats()).heads
        assert [head.type for head in heads] == ["First", *(f"E{n}" for n in range(19))]

    async def test_what_holds_nobody_back_is_no_head(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("Free", None), event("Skipped", "2"))
        await settle_each(store, await read(store), Free=soon(bench), Skipped=SKIPPED)
        assert list((await store.stats()).heads) == []

    async def test_a_blocked_event_names_the_head_of_its_line(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("D"), event("B"))
        await settle(store, await read(store), DEAD, BLOCKED)
        seen = await record(store, "B")
        assert (seen.status, seen.blocked_by) == ("blocked", (await record(store, "D")).event_id)

    async def test_a_retrying_event_shows_when_it_is_tried_again(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A"))
        await settle(store, await read(store), soon(bench, 5))
        seen = await record(store, "A")
        assert (seen.status, seen.attempts, seen.next_try_at) == ("retrying", 1, due(bench, 5))

    async def test_a_record_has_everything_that_was_added(self, bench: StoreBench) -> None:
        store = await bench.store()
        at = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
        await bench.add(event("A", "7", headers={"tenant": "x"}, idempotency_key="k", number=3, occurred_at=at))
        seen = await record(store, "A")
        assert (seen.type, seen.topic, seen.aggregate) == ("A", "orders", ("order", "7"))
        assert (seen.headers, seen.idempotency_key, seen.number) == ({"tenant": "x"}, "k", 3)
        assert (seen.data, seen.content_type) == ('{"name":"A"}', "application/json")
        assert (seen.occurred_at, seen.available_at) == (at, None)

    async def test_a_record_of_bytes_has_them_with_their_type(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(Event("Raw", b"\x00\xff", content_type="application/avro", topic="orders"))
        seen = await record(store, "Raw")
        assert (seen.data, seen.content_type, seen.aggregate) == (b"\x00\xff", "application/avro", None)

    async def test_a_record_has_the_time_from_which_it_may_go(self, bench: StoreBench) -> None:
        store = await bench.store()
        at = due(bench, 60)
        await bench.add(event("Later", available_at=at))
        assert (await record(store, "Later")).available_at == at

    async def test_events_are_found_by_what_they_are(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("A", "1"), event("B", "2"), event("C", "2", topic="invoices"))
        id = (await record(store, "B")).event_id
        assert await found(store, Query(ids=(id,))) == ["B"]
        assert await found(store, Query(type="A")) == ["A"]
        assert await found(store, Query(topic="invoices")) == ["C"]
        assert await found(store, Query(aggregate=("order", "2"))) == ["C", "B"]

    async def test_events_are_found_by_their_status(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("P", "1"), event("D", "2"), event("B", "2"))
        await settle_each(store, await read(store), P=PUBLISHED, D=DEAD, B=BLOCKED)
        await bench.add(event("N"))
        assert await found(store, Query(status=("pending",))) == ["N"]
        assert await found(store, Query(status=("published",))) == ["P"]
        assert await found(store, Query(status=("dead",))) == ["D"]
        assert await found(store, Query(status=("dead", "blocked"), newest_first=False)) == ["D", "B"]

    async def test_dead_events_are_grouped_by_the_first_line_of_their_error(self, bench: StoreBench) -> None:
        store = await holder(bench)
        first = bench.clock.now()
        await bench.add(event("A", "1"), event("B", "2"), event("R", "3"))
        full, gone = Dead("the disk is full\nat 7"), Dead("no such user")
        await settle_each(store, await read(store), A=full, B=gone, R=soon(bench, 3600))
        bench.clock.advance(60)
        await bench.add(event("C", "4"), event("F", "4"))
        await settle(store, await read(store), Dead("the disk is full\nat 9"), BLOCKED)
        disk, user = await store.group_dead(Query())
        assert (disk.error, disk.events, disk.first_at, disk.last_at) == (
            "the disk is full",
            2,
            first,
            bench.clock.now(),
        )
        assert (user.error, user.events, user.first_at, user.last_at) == ("no such user", 1, first, first)
        assert (disk.example, user.example) == (
            (await record(store, "C")).event_id,
            (await record(store, "B")).event_id,
        )

    async def test_errors_that_name_their_own_event_are_one_group(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"), event("B", "2"))
        entries = await read(store)
        await settle(store, entries, *(Dead(f"event {entry.event_id} is too large\nby far") for entry in entries))
        [group] = await store.group_dead(Query())
        assert (group.error, group.events) == ("event … is too large", 2)

    async def test_only_the_dead_events_that_the_query_means_are_grouped(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"), event("B", "2"), event("C", "3", topic="invoices"))
        await settle_each(store, await read(store), A=DEAD, B=Dead("no such user"), C=DEAD)
        b = await record(store, "B")
        for query, groups in (
            (Query(), [("refused for good", 2), ("no such user", 1)]),
            (Query(limit=1), [("refused for good", 2)]),
            (Query(type="A"), [("refused for good", 1)]),
            (Query(topic="orders", type="B"), [("no such user", 1)]),
            (Query(topic="invoices"), [("refused for good", 1)]),
            (Query(aggregate=("order", "2")), [("no such user", 1)]),
            (Query(ids=(b.event_id,)), [("no such user", 1)]),
            (Query(since=b.created_at + timedelta(days=1)), []),
            (Query(until=b.created_at - timedelta(days=1)), []),
            (Query(status=("published",)), []),
        ):
            assert [(group.error, group.events) for group in await store.group_dead(query)] == groups

    async def test_what_is_dead_no_more_is_in_no_group(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"), event("B", "2"), event("C", "3"))
        await settle(store, await read(store), DEAD)
        await store.retry(Query(type="A"))
        await store.drop(Query(type="B"))
        [group] = await store.group_dead(Query())
        assert (group.events, group.example) == (1, (await record(store, "C")).event_id)

    async def test_an_event_whose_two_replays_failed_is_one_dead_event(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", None))
        await publish_all(store)
        for id in ("replay-1", "replay-2"):
            await replayed(store, Query(), id)
        for _ in range(2):
            await settle(store, await read(store), DEAD)
        [group] = await store.group_dead(Query())
        assert (group.events, len(await store.find(Query(status=("dead",))))) == (1, 1)

    async def test_events_are_found_by_a_text_in_their_error(self, bench: StoreBench) -> None:
        store = await holder(bench)
        await bench.add(event("A", "1"), event("B", "2"), event("C", "3"), event("P", "4"))
        dead = {"A": Dead("100% full_disk"), "B": Dead("1000 fulldisk"), "C": Dead("Full_Disk")}
        await settle_each(store, await read(store), P=PUBLISHED, **dead)
        assert await found(store, Query(error="0% full_")) == ["A"]
        assert await found(store, Query(error="full", newest_first=False)) == ["A", "B"]
        assert await found(store, Query(error="no such text")) == []
        assert [group.error for group in await store.group_dead(Query(error="1000"))] == ["1000 fulldisk"]

    async def test_events_are_found_by_their_time(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("A"))
        at = (await record(store, "A")).created_at
        assert await found(store, Query(since=at)) == ["A"]
        assert await found(store, Query(since=at + timedelta(seconds=1))) == []
        assert await found(store, Query(until=at)) == []
        assert await found(store, Query(until=at + timedelta(seconds=1))) == ["A"]

    async def test_events_are_listed_in_the_order_asked_for(self, bench: StoreBench) -> None:
        store = await bench.store()
        await bench.add(event("A"), event("B"), event("C"))
        assert await found(store, Query(limit=2)) == ["C", "B"]
        assert await found(store, Query(limit=2, newest_first=False)) == ["A", "B"]
        after = (await record(store, "A")).position
        assert await found(store, Query(after=after, newest_first=False)) == ["B", "C"]
