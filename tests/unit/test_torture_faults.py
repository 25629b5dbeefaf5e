"""The plan of a torture: by seed, each kind once before others come twice, nothing that cannot be made."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import cast

import pytest

from pillarbox.errors import MissingExtra
from pillarbox.torture import clocks
from pillarbox.torture.deeds import REPEAT_NOTHING
from pillarbox.torture.faults import (
    FAILOVER,
    GROUPS,
    KINDS,
    SERVERS,
    TOO_LARGE,
    UNROUTABLE,
    Strike,
    groups_of,
    named,
    plan,
)
from pillarbox.torture.stage import ANYWHERE, NOT_OURS, GivenServers, left_out, offered
from pillarbox.torture.taps import tap_at
from servers.fault_proxy import FaultProxy
from servers.torture_stage import Way

ALL = named(GROUPS)


def test_the_same_seed_gives_the_same_faults_and_another_one_others() -> None:
    assert plan(7, 60, ALL) == plan(7, 60, ALL)
    assert plan(7, 60, ALL) != plan(8, 60, ALL)


def test_every_kind_strikes_in_a_run_that_is_long_enough() -> None:
    struck = [strike.name for strike in plan(1, 60, ALL)]
    assert set(struck) == {kind.name for kind in KINDS}


def test_only_what_is_offered_strikes() -> None:
    assert {strike.name for strike in plan(3, 120, ANYWHERE)} == ANYWHERE
    assert plan(3, 60, []) == []


def test_faults_strike_in_order_and_not_at_the_end() -> None:
    times = [strike.at for strike in plan(5, 100, ALL)]
    assert times == sorted(times)
    assert times[-1] <= 90


def test_a_fault_lasts_as_long_as_its_kind_says() -> None:
    lasts = {kind.name: kind.lasts for kind in KINDS}
    assert all(strike.lasts in lasts[strike.name] for strike in plan(9, 600, ALL))


def test_processes_are_struck_while_servers_are_away() -> None:
    """More often than where nobody sees to it: most lasting faults are over before the next one comes."""
    servers, processes = named(SERVERS), named({"relay", "consumer"})
    meets = [
        (one.name, other.name)
        for seed in range(20)
        for strikes in [plan(seed, 60, ALL)]
        for one in strikes
        if one.name in servers and one.lasts
        for other in strikes
        if other.name in processes and one.at < other.at < one.at + one.lasts
    ]
    assert ("kill the broker", "stop a relay") in meets
    assert {one for one, _ in meets} == {kind.name for kind in KINDS if kind.name in servers and any(kind.lasts)}
    alone = [strike for strike in plan(3, 60, servers) if strike.name in processes]
    assert alone == [], "nobody was to be struck"


def test_a_connection_fails_on_the_way_to_the_database_as_on_that_to_the_broker() -> None:
    network = named({"network"})
    assert {name.replace("database", "broker") for name in network} == {name for name in network if "broker" in name}
    assert {name.replace("broker", "database") for name in network} == {name for name in network if "database" in name}
    assert not REPEAT_NOTHING & network, "each of them can lose an answer"


def test_of_faults_that_overlap_on_one_way_the_newest_that_lasts_is_in_force() -> None:
    done: list[str] = []
    proxy = cast(FaultProxy, Namespace(heal=lambda: done.append("heal")))
    way = Way(proxy)
    slow, cut = way.deed(lambda proxy: done.append("slow")), way.deed(lambda proxy: done.append("cut"))
    first, second, third = (Strike(at, "", 0, 5.0) for at in (1.0, 2.0, 3.0))
    slow.strike(first)
    cut.strike(second)
    slow.heal(first)  # the cut goes on
    slow.strike(third)
    slow.heal(third)
    cut.heal(second)
    assert done == ["slow", "cut", "cut", "slow", "cut", "heal"]


def test_a_standby_takes_over_once_and_not_again() -> None:
    names = [strike.name for strike in plan(2, 600, ALL)]
    assert names.count(FAILOVER) == 1
    assert [strike.name for strike in plan(2, 600, [FAILOVER])] == [FAILOVER]


def test_groups_are_read_by_name() -> None:
    assert groups_of("relay, admin") == ["relay", "admin"]
    assert groups_of("none") == []
    with pytest.raises(ValueError, match="'flood' is no kind of fault: they are relay, consumer"):
        groups_of("relay,flood")


def test_what_cannot_be_made_on_servers_of_somebody_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "LIBRARIES", ())
    stage = GivenServers("postgresql://host/shop", "kafka://host", tmp_path)
    assert offered(stage, GROUPS) == ANYWHERE
    assert [str(one) for one in left_out(stage, GROUPS)] == [
        f"left out: faults of database, broker, network: {NOT_OURS}",
        "left out: faults of clock: libfaketime is not installed (Debian's package faketime)",
    ]
    names = {name for one in left_out(stage, GROUPS) for name in one.faults}
    assert names == (ALL - ANYWHERE) | {TOO_LARGE, UNROUTABLE}
    assert left_out(stage, ["relay", "admin"]) == []


def test_clocks_of_relays_can_be_set_on_anybodys_postgresql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "LIBRARIES", (tmp_path / "libfaketime.so.1",))
    assert offered(GivenServers("postgresql://host/shop", "kafka://host", tmp_path), ["clock"]) == named({"clock"})
    assert [str(one) for one in left_out(GivenServers(None, None, tmp_path), ["clock"])] == [
        "left out: faults of clock: whoever uses a file of SQLite is on one machine, which has one clock"
    ]


def test_what_repeats_nothing_is_known_by_its_name() -> None:
    assert REPEAT_NOTHING <= ALL
    # These lose an acknowledgement, or the lanes: whoever takes them for harmless would find copies beyond the bound.
    assert not REPEAT_NOTHING & {"freeze a relay", "kill the broker", "kill the database", "lose answers of the broker"}


@pytest.mark.parametrize(("scheme", "words"), [("amqp", "an amqp: broker"), ("rabbitmq", "a rabbitmq: broker")])
def test_a_broker_whose_library_is_missing_is_named(scheme: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillarbox.torture.taps.rabbitmq", None)
    with pytest.raises(MissingExtra, match=f"{words} needs the extra 'rabbitmq'"):
        tap_at(f"{scheme}://127.0.0.1/")
