"""Every mutant still applies to the tree, and the tests that are to notice it are still there."""

import ast
import re
from pathlib import Path

import pytest

from tests.mutants import MUTANTS
from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
CONTRACTS = "".join(path.read_text() for path in (ROOT / "src/pillarbox/testing/contracts").glob("*.py"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_is_still_a_program(mutant: Mutant) -> None:
    broken = mutant.broken(ROOT)
    assert broken != (ROOT / mutant.file).read_text()
    if mutant.file.endswith(".py"):
        ast.parse(broken)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_is_to_notice_a_mutant_is_there(mutant: Mutant) -> None:
    assert mutant.caught_by
    for test in mutant.caught_by:
        file, _, name = test.partition("::")
        function, _, cases = name.partition("[")
        text = (ROOT / file).read_text()
        assert function in text
        for rule in re.findall(r"\b[a-z]\w{11,}", cases):  # of a contract, or a story of that very file
            assert f"def {rule}(" in text + CONTRACTS


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) >= 20
    assert len(set(names)) == len(names)
