"""The demo, longer: many seeds, and many events."""

import json
import subprocess
import sys

import pytest

FAULTS = ("lost", "phantom", "applied_twice", "out_of_order")


def verdict_of(events: int, seed: int) -> dict[str, float]:
    command = [sys.executable, "-m", "pillarbox", "demo", "--json", "--events", str(events), "--seed", str(seed)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
    verdict: dict[str, float] = json.loads(result.stdout)
    return verdict


@pytest.mark.parametrize("seed", range(20))
def test_every_seed_keeps_the_promises(seed: int) -> None:
    verdict = verdict_of(2_000, seed)
    assert verdict["applied"] == 2_000
    assert {name: verdict[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)


@pytest.mark.timeout(900)
def test_many_events_keep_the_promises() -> None:
    verdict = verdict_of(100_000, seed=1)
    assert verdict["applied"] == 100_000
    assert {name: verdict[name] for name in FAULTS} == dict.fromkeys(FAULTS, 0)
