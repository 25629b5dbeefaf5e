"""Alerts that take their time, in a real Prometheus that scrapes a real relay in which the trouble was made."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import psycopg

from servers.fault_proxy import FaultProxy
from servers.postgres import Postgres
from tests.acceptance.test_grafana_dashboard import (
    DASHBOARD,
    asked,
    expressions_of,
    until_it_has_numbers,
)
from tests.acceptance.watched_shop import RULES, WatchedShop, until
from tests.integration.postgres_shop import made


def test_slow_fires_while_the_broker_answers_only_now_and_then(tmp_path: Path) -> None:
    with WatchedShop(tmp_path) as shop:
        shop.relay()
        shop.until_value("pillarbox_relay_up", 1)
        for _ in range(30):
            if "PillarboxSlow" in shop.prometheus.alerts():
                return
            shop.redis.freeze()
            shop.place(range(5))
            shop.until_value("pillarbox_oldest_pending_age_seconds", 1)
            shop.redis.thaw()
            until(lambda: shop.value("pillarbox_pending_events") == 0)
    raise AssertionError("it never fired")


def test_a_relay_is_stale_while_its_database_does_not_answer_and_well_again_afterwards(
    own_postgres: Callable[[str], Postgres], tmp_path: Path
) -> None:
    server = own_postgres("15")
    database = made(server.create_database("shop"))
    with FaultProxy(server.port) as proxy:
        through = database.replace(f":{server.port}/", f":{proxy.port}/")
        assert through != database
        with WatchedShop(tmp_path, times=15, every=4, database=through) as shop:
            shop.relay()
            shop.until_value("pillarbox_relay_up", 1)
            proxy.half_open()
            shop.until_firing("PillarboxRelayStale")
            assert shop.value("pillarbox_relay_up") == 1  # it lives, and is scraped
            assert shop.prometheus.query("pillarbox_pending_events") == {}
            proxy.heal()
            until(lambda: "PillarboxRelayStale" not in shop.prometheus.alerts())


def test_not_pruned_fires_long_after_the_last_time(tmp_path: Path) -> None:
    with WatchedShop(tmp_path, times=7200) as shop:
        shop.relay()
        shop.until_value("pillarbox_last_prune_timestamp_seconds", 1)
        until(lambda: "PillarboxNotPruned" not in shop.prometheus.alerts(), shop.prometheus.alerts)
        shop.until_firing("PillarboxNotPruned")


def test_what_a_slot_retains_fires(own_postgres: Callable[[str], Postgres], tmp_path: Path) -> None:
    """With a bound of a megabyte, which is quicker to fill than five gigabytes."""
    server, slot = own_postgres("15"), f"test_{uuid.uuid4().hex}"
    database = made(server.create_database("shop"))
    rules = RULES.read_text().replace(
        "(pillarbox_slot_retained_bytes) > 5e9\n", "(pillarbox_slot_retained_bytes) > 1e6\n"
    )
    assert rules != RULES.read_text()
    with WatchedShop(tmp_path, rules=rules, database=database) as shop:
        carry_by(slot, database)
        shop.watch()
        shop.until_value("count(pillarbox_slot_retained_bytes)", 1)
        assert shop.value("pillarbox_slot_retained_bytes") < 1e6
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 2000000))")
        shop.until_firing("PillarboxSlotRetained")
        for expression in expressions_of(json.loads(DASHBOARD.read_text())):
            if "pillarbox_slot_retained_bytes" in expression:
                until_it_has_numbers(shop, asked(expression))


def carry_by(slot: str, database: str) -> None:
    """Say that the reader of a slot carries the events; there is none, so that the slot retains all."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
    words = ["source", "slot", slot, "--yes", "--database", database]
    subprocess.run([sys.executable, "-m", "pillarbox", *words], check=True, capture_output=True)
