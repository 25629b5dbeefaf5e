"""The clock of a torture's relay: it is set while its process runs, and time goes on as before for whoever waits."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pillarbox.torture.clocks import SHARED_MEMORY, Clocks, clean_up

TELLS = (
    "import threading, time\nwhile True: print(time.time(), time.monotonic(), flush=True); threading.Event().wait(0.05)"
)


@pytest.mark.timeout(60)
def test_a_clock_is_set_while_its_process_runs_and_nothing_is_left_of_it(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path, 1)
    environment = {**os.environ, **clocks.environment(0)}
    with subprocess.Popen([sys.executable, "-c", TELLS], env=environment, stdout=subprocess.PIPE, text=True) as teller:
        assert teller.stdout is not None
        try:
            for hours in (0, 1, -1, 0):
                clocks.set(0, hours)
                until = time.monotonic() + 10
                while True:
                    wall, monotonic = map(float, teller.stdout.readline().split())
                    assert abs(monotonic - time.monotonic()) < 60, "the clock by which everybody waits was set too"
                    if abs(wall - time.time() - 3600 * hours) < 60:
                        break
                    assert time.monotonic() < until, f"its clock is not {hours:+d} h off"
        finally:
            teller.kill()
    clean_up([teller.pid])
    assert list(SHARED_MEMORY.glob(f"*faketime_*_{teller.pid}")) == []
