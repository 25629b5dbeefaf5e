"""The causes of copies, and which copy each may have made: enough for what faults do, and for nothing else."""

from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pillarbox.torture.blame import REACH, Copy, blame, copies_of, reach
from pillarbox.torture.copies import AT_ONCE, UNNOTICED, Losses, barred, causes_of, replayed
from pillarbox.torture.deeds import PAUSE, REPEAT_NOTHING, Command
from pillarbox.torture.faults import FAILOVER, GROUPS, named
from pillarbox.torture.programs import RELAYS


def cause(began: float, ended: float, most: int) -> dict[str, Any]:
    span = {"began_at": began, "ended_at": ended}
    return {"what": "a fault", "whom": "", **span, "most": most}


def fault(name: str, began: float, ended: float) -> dict[str, Any]:
    return {"fault": name, "whom": "", "began_at": began, "ended_at": ended, "lasts": ended - began}


@st.composite
def explained(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[Copy]]:
    """Some causes, and copies that they have made: each in its time, no more than it may."""
    causes, copies = [], []
    for _ in range(draw(st.integers(1, 6))):
        began = draw(st.floats(0, 100))
        one = cause(began, began + draw(st.floats(0, 30)), draw(st.integers(0, 4)))
        causes.append(one)
        for _ in range(draw(st.integers(0, one["most"]))):
            at = draw(st.none() | st.floats(one["began_at"], one["ended_at"] + REACH))
            copies.append(Copy("a", at))
    return causes, copies


@given(explained())
def test_copies_that_causes_can_have_made_are_explained(world: tuple[list[dict[str, Any]], list[Copy]]) -> None:
    causes, copies = world
    made, unexplained = blame(copies, causes, [])
    assert unexplained == []
    assert sum(made) == len(copies)
    assert all(count <= one["most"] for count, one in zip(made, causes, strict=True))


def test_one_more_than_the_faults_around_it_explain_is_nobodys() -> None:
    causes = [cause(0.0, 0.0, 2), cause(100.0, 100.0, 900)]
    copies = [Copy(id, 5.0) for id in "abc"]
    assert blame(copies, causes, []) == ([2, 0], [copies[2]])


def test_where_a_broker_does_not_say_when_the_sum_is_the_bound() -> None:
    copies = [Copy(id, None) for id in "abc"]
    assert blame(copies, [cause(0.0, 0.0, 2), cause(500.0, 500.0, 1)], []).unexplained == []
    assert blame(copies, [cause(0.0, 0.0, 2)], []).unexplained == copies[2:]


def test_while_a_way_is_barred_the_time_of_a_cause_does_not_pass() -> None:
    assert reach(10.0, []) == 10.0 + REACH
    assert reach(10.0, [(0.0, 10.0), (10.0 + REACH, 99.0)]) == 10.0 + REACH
    assert reach(10.0, [(5.0, 12.0)]) == 12.0 + REACH
    assert reach(10.0, [(12.0, 15.0), (13.0, 14.0), (13.0, 20.0)]) == 10.0 + REACH + 8.0


def test_every_message_but_the_first_of_its_event_is_a_copy() -> None:
    wire = [{"id": id, "at": at} for id, at in (("a", 1.0), ("b", 2.0), ("a", 3.0), ("a", 4.0))]
    assert copies_of(wire) == [Copy("a", 3.0), Copy("a", 4.0)]


def test_without_a_fault_nothing_may_be_repeated(tmp_path: Path) -> None:
    assert causes_of([], [(1.0, "relay-1")], [(1.0, "relay-1")], [], [1.0]) == []


def test_each_fault_has_a_bound_of_its_own_at_its_own_time(tmp_path: Path) -> None:
    (tmp_path / "replay-1.log").write_text('17 events will be published again\n{"replayed": 17, "finished": true}\n')
    (tmp_path / "prune-1.log").write_text('{"pruned": 3}\n')
    commands = [
        Command((word,), 40.0, 41.0, 0, f"{word}-1", tmp_path / f"{word}-1.log") for word in ("replay", "prune")
    ]
    faults = [
        *(fault(name, 10.0, 11.0) for name in REPEAT_NOTHING), fault("lose answers of the database", 20.0, 22.0),
        fault(FAILOVER, 30.0, 33.0),
    ]  # fmt: skip
    causes = causes_of(faults, [(5.0, "relay-2")], [(9.0, "relay-3")], commands, [27.9, 28.0, 33.0, 33.1, None])
    told = [(one["what"], one["whom"], one["began_at"], one["ended_at"], one["most"]) for one in causes]
    assert told == [
        ("lanes that were lost", "relay-3", 9.0 - UNNOTICED, 9.0, AT_ONCE),
        ("a relay that died", "relay-2", 5.0, 5.0, AT_ONCE),
        ("lose answers of the database", "", 20.0, 22.0, RELAYS * AT_ONCE),
        (FAILOVER, "", 30.0, 33.0, 3),
        ("replay", "replay-1", 40.0, 41.0, 17),
    ]


def test_every_fault_repeats_something_or_is_known_to_repeat_nothing() -> None:
    for name in named(GROUPS) - REPEAT_NOTHING - {FAILOVER}:
        [one] = causes_of([fault(name, 1.0, 2.0)], [], [], [], [])
        assert (one["what"], one["most"]) == (name, RELAYS * AT_ONCE)


def test_a_command_that_was_broken_off_has_replayed_what_it_said(tmp_path: Path) -> None:
    (log := tmp_path / "replay-1.log").write_text('{"replayed": 5, "fini')
    assert replayed(log) == 0
    log.write_text('{"replayed": 5}\n{"replayed": 2}\n')
    assert replayed(log) == 7


def test_what_lasts_bars_the_way_and_a_pause_until_a_resume_has_worked(tmp_path: Path) -> None:
    def command(words: str, began: float, code: int | None = 0) -> Command:
        return Command(tuple(words.split()), began, began + 0.5, code, "", tmp_path)

    commands = [
        command("resume a", 1.0), command("pause a", 10.0), command("resume b", 11.0), command("resume a", 12.0, 3),
        command("resume a", 20.0),
    ]  # fmt: skip
    faults = [
        fault("kill the broker", 2.0, 6.0), fault("kill a relay", 3.0, 3.0), fault("hold a snapshot", 3.0, 9.0),
        fault("freeze a consumer", 3.0, 9.0), fault("freeze a relay", 4.0, 5.0),
    ]  # fmt: skip
    assert barred(faults, commands) == [(2.0, 6.0), (4.0, 5.0), (10.0, 20.5)]
    assert barred([fault(PAUSE, 1.0, 2.0)], []) == [(1.0, 2.0)]


def test_lanes_that_were_lost_are_noticed_once_each_as_relays_say_so(tmp_path: Path) -> None:
    losses = Losses(tmp_path)
    with (tmp_path / "relay-1.log").open("a", buffering=1) as log:
        log.write('{"moment": "lanes lost"}\n{"moment": "lanes')
        losses.look(now=True)
        assert [relay for _, relay in losses.seen] == ["relay-1"]
        losses.look(now=True)
        log.write(' lost"}\n{"moment": "lanes taken"}\n')
        losses.look(now=True)
    (tmp_path / "consumer-1.log").write_text('{"moment": "lanes lost"}\n')
    losses.look(now=True)
    assert [relay for _, relay in losses.seen] == ["relay-1", "relay-1"]
