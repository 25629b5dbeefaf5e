"""The consumers of the torture: each event becomes one row of a ledger, through the inbox, in one transaction.

`pillarbox consume pillarbox.torture.effects:inbox` runs it; TORTURE_LEDGER names its database.
"""

import json
import os
import signal
import time
from typing import Any

from pillarbox import Event
from pillarbox.torture.bank import bank_at

_bank = bank_at(os.environ["TORTURE_LEDGER"])
inbox = _bank.inbox("torture")


def book(connection: Any, event: Event[dict[str, Any]]) -> None:
    """Book an event: not idempotent, so only the inbox stands between a copy and a second effect."""
    assert event.aggregate is not None
    assert event.delivery is not None
    contents = {
        "type": event.type, "topic": event.delivery.topic, "payload": event.payload, "headers": dict(event.headers),
    }  # fmt: skip
    _bank.run(
        connection,
        "INSERT INTO {p}ledger (event_id, aggregate, contents) VALUES (%s, %s, %s)",
        str(event.id), "/".join(event.aggregate), json.dumps(contents),
    )  # fmt: skip


def die(connection: Any, event: Event[dict[str, Any]]) -> None:
    """Kill this process, as code that runs out of memory would."""
    print(json.dumps({"deadly": str(event.id), "deadly_at": time.time()}), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


inbox.handler("Changed")(book)
inbox.handler("Deadly")(die)
