"""The embedded broker's file: what it refuses, what it survives, what it keeps."""

import asyncio
import json
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pillarbox.brokers.sqlite import SqlitePublisher, SqliteSubscriber
from pillarbox.brokers.sqlite import member as group_member
from pillarbox.brokers.sqlite import publisher as near_end
from pillarbox.brokers.sqlite.file import connect
from pillarbox.brokers.sqlite.retention import prune
from pillarbox.core.message import Message
from pillarbox.errors import BrokerUnavailable, ConfigError, PublishError, PublishRejected, SchemaMismatch
from pillarbox.kernel_lock import KernelLock
from pillarbox.telemetry.hooks import Facts, Hooks, Moment
from pillarbox.testing.clock import ManualClock
from pillarbox.testing.contracts.publisher import answers, batch, errors
from pillarbox.testing.contracts.subscriber import receive


def publisher_of(path: Path, seconds: float = 10, hooks: Hooks | None = None) -> SqlitePublisher:
    return SqlitePublisher(path, publish_timeout=timedelta(seconds=seconds), hooks=hooks or Hooks())


def subscriber_of(
    path: Path, clock: ManualClock | None = None, consumer: str = "billing", topic: str = "orders"
) -> SqliteSubscriber:
    clock = clock or ManualClock(datetime.now(UTC))
    return SqliteSubscriber(path, consumer=consumer, topics=[topic], hooks=Hooks(), clock=clock)


async def publish(path: Path, messages: list[Message]) -> None:
    publisher = publisher_of(path)
    publisher.send(messages)
    assert set(errors(await answers(publisher, len(messages))).values()) == {None}
    await publisher.close()


def ids(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        return [id for (id,) in connection.execute("SELECT id FROM messages ORDER BY id")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stream.db"


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"these are my memoirs, chapter one " * 100)
    with pytest.raises(ConfigError, match=r"stream\.db is not a SQLite database; name another file"):
        publisher_of(path)


async def test_a_subscriber_refuses_a_file_that_is_no_database(path: Path) -> None:
    path.write_bytes(b"these are my memoirs, chapter one " * 100)
    subscriber = subscriber_of(path)
    with pytest.raises(ConfigError, match="is not a SQLite database"):
        await subscriber.deliveries(1, 0)
    await subscriber.close()


def test_a_database_of_somebody_else_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE messages (text)")
    with pytest.raises(ConfigError, match="is a database, but not a broker's file; name a file of its own"):
        publisher_of(path)


async def test_a_file_from_the_future_is_refused(path: Path) -> None:
    await publish(path, batch("a"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE broker SET value = '2' WHERE name = 'version'")
    with pytest.raises(SchemaMismatch, match="has version 2, this release knows 1: upgrade pillarbox"):
        publisher_of(path)


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing does not exist; create it"):
        publisher_of(tmp_path / "missing" / "stream.db")


async def test_a_file_that_turns_bad_while_it_is_used_ends_the_publisher_loudly(path: Path) -> None:
    publisher = publisher_of(path)
    path.write_bytes(b"these are my memoirs, chapter one " * 100)
    for name in ("stream.db-wal", "stream.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    publisher.send(batch("a"))
    with pytest.raises(ConfigError, match="is not a SQLite database"):
        await publisher.outcomes()
    await publisher.close()


async def test_a_directory_that_vanishes_while_it_is_used_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "volume" / "stream.db"
    path.parent.mkdir()
    publisher, subscriber = publisher_of(path), subscriber_of(path)
    publisher.send(batch("a"))
    await answers(publisher, 1)
    assert len(await subscriber.deliveries(1, 5)) == 1
    shutil.rmtree(path.parent)
    told = []
    for first in (2, 3):  # the first one notices, the second one opens the file anew
        publisher.send(batch("b", first=first))
        (outcome,) = await answers(publisher, 1)
        assert isinstance(outcome.error, BrokerUnavailable)
        told.append(str(outcome.error))
    assert told[-1] == f"the directory {path.parent} of the broker's file is gone; it is waited for"
    path.parent.mkdir()
    publisher.send(batch("c", first=4))
    assert errors(await answers(publisher, 1)) == {4: None}
    assert len(ids(path)) == 1
    await publisher.close()
    await subscriber.close()


async def test_a_file_that_is_deleted_is_not_written_into_the_void(path: Path) -> None:
    publisher = publisher_of(path)
    publisher.send(batch("a"))
    await answers(publisher, 1)
    for name in ("stream.db", "stream.db-wal", "stream.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    publisher.send(batch("b", first=2))
    outcomes = await answers(publisher, 1)
    assert "deleted or replaced" in str(outcomes[0].error)
    publisher.send(batch("b", first=3))
    assert errors(await answers(publisher, 1)) == {3: None}
    assert len(ids(path)) == 1
    await publisher.close()


async def test_a_subscriber_goes_on_with_a_new_file(path: Path) -> None:
    await publish(path, batch("a"))
    subscriber = subscriber_of(path)
    await receive(subscriber, 1)
    for name in ("stream.db", "stream.db-wal", "stream.db-shm", "stream.db-consumers"):
        path.with_name(name).unlink(missing_ok=True)
    await publish(path, batch("b"))
    assert [delivery.message.key for delivery in await receive(subscriber, 1)] == ["b"]
    await subscriber.close()


async def test_a_full_disk_is_an_outage_and_loses_nothing(path: Path) -> None:
    publisher = publisher_of(path)
    publisher.send(batch("a"))
    await answers(publisher, 1)
    assert publisher._connection is not None
    publisher._connection.execute("PRAGMA max_page_count = 1")
    publisher.send(batch("bc", first=2, padding=100_000))
    outcomes = await answers(publisher, 2)
    assert errors(outcomes) == {2: BrokerUnavailable, 3: BrokerUnavailable}
    assert "full" in str(outcomes[0].error)
    assert len(ids(path)) == 1
    publisher.send(batch("bc", first=2))
    assert errors(await answers(publisher, 2)) == {2: None, 3: None}
    await publisher.close()


async def test_a_message_with_text_that_cannot_be_encoded_is_refused_alone(path: Path) -> None:
    publisher = publisher_of(path)
    messages = [Message("orders", "\ud800", {"id": "7"}, b"x", 1), *batch("a", first=2)]
    publisher.send(messages)
    outcomes = await answers(publisher, 2)
    assert errors(outcomes) == {1: PublishRejected, 2: None}
    assert "event 7" in str(outcomes[0].error)
    await publisher.close()


async def test_what_waits_behind_an_unstorable_message_is_held_back_and_told_why(path: Path) -> None:
    publisher = SqlitePublisher(path, publish_timeout=timedelta(seconds=5), hooks=Hooks(), largest_message=10)
    publisher.send([*batch("a", padding=20), *batch("a", first=2)])
    outcomes = {outcome.ticket: outcome.error for outcome in await answers(publisher, 2)}
    assert type(outcomes[2]) is PublishError
    assert "held back" in str(outcomes[2])
    await publisher.close()


async def test_sends_that_wait_together_share_a_transaction(path: Path) -> None:
    stored: list[object] = []

    def hear(moment: Moment, facts: Facts) -> None:
        stored.append(facts["count"])

    publisher = publisher_of(path, hooks=Hooks(hear))
    with closing(sqlite3.connect(path, isolation_level=None)) as blocker:
        blocker.execute("BEGIN EXCLUSIVE")
        for ticket in range(10):
            publisher.send(batch("a", first=ticket))
    await answers(publisher, 10)
    assert sum(int(str(count)) for count in stored) == 10
    assert len(stored) <= 3
    await publisher.close()


async def test_a_large_send_is_stored_in_several_transactions_and_answered_one_by_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_end, "LARGEST_TRANSACTION", 200)
    stored: list[object] = []
    hold = threading.Event()

    def listen(moment: Moment, facts: Facts) -> None:
        if moment is Moment.STORED_BY_BROKER:
            stored.append(facts["count"])
            assert len(stored) < 2 or hold.wait(10)

    publisher = publisher_of(path, hooks=Hooks(listen))
    publisher.send(large("a", "b", "c", "d", "e"))
    assert len(await publisher.outcomes()) == 2
    hold.set()
    assert set(errors(await answers(publisher, 3)).values()) == {None}
    assert stored == [2, 2, 1]
    assert bodies(path) == ["a", "b", "c", "d", "e"]
    await publisher.close()


async def test_nothing_of_a_send_is_stored_behind_a_transaction_that_failed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_end, "LARGEST_TRANSACTION", 200)
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def listen(moment: Moment, facts: Facts) -> None:
        if moment is Moment.STORED_BY_BROKER:
            writer.execute("BEGIN IMMEDIATE")

    publisher = publisher_of(path, seconds=0.2, hooks=Hooks(listen))
    publisher.send(large("a", "b", "c", "d", "e"))
    said = errors(await answers(publisher, 5))
    writer.rollback()
    writer.close()
    assert [error for _, error in sorted(said.items())] == [None] * 2 + [BrokerUnavailable] * 3
    await publisher.close()
    assert bodies(path) == ["a", "b"]


async def test_a_commit_that_outlasts_the_deadline_counts_and_is_not_sent_again(path: Path) -> None:
    waits = threading.Event()

    def commit_slowly(moment: Moment, facts: Facts) -> None:
        waits.wait(10)

    publisher = publisher_of(path, seconds=0.05, hooks=Hooks(commit_slowly))
    publisher.send(batch("a"))
    given = asyncio.create_task(answers(publisher, 1))
    await asyncio.sleep(0.2)  # four deadlines: the commit is what takes so long
    waits.set()
    assert set(errors(await given).values()) == {None}
    assert len(ids(path)) == 1
    await publisher.close()


def large(*names: str) -> list[Message]:
    """Make messages of which two fit into 200 bytes."""
    return [Message("orders", "7", {"id": name}, name.encode() * 100, n) for n, name in enumerate(names, 1)]


def bodies(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [chr(body[0]) for (body,) in connection.execute("SELECT body FROM messages ORDER BY id")]


async def test_an_acknowledgement_survives_an_outage(path: Path) -> None:
    await publish(path, batch("aa"))
    subscriber = subscriber_of(path)
    received = await receive(subscriber, 2)
    subscriber._member._connect().execute("PRAGMA busy_timeout = 10")
    with closing(sqlite3.connect(path, isolation_level=None)) as blocker:
        blocker.execute("BEGIN EXCLUSIVE")
        with pytest.raises(BrokerUnavailable, match="locked"):
            await subscriber.acknowledge(received)
    await subscriber.deliveries(1, 0.3)  # it makes good for it by itself
    await subscriber.close()
    again = subscriber_of(path)
    assert not await again.deliveries(10, 0.1)
    await again.close()


async def test_a_member_that_dies_leaves_no_more_suspects_than_were_in_flight(path: Path) -> None:
    await publish(path, batch("a" * 1500))
    first = subscriber_of(path)
    received = await receive(first, 20)
    await first.acknowledge(received[:10])
    await first._in_worker(first._member.vanish)
    second = subscriber_of(path)
    again = await receive(second, 1000, room=1000)
    await second.acknowledge(again)
    again += await receive(second, 490, room=1000)
    assert [delivery.redelivered for delivery in again] == [True] * 1000 + [False] * 490
    await second.close()


async def test_a_member_that_dies_with_nothing_in_flight_leaves_no_suspects(path: Path) -> None:
    await publish(path, batch("ab"))
    first = subscriber_of(path)
    await first.acknowledge(await receive(first, 2))
    await first._in_worker(first._member.vanish)
    await publish(path, batch("abab", first=3))  # nobody has had these
    second = subscriber_of(path)
    assert [delivery.redelivered for delivery in await receive(second, 4)] == [False] * 4
    await second._in_worker(second._member.vanish)
    third = subscriber_of(path)
    assert [delivery.redelivered for delivery in await receive(third, 4)] == [True] * 4
    await third.close()


async def test_suspects_stay_suspect_when_they_change_hands_once_more(path: Path) -> None:
    await publish(path, batch("a" * 10))
    first = subscriber_of(path)
    await receive(first, 10)
    await first._in_worker(first._member.vanish)
    second = subscriber_of(path)
    await second.acknowledge(await receive(second, 4))
    await second.close()
    third = subscriber_of(path)
    assert all(delivery.redelivered for delivery in await receive(third, 6))
    await third.close()


async def test_no_more_of_a_partition_is_in_flight_than_a_death_would_make_suspect(path: Path) -> None:
    await publish(path, batch("a" * 1200))
    subscriber = subscriber_of(path)
    received = await receive(subscriber, 1000, room=5000)
    assert not await subscriber.deliveries(5000, 0.1)
    await subscriber.acknowledge(received[:1])
    assert len(await subscriber.deliveries(5000, 1)) == 1
    await subscriber.close()


async def test_members_of_different_topics_do_not_wait_for_one_another(path: Path) -> None:
    await publish(path, batch("abcdefghijkl"))
    mails = SqliteSubscriber(path, consumer="billing", topics=["mails"], hooks=Hooks(), clock=ManualClock())
    orders = SqliteSubscriber(path, consumer="billing", topics=["orders"], hooks=Hooks(), clock=ManualClock())
    assert not await mails.deliveries(10, 0)
    assert len(await receive(orders, 12)) == 12
    await mails.close()
    await orders.close()


async def test_five_members_all_have_work(path: Path) -> None:
    members = [subscriber_of(path) for _ in range(5)]
    deadline = asyncio.get_running_loop().time() + 10
    while sorted(len(member._member._held) for member in members) != [3, 3, 3, 3, 4]:
        assert asyncio.get_running_loop().time() < deadline
        for member in members:
            await member.deliveries(1, 0.02)
    for member in members:
        await member.close()


def grow_old(path: Path, days: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE messages SET at = at - ?", (timedelta(days=days) // timedelta(microseconds=1),))


def prune_all(path: Path) -> int:
    now = datetime.now(UTC)
    with closing(connect(path, durable=True, timeout=1)) as connection:
        return prune(connection, (now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))


async def test_members_share_on_when_the_file_of_their_locks_is_deleted(path: Path) -> None:
    await publish(path, batch("a"))
    one, two = subscriber_of(path), subscriber_of(path)
    members = one._member, two._member
    await until(lambda: [len(member._held) for member in members] == [8, 8], one, two)
    before = [{partition: held.epoch for partition, held in member._held.items()} for member in members]
    path.with_name("stream.db-consumers").unlink()
    for _ in range(5):
        await tended(one, two)
    after = [{partition: held.epoch for partition, held in member._held.items()} for member in members]
    assert after == before
    for member in members:
        assert member._lock is not None
        assert not member._lock.astray
    await one.close()
    await two.close()


async def test_a_member_whose_slot_a_newcomer_took_keeps_what_it_holds(path: Path) -> None:
    await publish(path, batch("a"))
    one = subscriber_of(path)
    await until(lambda: len(one._member._held) == 16, one)
    before = {partition: held.epoch for partition, held in one._member._held.items()}
    locks = path.with_name("stream.db-consumers")
    locks.unlink()
    newcomer = KernelLock(locks, one._member._slot)
    assert newcomer.take()
    await tended(one)
    assert {partition: held.epoch for partition, held in one._member._held.items()} == before
    newcomer.release()
    await one.close()


async def until(condition: Callable[[], bool], *subscribers: SqliteSubscriber) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await tended(*subscribers)


async def tended(*subscribers: SqliteSubscriber) -> None:
    """Let every member look at its group."""
    for subscriber in subscribers:
        subscriber._member._tend_at = 0.0
        deliveries = await subscriber.deliveries(10, 0)
        await subscriber.acknowledge(deliveries)


async def test_retention_deletes_what_is_older_than_a_week(path: Path) -> None:
    await publish(path, batch("abc"))
    grow_old(path, 8)
    await publish(path, batch("abc", first=4))
    assert prune_all(path) == 3
    assert ids(path) == [4, 5, 6]


async def test_retention_stops_at_a_living_consumer(path: Path) -> None:
    await publish(path, batch("aaaa"))
    subscriber = subscriber_of(path)
    await subscriber.acknowledge((await receive(subscriber, 4))[:2])
    await subscriber.close()
    grow_old(path, 8)
    assert prune_all(path) == 2
    assert ids(path) == [3, 4]


async def test_retention_does_not_wait_for_a_consumer_that_is_long_gone(path: Path) -> None:
    await publish(path, batch("aaaa"))
    subscriber = subscriber_of(path, ManualClock(datetime.now(UTC) - timedelta(days=8)))
    await receive(subscriber, 1)
    await subscriber.close()
    grow_old(path, 8)
    assert prune_all(path) == 4


async def test_ids_are_not_used_again_after_pruning(path: Path) -> None:
    await publish(path, batch("aaaa"))
    grow_old(path, 8)
    prune_all(path)
    await publish(path, batch("a"))
    assert ids(path) == [5]


async def test_a_publisher_prunes_by_itself(path: Path) -> None:
    await publish(path, batch("aaaa"))
    grow_old(path, 8)
    publisher = publisher_of(path)
    publisher._prune_at = 0
    publisher.send(batch("a", first=5))
    await answers(publisher, 1)
    await publisher.close()
    assert ids(path) == [5]


async def test_the_file_can_be_read_with_plain_sql(path: Path) -> None:
    await publish(path, [Message("orders", "7", {"id": "1", "name": "Grüße"}, b'{"total": 42}', 1)])
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT topic, key, headers, json_extract(body, '$.total') FROM messages").fetchone()
    assert (*row[:2], json.loads(row[2]), row[3]) == ("orders", "7", {"id": "1", "name": "Grüße"}, 42)


async def test_a_subscriber_reads_so_many_bytes_at_a_time_and_misses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_member, "MOST_BYTES", 10_000)
    messages = [Message("orders", f"{n % 40}", {"id": str(n)}, b"x" * 3000, ticket=n) for n in range(100)]
    await publish(path, messages)
    subscriber = subscriber_of(path)
    got: list[int] = []
    while len(got) < 100:
        deliveries = await subscriber.deliveries(1000, 5)
        assert 0 < len(deliveries) <= 4
        got += [int(delivery.message.headers["id"]) for delivery in deliveries]
    assert sorted(got) == list(range(100))
    for key in range(40):
        assert [n for n in got if n % 40 == key] == [n for n in range(100) if n % 40 == key]
    await subscriber.close()


async def test_a_message_that_is_larger_than_that_is_read_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "MOST_BYTES", 100)
    await publish(path, [Message("orders", "k", {"id": str(n)}, b"x" * 3000, ticket=n) for n in range(2)])
    subscriber = subscriber_of(path)
    assert [len(await subscriber.deliveries(1000, 5)) for _ in range(2)] == [1, 1]
    await subscriber.close()


async def warnings_of(path: Path, caplog: pytest.LogCaptureFixture, topic: str) -> list[str]:
    """Give what a subscriber of a topic warns of as it looks a few times."""
    caplog.clear()
    subscriber = subscriber_of(path, topic=topic)
    for _ in range(3):
        await subscriber.acknowledge(await subscriber.deliveries(10, 0))
    await subscriber.close()
    return [record.getMessage() for record in caplog.records if record.name == "pillarbox.brokers.sqlite"]


async def test_a_topic_to_which_nobody_has_published_is_told_once_with_those_that_are_like_it(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(path, batch("ab"))
    await publish(path, batch("a", topic="mails"))
    [told] = await warnings_of(path, caplog, "oders")
    told_of = f"nothing was published to the topic 'oders' in {path} yet"
    assert told == f"{told_of}; mend its name, or it is waited for. There is: orders"
    [told] = await warnings_of(path, caplog, "x")
    assert told.endswith("There is: mails, orders")
    assert await warnings_of(path, caplog, "orders") == []


async def test_nothing_is_told_of_a_topic_in_a_file_without_messages_or_whose_messages_were_all_read_and_deleted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert await warnings_of(path, caplog, "orders") == []
    await publish(path, batch("ab"))
    await publish(path, batch("a", topic="mails"))
    await warnings_of(path, caplog, "orders")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM messages WHERE topic = 'orders'")
    assert await warnings_of(path, caplog, "orders") == []


async def test_topics_that_are_no_text_do_not_keep_a_subscriber_from_reading(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(path, batch("ab"))
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE messages SET topic = x'ff00' WHERE id = 1")
    [told] = await warnings_of(path, caplog, "x")
    assert "There is: orders, " in told
