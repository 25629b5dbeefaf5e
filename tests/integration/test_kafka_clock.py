"""A wall clock that is set back while Kafka's client waits: it waits by that clock, and would do so for as long."""

import os
import subprocess
import sys
from pathlib import Path

from pillarbox.torture.clocks import Clocks

PUBLISHES = """
import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from pillarbox.brokers.kafka.options import KafkaOptions
from pillarbox.brokers.kafka.publisher import KafkaPublisher
from pillarbox.core.message import Message
from pillarbox.torture.clocks import Clocks


async def main():
    publisher = KafkaPublisher(KafkaOptions.read("//127.0.0.1:1", {}), publish_timeout=timedelta(seconds=1))
    for ticket in range(20):
        publisher.send([Message("orders", "7", {"id": str(ticket), "type": "Placed"}, b"{}", ticket)])
        [(answered, error)] = await publisher.outcomes()
        assert answered == ticket
        print(error, flush=True)
        if ticket == 1:
            Clocks(Path(sys.argv[1]), 1)  # it is right again, an hour back
        if ticket > 1 and "Kafka at 127.0.0.1:1 does not answer" in str(error):
            break


asyncio.run(main())
"""


def test_a_client_that_a_clock_holds_up_is_replaced(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path, 1)
    clocks.set(0, 1)
    said = subprocess.run(
        [sys.executable, "-c", PUBLISHES, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=os.environ | clocks.environment(0),
    ).stdout.splitlines()
    assert "the broker answered nothing for 1 s" in said[0], "nothing held the client up"
    assert "Kafka at 127.0.0.1:1 does not answer" in said[-1], "it did not come back"
