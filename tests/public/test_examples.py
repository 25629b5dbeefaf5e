"""Every example runs as its README says, in a copy of its directory."""

import re
import shutil
from pathlib import Path

import pytest

from tests.public.test_docs import ROOT, run_page, slow_ones_marked, start_servers

EXAMPLES = sorted(path for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__")


READMES = [example / "README.md" for example in EXAMPLES]


@pytest.mark.parametrize("page", slow_ones_marked(READMES), ids=lambda page: page.parent.name)
def test_an_example_does_what_its_readme_says(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    example, readme = page.parent, page.read_text()
    start_servers(readme, request)
    here = tmp_path / example.name
    shutil.copytree(example, here, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    assert run_page(readme, f"examples/{example.name}/README.md", here) == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_program_of_an_example_is_named_in_its_commands(example: Path) -> None:
    commands = re.findall(r"^\$ (.*)$", (example / "README.md").read_text(), flags=re.MULTILINE)
    programs = [path.stem for path in example.glob("*.py")]
    assert programs
    assert [name for name in programs if not any(f"{name}.py" in line or f"{name}:" in line for line in commands)] == []


def test_the_page_of_the_examples_lists_each_of_them() -> None:
    listed = re.findall(r"\]\((\w+)/\)", (ROOT / "examples" / "README.md").read_text())
    assert sorted(listed) == [example.name for example in EXAMPLES]
