"""The commands under `opentelemetry-instrument`, which sets up the SDK as users do."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pillarbox import Event
from tests.acceptance.conftest import PATIENCE, Shop

TRACEPARENT = f"00-{'1' * 32}-{'2' * 16}-01"
BILLING = """
import sqlite3
from pillarbox.dbapi import Inbox

inbox = Inbox("billing", lambda: sqlite3.connect("shop.db"))

@inbox.handler("OrderPlaced")
def bill(connection, event):
    pass
"""


def instrumented(shop: Shop, *arguments: str) -> list[dict[str, Any]]:
    """Run a command with its spans on the console; give them."""
    bin = Path(sys.executable).parent
    exporters = {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    done = subprocess.run(
        [bin / "opentelemetry-instrument", bin / "pillarbox", *arguments],
        cwd=shop.directory,
        env=shop.environment | exporters | {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    spans, rest = [], done.stdout
    while "{" in rest:
        span, end = json.JSONDecoder().raw_decode(rest := rest[rest.index("{") :])
        spans.append(span)
        rest = rest[end:]
    return spans


def test_relay_and_consumer_export_spans_of_one_trace(shop: Shop) -> None:
    shop.migrate("shop.db")
    shop.add(Event("OrderPlaced", {}, aggregate=("order", 7), headers={"traceparent": TRACEPARENT}))
    (shop.directory / "billing.py").write_text(BILLING)
    (publish,) = instrumented(shop, "relay", "once", "--database", shop.database, "--broker", shop.broker)
    consume = ("consume", "billing:inbox", "--broker", shop.broker, "--topic", "order-events", "--once")
    (process,) = instrumented(shop, *consume)
    assert (publish["name"], process["name"]) == ("publish order-events", "process order-events")
    assert publish["links"][0]["context"]["trace_id"] == f"0x{'1' * 32}"
    assert process["context"]["trace_id"] == publish["context"]["trace_id"]
    assert process["parent_id"] == publish["context"]["span_id"]
