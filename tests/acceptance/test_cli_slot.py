"""The commands while somebody else carries the events, from the first event to the way back."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from pillarbox import Settings
from pillarbox.settings import HealthSettings
from pillarbox.telemetry.hooks import Hooks, Moment
from pillarbox.wiring import Watch
from servers.process import free_port
from tests.conftest import skip_unless_ours
from tests.integration.health_shop import Moments
from tests.integration.postgres_bench import Bench, opened
from tests.integration.postgres_slot import drop_slots
from tests.integration.postgres_world import soon


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    skip_unless_ours()
    async with opened(database) as bench:
        yield bench
        drop_slots(bench)


def pillarbox(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pillarbox", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


async def test_the_commands_from_the_first_event_to_the_way_back(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ("--database", bench.url)
    slot = f"commands_{bench.url.rpartition('_')[2]}"
    bench.sql(
        "CREATE OR REPLACE FUNCTION pillarbox_now() RETURNS timestamptz LANGUAGE sql AS 'SELECT clock_timestamp()'"
    )
    bench.sql("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
    bench.add("A")
    rehearsed = pillarbox("source", "slot", slot, "--dry-run", *where)
    assert rehearsed.stderr.startswith(f"the reader of the replication slot {slot} would carry the events; 1 event is")
    assert (
        pillarbox("source", "slot", slot, "--yes", *where).stdout == f"next: pillarbox relay watch {' '.join(where)}\n"
    )
    assert "twice" in pillarbox("relay", "once", "--broker", "stdout:", *where, code=1).stderr
    unwatched = pillarbox("status", *where, code=3).stdout
    assert f"✗ nobody has watched the replication slot {slot} for " in unwatched
    assert ": 1 event is pending, unless its reader has carried them since\n" in unwatched
    assert f"run: pillarbox relay watch {' '.join(where)}" in unwatched
    watch = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
        [sys.executable, "-m", "pillarbox", "relay", "watch", *where], stderr=subprocess.PIPE, text=True
    )
    try:
        await soon(lambda: bool(bench.sql("SELECT 1 FROM pillarbox_notes")), "it has seen the event")
        bench.sql("CREATE TABLE beat AS SELECT 1")
        bench.sql("SELECT count(*) FROM pg_logical_slot_get_changes(%s, NULL, NULL)", [slot])
        published = "SELECT 1 FROM pillarbox_events WHERE status = 'published'"
        await soon(lambda: bool(bench.sql(published)), "it has seen that the event was carried")
        status = json.loads(pillarbox("status", "--json", *where).stdout)
        assert [finding["kind"] for finding in status["findings"]] == ["fine", "slot"]
        told = status["stats"]["slot"]
        assert (told["name"], told["trouble"], told["is_read"]) == (slot, None, False)
        [event] = json.loads(pillarbox("events", "list", "--json", *where).stdout)
        assert (event["status"], event["published_at"] is None) == ("published", False)
    finally:
        watch.send_signal(signal.SIGTERM)
        _, said = watch.communicate(timeout=30)
    assert watch.returncode == 0, said
    assert f"INFO watches the replication slot {slot}\n" in said
    assert "INFO stopped\n" in said
    pruned = pillarbox("prune", "--yes", "--set", "retention.published=none", *where)
    assert pruned.stderr.startswith("1 event settled will be deleted, and old rows beside them: ")
    bench.add("B")
    bench.sql("SELECT pg_drop_replication_slot(%s)", [slot])
    lost = pillarbox("status", *where, code=3).stdout
    assert f"the replication slot {slot} is gone: its reader may have passed events over" in lost
    assert pillarbox("source", "log", "--yes", *where).stdout.startswith("next: pillarbox relay run --database")
    assert '"type": "B"' in pillarbox("relay", "once", "--broker", "stdout:", *where).stdout


async def test_one_that_watches_serves_its_health_and_what_the_slot_keeps(bench: Bench) -> None:
    slot = f"health_{bench.url.rpartition('_')[2]}"
    bench.sql(
        "CREATE OR REPLACE FUNCTION pillarbox_now() RETURNS timestamptz LANGUAGE sql AS 'SELECT clock_timestamp()'"
    )
    bench.sql("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
    pillarbox("source", "slot", slot, "--yes", "--database", bench.url)
    port, moments = free_port(), Moments()
    settings = Settings(database=bench.url, health=HealthSettings(listen=f"127.0.0.1:{port}"))
    async with Watch(settings, hooks=Hooks(moments)), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        await moments.until(Moment.SLOT_WATCHED)
        assert (await client.get("/startupz")).status_code == 200
        assert (await client.get("/readyz")).json() == {"status": "ready", "problems": []}
        assert "pillarbox_slot_retained_bytes" in (await client.get("/metrics")).text
