"""The reference pages say what the code has: every command, flag and setting, with its variable and its default."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

from pillarbox.cli.app import app
from pillarbox.core.routing import Topic
from pillarbox.settings import Settings
from pillarbox.settings.kinds import default_of, known_keys
from pillarbox.settings.template import MEANINGS

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PLANNED = [
    "adopt",
    "audit list",
    "bench",
    "config show",
    "connector debezium",
    "consume",
    "dead drop",
    "dead list",
    "dead retry",
    "dead show",
    "demo",
    "doctor",
    "events list",
    "events show",
    "events tail",
    "health",
    "init",
    "migrate check",
    "migrate sql",
    "migrate status",
    "migrate up",
    "pause",
    "prune",
    "relay once",
    "relay run",
    "relay watch",
    "replay",
    "resume",
    "source log",
    "source slot",
    "stats",
    "status",
    "top",
    "torture",
]


def _walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for name, below in command.commands.items():
            yield from _walk(below, (*path, name))
    else:
        yield " ".join(path), command


COMMANDS = dict(_walk(typer.main.get_command(app)))
FLAGS = [
    pytest.param(path, option, id=f"{path} {option.opts[0]}")
    for path, command in COMMANDS.items()
    for option in command.params
    if option.param_type_name == "option" and option.name != "help"
]


def section(page: str, heading: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    assert found is not None, f"no section {heading}"
    return found[1]


def rows(text: str) -> dict[str, list[str]]:
    cells = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    )
    return {row[0].strip("`").split()[0]: row for row in cells if row[0].startswith("`")}


def test_the_commands_are_those_that_were_planned() -> None:
    assert sorted(COMMANDS) == PLANNED


def test_the_page_has_a_section_for_every_command_and_no_other() -> None:
    page = (REFERENCE / "commands.md").read_text()
    assert sorted(re.findall(r"^## `pillarbox (.*)`$", page, re.MULTILINE)) == PLANNED


@pytest.mark.parametrize(("path", "option"), FLAGS)
def test_the_page_has_every_flag_with_its_variable_and_its_default(path: str, option: Any) -> None:
    row = rows(section((REFERENCE / "commands.md").read_text(), f"`pillarbox {path}`"))[option.opts[0]]
    assert row[1].startswith(f"`{variable_of(path, option)}`")
    assert row[2] == (option.show_default if isinstance(option.show_default, str) else str(option.default))


@pytest.mark.parametrize("path", PLANNED)
def test_the_page_has_no_flag_that_the_command_lacks(path: str) -> None:
    text = section((REFERENCE / "commands.md").read_text(), f"`pillarbox {path}`")
    documented = {name for name in rows(text) if name.startswith("--")}
    assert documented == {
        o.opts[0] for o in COMMANDS[path].params if o.param_type_name == "option" and o.name != "help"
    }


@pytest.mark.parametrize(("path", "option"), FLAGS)
def test_help_shows_the_flags_variable_and_its_default(path: str, option: Any) -> None:
    context = typer.Context(
        COMMANDS[path], auto_envvar_prefix=f"PILLARBOX_{path.replace(' ', '_').upper()}", info_name=path
    )
    _, text = option.get_help_record(context)
    assert variable_of(path, option) in text
    assert "default: " in text


@pytest.mark.parametrize("path", PLANNED)
def test_whatever_prints_speaks_json(path: str) -> None:
    assert any("--json" in option.opts for option in COMMANDS[path].params)


@pytest.mark.parametrize(("path", "option"), FLAGS)
def test_no_flags_variable_is_taken_for_a_misspelt_setting(path: str, option: Any, tmp_path: Path) -> None:
    settings = Settings.load(_empty(tmp_path), environment={variable_of(path, option): "1", **_urls()})
    # the variables of --set are the settings themselves
    assert settings == Settings.load(_empty(tmp_path), environment=_urls()) or "--set" in option.opts


def variable_of(path: str, option: Any) -> str:
    if "--set" in option.opts:
        return "PILLARBOX_RELAY_BATCH"
    return option.envvar or f"PILLARBOX_{path.replace(' ', '_')}_{option.name}".upper()


def _empty(directory: Path) -> Path:
    (directory / "empty.toml").touch()
    return directory / "empty.toml"


def _urls() -> dict[str, str]:
    return {"PILLARBOX_DATABASE": "sqlite:///shop.db", "PILLARBOX_BROKER": "stdout:"}


@pytest.mark.parametrize("key", known_keys())
def test_the_page_has_every_setting_with_its_variable_default_and_meaning(key: str) -> None:
    table, _, name = key.rpartition(".")
    page = (REFERENCE / "settings.md").read_text()
    row = rows(section(page, f"`[{table}]`" if table else "At the top"))[name]
    default = default_of(key)
    default = str(default).lower() if isinstance(default, bool) else default
    assert row[1:] == [
        f"`PILLARBOX_{key.replace('.', '_').upper()}`",
        "not set" if default is None else f"`{default}`",
        MEANINGS[key],
    ]


def test_the_page_has_the_settings_of_a_topic() -> None:
    table = rows(section((REFERENCE / "settings.md").read_text(), '`[topic."order-events"]`'))
    assert {name: row[1] for name, row in table.items()} == {
        part.name: f"`{getattr(Topic(), part.name)}`" for part in fields(Topic)
    }
