"""What daemons serve over HTTP: asked with real requests, of real relays and consumers on SQLite."""

import asyncio
import logging
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from pillarbox import BrokerUnavailable, Consumer, Event, PublishRejected, Relay, Settings, serving
from pillarbox.brokers.memory import MemoryBroker
from pillarbox.dbapi import Inbox
from pillarbox.settings import HealthSettings, RetentionSettings
from pillarbox.telemetry import http
from pillarbox.telemetry.hooks import Hooks, Moment
from pillarbox.wiring import open_admin
from tests.integration.health_shop import HealthShop, nowhere, placed

PASSWORD = "s3cr3t-0f-the-sh0p"


class Served(logging.Handler):
    """Waits for the line that says where it is served."""

    def __init__(self) -> None:
        super().__init__()
        self._said = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("serves /livez"):
            self._said.set()

    async def until(self) -> None:
        async with asyncio.timeout(20):
            await self._said.wait()


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Served:
    handler = Served()
    caplog.set_level(logging.INFO, "pillarbox")
    monkeypatch.setattr(http.logger, "handlers", [*http.logger.handlers, handler])
    return handler


@pytest.fixture
def shop(tmp_path: Path) -> HealthShop:
    return HealthShop(tmp_path)


async def test_a_relay_that_holds_lanes_lives_has_started_and_is_ready(shop: HealthShop) -> None:
    async with shop.relay(nowhere):
        await shop.moments.until(Moment.LANES_TAKEN)
        for path, word in (("/livez", "live"), ("/startupz", "started"), ("/readyz", "ready")):
            answer = await shop.get(path)
            assert (answer.status_code, answer.json()) == (200, {"status": word, "problems": []})
            assert answer.headers["content-type"] == "application/json"


async def test_a_relay_that_is_stuck_does_not_live(shop: HealthShop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(pump: Any, *, once: bool = False) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("pillarbox.relay.pump.Pump.run", never)
    async with shop.relay(nowhere):
        await shop.moments.until(Moment.LANES_TAKEN)
        assert (await shop.get("/livez")).status_code == 200
        monkeypatch.setattr("pillarbox.pulse.STILL", 0.0)
        answer = await shop.get("/livez")
        assert (answer.status_code, answer.json()) == (503, {"status": "stuck", "problems": []})


async def test_a_relay_that_stands_by_is_ready(shop: HealthShop) -> None:
    async with Relay(Settings(database=shop.database), publish=nowhere, hooks=Hooks(shop.moments)):
        await shop.moments.until(Moment.LANES_TAKEN)
        async with shop.relay(nowhere):
            await shop.moments.until(Moment.LANES_AWAITED)
            assert (await shop.get("/startupz")).status_code == 200
            assert (await shop.get("/readyz")).json()["status"] == "ready"


async def test_while_the_database_is_away_it_lives_but_has_not_started(shop: HealthShop) -> None:
    settings = shop.settings(database=f"postgresql://ann:{PASSWORD}@127.0.0.1:1/shop")
    async with shop.relay(nowhere, settings):
        await shop.moments.until(Moment.STORE_AWAY)
        answers = [await shop.get(path) for path in ("/livez", "/startupz", "/readyz", "/metrics")]
    assert [answer.status_code for answer in answers] == [200, 503, 503, 200]
    assert answers[2].json() == {"status": "starting", "problems": []}
    assert "pillarbox_relay_up 1.0" in answers[3].text
    assert "pillarbox_pending_events" not in answers[3].text
    assert not any(PASSWORD in answer.text + str(answer.headers) for answer in answers)


async def test_a_database_that_goes_away_is_a_problem_and_no_reason_to_be_killed(shop: HealthShop) -> None:
    async with shop.relay(nowhere):
        await shop.moments.until(Moment.LANES_TAKEN)
        shop.file.rename(shop.file.with_suffix(".away"))
        answer = await shop.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
        assert (await shop.get("/livez")).status_code == 200
        shop.file.with_suffix(".away").rename(shop.file)


async def test_a_database_that_never_answers_takes_no_count_along(
    shop: HealthShop, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 0.2)
    silent = socket.create_server(("127.0.0.1", 0))  # the kernel lets clients in, and nobody talks to them
    port = silent.getsockname()[1]
    relay = asyncio.create_task(shop.relay(nowhere, shop.settings(database=f"postgresql://127.0.0.1:{port}/x")).run())
    await served.until()
    assert (await shop.get("/livez")).status_code == 200
    assert (await shop.get("/startupz")).status_code == 503
    seen = await shop.metrics()
    assert (seen["pillarbox_relay_up"], seen["pillarbox_published_total"]) == (1, 0)
    assert "pillarbox_pending_events" not in seen
    relay.cancel()
    await asyncio.gather(relay, return_exceptions=True)
    silent.close()


async def test_a_page_that_fails_tells_nothing_but_where(caplog: pytest.LogCaptureFixture) -> None:
    async def page() -> http.Answer:
        raise RuntimeError(f"postgresql://ann:{PASSWORD}@db/shop")

    async with http.HttpServer("127.0.0.1", 0, {"/page": page}) as server:
        assert server.address is not None
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{server.address[1]}/page")
    assert (answer.status_code, answer.text) == (500, "the log says why\n")
    assert "/page could not be made: RuntimeError in " in caplog.text
    assert PASSWORD not in caplog.text


async def test_a_relay_that_drains_is_not_ready_and_lives(shop: HealthShop) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def publish(messages: list[Any]) -> None:
        asked.set()
        await go_on.wait()

    shop.add(placed())
    async with shop.relay(publish) as relay:
        await asked.wait()
        relay.stop()
        answer = await shop.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")
        assert (await shop.get("/livez")).status_code == 200
        assert (await shop.metrics())["pillarbox_relay_up"] == 0
        go_on.set()


async def test_what_has_waited_too_long_is_told_as_status_tells_it(shop: HealthShop) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def publish(messages: list[Any]) -> None:
        asked.set()
        await go_on.wait()

    shop.add(placed())
    settings = shop.settings(oldest_pending=timedelta(microseconds=1))
    async with shop.relay(publish, settings):
        await asked.wait()
        answer = await shop.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"status": "degraded", "problems": ["old"]})
        report = await open_admin(settings).look(settings)
        assert [finding.kind for finding in report.findings if finding.severity == "problem"] == ["old"]
        assert (await shop.metrics())["pillarbox_oldest_pending_age_seconds"] > 0
        go_on.set()


async def test_what_retention_deletes_is_counted(shop: HealthShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.relay.chores.PRUNE_FIRST", timedelta(0))
    shop.add(*(placed(n) for n in range(3)))
    async with shop.relay(nowhere):
        await shop.moments.until(Moment.SETTLED)
    settings = replace(shop.settings(), retention=RetentionSettings(published=timedelta(0)))
    async with shop.relay(nowhere, settings):
        await shop.moments.until(Moment.PRUNED)
        seen = await shop.metrics()
    assert seen["pillarbox_pruned_total"] >= 3  # its ticks go too
    assert seen["pillarbox_last_prune_timestamp_seconds"] > 1_700_000_000


async def test_the_metrics_of_a_relay(shop: HealthShop) -> None:
    shop.add(*(placed(n) for n in range(3)))
    async with shop.relay(nowhere):
        await shop.moments.until(Moment.SETTLED)
        seen = await shop.metrics()
    assert seen["pillarbox_published_total"] == 3
    assert seen["pillarbox_delivery_latency_seconds_count"] == 3
    assert seen["pillarbox_delivery_latency_seconds_bucket{le=+Inf}"] == 3
    assert 0 < seen["pillarbox_delivery_latency_seconds_sum"] < 180
    assert (seen["pillarbox_pending_events"], seen["pillarbox_oldest_pending_age_seconds"]) == (0, 0)
    assert (seen["pillarbox_lanes_held"], seen["pillarbox_relay_up"]) == (64, 1)
    assert seen["pillarbox_relay_last_loop_timestamp_seconds"] > 1_700_000_000
    assert seen["pillarbox_table_bytes{table=file}"] > 4096
    assert [name for name in seen if name.startswith("pillarbox_build_info{version=")]
    for name in ("dead_events", "dead_total", "fenced_total", "pruned_total"):
        assert seen[f"pillarbox_{name}"] == 0
    for reason in ("away", "timeout", "rejected", "other"):
        assert seen[f"pillarbox_publish_failures_total{{reason={reason}}}"] == 0


async def test_failures_are_counted_by_their_reason(shop: HealthShop) -> None:
    errors = [BrokerUnavailable("gone"), PublishRejected("no such topic")]

    async def publish(messages: list[Any]) -> None:
        raise errors.pop(0)

    shop.add(placed())
    async with shop.relay(publish):
        await shop.moments.until(Moment.EVENT_DEAD)
        seen = await shop.metrics()
    assert seen["pillarbox_publish_failures_total{reason=away}"] == 1
    assert seen["pillarbox_publish_failures_total{reason=rejected}"] == 1
    assert (seen["pillarbox_dead_total"], seen["pillarbox_dead_events"], seen["pillarbox_published_total"]) == (1, 1, 0)


async def test_lanes_that_are_lost_are_counted(shop: HealthShop) -> None:
    async with shop.relay(nowhere):
        await shop.moments.until(Moment.LANES_TAKEN)
        connection = sqlite3.connect(shop.file)
        with connection:
            connection.execute("UPDATE pillarbox_lanes SET owner = 'somebody', epoch = epoch + 1")
        connection.close()
        shop.add(placed())
        await shop.moments.until(Moment.LANES_LOST)
        assert (await shop.metrics())["pillarbox_fenced_total"] == 1


@pytest.mark.parametrize("path", ["/", "/admin", "/metrics/", "/../etc/passwd", "/livez/../metrics", "//metrics"])
async def test_there_is_no_other_path(shop: HealthShop, path: str) -> None:
    async with shop.relay(nowhere):
        assert b"404 Not Found" in await said(shop, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def test_only_get_and_head(shop: HealthShop) -> None:
    async with shop.relay(nowhere):
        assert (await shop.get("/metrics", "POST")).status_code == 405
        head = await shop.get("/livez", "HEAD")
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("words", [b"hello\r\n\r\n", b"GET /livez\r\n\r\n", b"\r\n\r\n", b"x" * 100_000])
async def test_what_is_no_request_is_refused(shop: HealthShop, words: bytes) -> None:
    async with shop.relay(nowhere):
        assert b"400 Bad Request" in await said(shop, words)
        assert (await shop.get("/livez")).status_code == 200


async def test_a_query_is_passed_over(shop: HealthShop) -> None:
    async with shop.relay(nowhere):
        assert (await shop.get("/livez?verbose=1")).status_code == 200


async def test_a_client_that_never_asks_holds_up_neither_others_nor_the_end(shop: HealthShop) -> None:
    async with shop.relay(nowhere):
        _, writer = await asyncio.open_connection("127.0.0.1", shop.port)
        assert (await shop.get("/livez")).status_code == 200
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def said(shop: HealthShop, words: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", shop.port)
    writer.write(words)
    try:
        return await reader.readline()
    finally:
        writer.close()


async def test_without_the_extra_it_says_the_line_that_installs_it(
    shop: HealthShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "pillarbox.telemetry.prometheus", raising=False)
    shop.add(placed())
    async with shop.relay(nowhere):
        await shop.moments.until(Moment.SETTLED)
        answer = await shop.get("/metrics")
        assert answer.status_code == 501
        assert answer.text == "/metrics needs the extra 'prometheus': pip install 'pillarbox[prometheus]'\n"
        assert (await shop.get("/readyz")).status_code == 200


async def test_where_the_port_is_taken_it_says_so_goes_on_and_gets_it_later(
    shop: HealthShop, served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "AGAIN", 0.01)
    holder = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", shop.port)
    shop.add(placed())
    async with shop.relay(nowhere) as relay:
        await shop.moments.until(Moment.SETTLED)
        [warning] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert warning == (
            f"health and metrics are not served: 127.0.0.1:{shop.port}: address already in use;"
            " goes on without, and tries again"
        )
        holder.close()
        await holder.wait_closed()
        await served.until()
        assert (await shop.get("/livez")).status_code == 200
        assert not relay.stopping


async def test_the_port_is_free_again_when_it_ends(shop: HealthShop) -> None:
    for _ in range(2):
        async with shop.relay(nowhere):
            assert (await shop.get("/livez")).status_code == 200
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", shop.port)


def test_unless_it_is_set_nothing_is_served_or_imported() -> None:
    code = (
        "import sys; from pillarbox import Relay;"
        " Relay(database='sqlite:///shop.db', broker='stdout:');"
        " assert 'prometheus_client' not in sys.modules; assert 'pillarbox.telemetry.prometheus' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def serving_consumer(shop: HealthShop, broker: MemoryBroker, handle: Callable[[], None] = lambda: None) -> Consumer:
    inbox = Inbox("billing", lambda: sqlite3.connect(shop.file))
    inbox.handler("OrderPlaced")(lambda connection, event: handle())
    settings = Settings(health=HealthSettings(listen=f"127.0.0.1:{shop.port}"))
    return Consumer(inbox, topics=["order-events"], broker=broker, settings=settings, hooks=Hooks(shop.moments))


@asynccontextmanager
async def consumer_in_its_handler(shop: HealthShop) -> AsyncIterator[Consumer]:
    """A consumer whose handler does not return before this ends."""
    broker, loop = MemoryBroker(), asyncio.get_running_loop()
    begun, go_on = asyncio.Event(), threading.Event()

    def handle() -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(20)

    shop.add(placed(1))
    await Relay(database=shop.database, broker=broker).run_once()
    async with serving_consumer(shop, broker, handle) as consumer:
        async with asyncio.timeout(20):
            await begun.wait()
        try:
            yield consumer
        finally:
            go_on.set()


async def test_a_handler_that_may_hang_is_told_of(shop: HealthShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pillarbox.inbox.handling.SLOW_AFTER", 0)
    async with consumer_in_its_handler(shop):
        answer = await shop.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"status": "degraded", "problems": ["handler slow"]})


async def test_a_consumer_that_drains_is_not_ready_and_lives(shop: HealthShop) -> None:
    async with consumer_in_its_handler(shop) as consumer:
        assert (await shop.get("/readyz")).json()["status"] == "ready"
        consumer.stop()
        answer = await shop.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")
        assert (await shop.get("/livez")).status_code == 200


async def test_a_consumer_whose_broker_is_away_says_so_lives_and_stays_in_service(shop: HealthShop) -> None:
    broker = MemoryBroker()
    async with serving_consumer(shop, broker):
        broker.down = True
        await shop.moments.until(Moment.BROKER_AWAY)
        answer = await shop.get("/readyz")
        assert (answer.status_code, answer.json()) == (200, {"status": "degraded", "problems": ["broker away"]})
        assert (await shop.get("/livez")).status_code == 200
        broker.heal()
        await shop.moments.until(Moment.BROKER_BACK)
        assert (await shop.get("/readyz")).json() == {"status": "ready", "problems": []}


async def test_a_consumer_that_is_stuck_does_not_live(shop: HealthShop, monkeypatch: pytest.MonkeyPatch) -> None:
    turning, go_on = asyncio.Event(), asyncio.Event()

    async def stuck(intake: Any, patience: float) -> bool:
        turning.set()
        await go_on.wait()
        return True

    monkeypatch.setattr("pillarbox.inbox.consumer.Intake.turn", stuck)
    async with serving_consumer(shop, MemoryBroker()):
        try:
            async with asyncio.timeout(20):
                await turning.wait()
            assert (await shop.get("/livez")).json() == {"status": "live", "problems": []}
            monkeypatch.setattr("pillarbox.pulse.STILL", 0.0)
            answer = await shop.get("/livez")
            assert (answer.status_code, answer.json()) == (503, {"status": "stuck", "problems": []})
        finally:
            go_on.set()


async def test_the_health_and_the_metrics_of_a_consumer(shop: HealthShop) -> None:
    broker = MemoryBroker()
    shop.add(placed(1), placed(2), Event("OrderRefused", {}, aggregate=("order", 3)))
    relay = Relay(database=shop.database, broker=broker)
    assert await relay.run_once() == 3
    async with serving_consumer(shop, broker):
        await shop.moments.until(Moment.HANDLED, 2)
        await shop.moments.until(Moment.EVENT_DEAD)
        await shop.moments.until(Moment.ACKNOWLEDGED)
        assert (await shop.get("/readyz")).json() == {"status": "ready", "problems": []}
        assert (await shop.get("/startupz")).status_code == 200
        seen = await shop.metrics()
    assert seen["pillarbox_inbox_total{result=handled}"] == 2
    assert seen["pillarbox_inbox_total{result=copies}"] == 0
    assert seen["pillarbox_inbox_total{result=dead}"] == 1
    assert seen["pillarbox_inbox_duration_seconds_count"] == 2
    assert "pillarbox_published_total" not in seen
