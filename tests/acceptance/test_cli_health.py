"""`pillarbox health`, and what `relay run` and `consume` serve over HTTP, as people start them."""

import json
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING

import httpx
import psycopg
import pytest

from pillarbox import Event
from pillarbox.psycopg import Outbox
from servers.process import free_port
from tests.acceptance.test_cli_postgres import type_
from tests.integration.postgres_shop import made

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

Until = Callable[[Callable[[], bool]], None]
PASSWORD = "s3cr3t-0f-the-sh0p"
KEYS = {"status", "problems", "pending", "pending_exact", "overdue", "oldest_pending_age_seconds", "relays"}


def test_healthy(migrated: "Shop") -> None:
    assert migrated.type(f"pillarbox health --database {migrated.database}").stdout == "healthy\n"
    assert migrated.json(f"pillarbox health --json --database {migrated.database}") == {
        "status": "healthy",
        "problems": [],
        "pending": 0,
        "pending_exact": True,
        "overdue": 0,
        "oldest_pending_age_seconds": None,
        "relays": 0,
    }


def test_degraded_with_the_words_of_status(migrated: "Shop") -> None:
    migrated.placed()
    health = migrated.type(f"pillarbox health --database {migrated.database}", code=3)
    assert health.stdout == "degraded: no relay has ever run on this outbox; 1 event is waiting\n"
    assert migrated.status(code=3)[0] == health.stdout.strip().replace("degraded: ", "✗ ")
    answer = migrated.json(f"pillarbox health --json --database {migrated.database}", code=3)
    assert set(answer) == KEYS
    assert (answer["status"], answer["pending"], answer["relays"]) == ("degraded", 1, 0)
    assert [problem["kind"] for problem in answer["problems"]] == ["no relay"]


def test_without_tables_it_is_degraded(shop: "Shop") -> None:
    health = shop.type(f"pillarbox health --database {shop.database}", code=3)
    assert health.stdout == "degraded: there is no database shop.db yet\n"
    assert shop.json(f"pillarbox health --json --database {shop.database}", code=3)["pending"] is None


def test_on_postgresql(database: str) -> None:
    made(database)
    assert type_(f"pillarbox health --database {database}").stdout == "healthy\n"
    with psycopg.connect(database) as connection:
        Outbox().add(connection, Event("Placed", {}))
    answer = json.loads(type_(f"pillarbox health --json --database {database}", code=3).stdout)
    assert set(answer) == KEYS
    assert answer["oldest_pending_age_seconds"] >= 0


def test_no_password_is_told(shop: "Shop") -> None:
    for json_ in ("", "--json"):
        done = shop.type(f"pillarbox health {json_} --database postgresql://ann:{PASSWORD}@127.0.0.1:1/shop", code=3)
        assert PASSWORD not in done.stdout + done.stderr


def test_a_relay_serves_until_it_is_stopped(migrated: "Shop", until: Until) -> None:
    port = free_port()
    migrated.placed()
    process = migrated.start(relay_run(migrated, port))
    try:
        until(lambda: status(port, "/readyz") == 200)
        until(lambda: "pillarbox_published_total 1.0" in httpx.get(f"http://127.0.0.1:{port}/metrics").text)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    assert f"serves /livez /readyz /startupz /metrics at http://127.0.0.1:{port}\n" in log
    assert status(port, "/livez") is None


def test_no_page_and_no_line_of_a_relay_tells_the_databases_password(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.chdir(tmp_path)
    made(database)
    port = free_port()
    secret = database.replace("postgres@", f"postgres:{PASSWORD}@")  # the tests' server asks for none, and takes any
    assert PASSWORD in secret
    arguments = [
        "relay",
        "run",
        "--database",
        secret,
        "--broker",
        "stdout:",
        "--set",
        f"health.listen=127.0.0.1:{port}",
    ]
    process = subprocess.Popen([sys.executable, "-m", "pillarbox", *arguments], stdout=PIPE, stderr=PIPE, text=True)
    try:
        until(lambda: status(port, "/readyz") == 200)
        pages = [
            httpx.get(f"http://127.0.0.1:{port}{path}") for path in ("/livez", "/readyz", "/startupz", "/metrics", "/")
        ]
        process.send_signal(signal.SIGTERM)
        out, log = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert 'pillarbox_table_bytes{table="outbox"}' in pages[3].text
    assert not any(PASSWORD in text for text in (out, log, *(page.text + str(page.headers) for page in pages)))


def test_two_relays_on_one_port_both_run(migrated: "Shop", until: Until) -> None:
    port = free_port()
    with migrated.running(relay_run(migrated, port)):
        until(lambda: status(port, "/readyz") == 200)
        second = migrated.start(relay_run(migrated, port))
        try:
            until(lambda: living(migrated) == 2)
            second.send_signal(signal.SIGTERM)
            _, log = second.communicate(timeout=30)
        finally:
            second.kill()
            second.communicate()
        assert second.returncode == 0
        assert re.search(rf"WARNING health and metrics are not served: 127.0.0.1:{port}: .*in use", log)


def test_a_place_that_is_none_is_refused(migrated: "Shop") -> None:
    for place in ("9464", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:65536", "::1:9464", ":9464"):
        done = migrated.type(f"pillarbox health --database {migrated.database} --set health.listen={place}", code=2)
        assert "health.listen: must be HOST:PORT, such as 127.0.0.1:9464, or none" in done.stderr


def relay_run(shop: "Shop", port: int) -> str:
    place = f"--set health.listen=127.0.0.1:{port}"
    return f"pillarbox relay run --database {shop.database} --broker {shop.broker} {place}"


def status(port: int, path: str) -> int | None:
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}").status_code
    except httpx.ConnectError:
        return None


def living(shop: "Shop") -> int:
    relays: int = shop.json(f"pillarbox health --json --database {shop.database}")["relays"]
    return relays


def test_a_delayed_event_whose_time_has_come_waits_in_health_stats_and_status_alike(migrated: "Shop") -> None:
    migrated.add(Event("Placed", {}, available_at=datetime.now(UTC) + timedelta(hours=1)))
    migrated.type(f"pillarbox relay once --database {migrated.database} --broker {migrated.broker}")

    stats, health = (f"pillarbox {verb} --json --database {migrated.database}" for verb in ("stats", "health"))
    assert migrated.json(stats)["overdue"] == 0
    with closing(sqlite3.connect(migrated.directory / "shop.db")) as connection, connection:  # the hour is over
        connection.execute("UPDATE pillarbox_parked SET due_at = due_at - 3601000000")
    for seen in (migrated.json(stats), migrated.json(health, code=3)):
        assert (seen["pending"], seen["pending_exact"], seen["overdue"]) == (0, True, 1)
        assert seen["oldest_pending_age_seconds"] >= 1
    printed = migrated.type(f"pillarbox stats --database {migrated.database}").stdout
    assert "oldest pending                -" not in printed
    assert "1 (1 overdue)" in printed
