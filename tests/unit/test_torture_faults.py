"""The plan of a torture: by seed, each kind once before others come twice, nothing that cannot be made."""

from pillarbox.torture.faults import GROUPS, KINDS, named, plan
from pillarbox.torture.stage import ANYWHERE

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
