"""The admin service on a store: what the command line, the dashboard and applications call."""

import sqlite3
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from pillarbox import Event, PublishRejected, Relay, SchemaMismatch, Settings
from pillarbox.admin.admin import PAGE, Admin
from pillarbox.core.message import Message
from pillarbox.dbapi import Outbox
from pillarbox.ports import Query, Retention
from pillarbox.wiring import open_admin


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database=f"sqlite:///{tmp_path / 'shop.db'}", broker=f"sqlite:///{tmp_path / 'stream.db'}")


@pytest.fixture
async def admin(settings: Settings) -> AsyncIterator[Admin]:
    async with open_admin(settings) as admin:
        await admin.migrate()
        yield admin


def add(settings: Settings, *events: Event[object]) -> list[str]:
    assert settings.database is not None
    connection = sqlite3.connect(settings.database.removeprefix("sqlite:///"))
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        Outbox().add(connection, *events)
    connection.close()
    return [str(event.id) for event in events]


def order(number: int = 7) -> Event[object]:
    return Event("OrderPlaced", {"order_id": number}, aggregate=("order", number))


async def refuse_everything(settings: Settings) -> None:
    def publish(messages: list[Message]) -> None:
        raise PublishRejected("refused")

    await Relay(database=settings.database, publish=publish).run_once()


async def test_before_migrating_check_names_the_command(settings: Settings) -> None:
    async with open_admin(settings) as admin:
        assert (await admin.schema()).version == 0
        with pytest.raises(SchemaMismatch, match="pillarbox migrate up"):
            await admin.check()


async def test_migrating_twice_applies_once(admin: Admin) -> None:
    assert await admin.migrate() == []
    await admin.check()


async def test_the_report_on_a_fresh_outbox_is_healthy(admin: Admin, settings: Settings) -> None:
    report = await admin.report(settings)
    assert report.healthy
    assert report.stats is not None
    assert report.stats.pending == 0


async def test_the_report_without_tables_is_unhealthy_and_has_no_figures(settings: Settings) -> None:
    async with open_admin(settings) as admin:
        report = await admin.report(settings)
    assert not report.healthy
    assert report.stats is None


async def test_an_event_is_found_and_shown(admin: Admin, settings: Settings) -> None:
    first, second = add(settings, order(1), order(2))
    assert [record.event_id for record in await admin.find(Query(newest_first=False))] == [first, second]
    (record,) = await admin.show(second)
    assert record.aggregate == ("order", "2")
    assert await admin.show("00000000-0000-7000-8000-000000000000") == []


async def test_counting_is_not_bounded_by_the_querys_limit(admin: Admin, settings: Settings) -> None:
    add(settings, *(order(number) for number in range(5)))
    assert await admin.count(Query(limit=2)) == 5


@pytest.mark.parametrize("events", [PAGE - 1, PAGE, PAGE + 1])
async def test_counting_turns_the_pages(admin: Admin, settings: Settings, events: int) -> None:
    add(settings, *(order(number) for number in range(events)))
    assert await admin.count(Query()) == events


async def test_counting_stops_one_beyond_what_is_counted(
    admin: Admin, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.admin.admin.COUNTED", 5)
    monkeypatch.setattr("pillarbox.admin.admin.PAGE", 4)
    add(settings, *(order(number) for number in range(20)))
    assert await admin.count(Query()) == 6


async def test_a_dead_event_is_retried(admin: Admin, settings: Settings) -> None:
    (id,) = add(settings, order())
    await refuse_everything(settings)
    assert await admin.retry(Query(status=("dead",))) == 1
    assert await Relay(settings).run_once() == 1
    assert (await admin.show(id))[0].status == "published"


async def test_a_dead_event_is_dropped_and_its_follower_goes_on(admin: Admin, settings: Settings) -> None:
    dead, follower = add(settings, order(), order())
    await refuse_everything(settings)
    assert await admin.drop(Query(ids=(dead,))) == 1
    assert await Relay(settings).run_once() == 1
    assert (await admin.show(dead))[0].status == "dropped"
    assert (await admin.show(follower))[0].status == "published"


async def test_a_pause_is_kept_with_who_and_why(admin: Admin, settings: Settings) -> None:
    await admin.pause("order-events", "the shop moves house")
    (pause,) = (await admin.stats()).pauses
    assert "@" in pause.who
    assert (pause.topic, pause.why) == ("order-events", "the shop moves house")
    add(settings, order())
    assert await Relay(settings).run_once() == 0
    assert await admin.resume("order-events")
    assert not await admin.resume("order-events")
    assert await Relay(settings).run_once() == 1


async def test_a_second_pause_changes_nothing_and_gives_the_first(admin: Admin) -> None:
    assert await admin.pause("order-events", "the shop moves house") is None
    (first,) = await admin.pauses()
    assert await admin.pause("order-events", "stocktaking") == first
    assert await admin.pauses() == [first]


async def test_whatever_is_replayed_again_has_one_id_and_no_two_replays_have_the_same(
    admin: Admin, settings: Settings
) -> None:
    add(settings, order())
    await Relay(settings).run_once()
    first, second = await admin.replay(Query(), again=True), await admin.replay(Query(), again=True)
    assert (first.events, second.events) == (1, 1)
    assert first.id != second.id
    messages: list[Message] = []
    await Relay(settings, publish=messages.extend).run_once()
    assert [message.headers["pillarbox-replay"] for message in messages] == [first.id, second.id]


async def test_a_published_event_is_replayed_with_its_id(admin: Admin, settings: Settings) -> None:
    (id,) = add(settings, order())
    await Relay(settings).run_once()
    assert (await admin.replay(Query(ids=(id,)))).events == 1
    assert await Relay(settings).run_once() == 1


async def test_pruning_deletes_everything_that_is_old_enough(admin: Admin, settings: Settings) -> None:
    add(settings, *(order(number) for number in range(5)))
    await Relay(settings).run_once()
    await admin.prune(Retention())
    assert len(await admin.find(Query())) == 5
    assert await admin.prune(Retention(published=timedelta(0))) >= 5
    assert await admin.find(Query()) == []
    counts = [(deed.what, deed.count) for deed in await admin.deeds()]
    assert [what for what, _ in counts] == [
        "prune published=none archive=none inbox=30days",
        "prune published=7days archive=none inbox=30days",
        "migrate up version=1",
    ]
    assert counts[0][1] >= 5


async def test_between_which_positions_old_events_lie_is_found_by_halving(admin: Admin, settings: Settings) -> None:
    assert await admin.oldest(Retention(published=timedelta(0))) == (0, 0)
    add(settings, *(order(number) for number in range(5)))
    assert await admin.oldest(Retention(published=timedelta(0))) == (0, 5)
    assert await admin.oldest(Retention(published=timedelta(days=1))) == (0, 0)
    assert await admin.oldest(Retention()) == (0, 0)


async def test_the_script_needs_no_connection(settings: Settings) -> None:
    assert "CREATE TABLE IF NOT EXISTS pillarbox_outbox (" in open_admin(settings).sql()


async def test_the_script_can_leave_the_transaction_to_others(settings: Settings) -> None:
    script, bare = open_admin(settings).sql(), open_admin(settings).sql(transaction=False)
    assert script.splitlines()[:: len(script.splitlines()) - 1] == ["BEGIN IMMEDIATE;", "COMMIT;"]
    sqlite3.connect(":memory:").executescript(f"BEGIN;{bare}COMMIT;").connection.close()


async def test_what_pruning_would_delete_is_counted_by_when_it_was_published(admin: Admin, settings: Settings) -> None:
    add(settings, *(order(number) for number in range(3)))
    await Relay(settings).run_once()
    add(settings, order(4))
    assert await admin.prunable(Retention()) == (0, False)
    assert await admin.prunable(Retention(published=timedelta(0))) == (3, False)
    assert await admin.prunable(Retention(published=None)) == (0, False)


async def test_with_dropped_events_or_an_archive_it_may_be_fewer(admin: Admin, settings: Settings) -> None:
    add(settings, order())
    await refuse_everything(settings)
    await admin.drop(Query(status=("dead",)))
    assert await admin.prunable(Retention(published=timedelta(0))) == (1, True)
    assert (await admin.prunable(Retention(published=timedelta(0), archive=timedelta(days=1))))[1]


async def test_a_topic_is_known_by_its_events(admin: Admin, settings: Settings) -> None:
    assert not await admin.knows("order-events")
    add(settings, order())
    assert await admin.knows("order-events")
    assert not await admin.knows("orders-event")
