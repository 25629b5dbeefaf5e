"""A settings file that cannot be read as TOML: the line says where, what, and what to do."""

from pathlib import Path

import pytest

from pillarbox import ConfigError, Settings

WHAT_TO_DO = "mend it there, or compare with what `pillarbox init --config example.toml` writes"


@pytest.mark.parametrize(
    ("content", "mistake"),
    [
        (b'database = "a"\nbroker = \n', "line 2, column 10: Invalid value"),
        (b"database = sqlite:///shop.db", "line 1, column 12: Invalid value"),
        (b"[relay]\r\nbatch = 1\r\nbatch = 2\r\n", "line 3, column 10: Cannot overwrite a value"),
        (b"[relay]\nbatch = [1,\n  2", "line 3, column 4: Unclosed array"),
        ('database = """Grüße'.encode(), "line 1, column 20: Unterminated string"),
        ('# Grüße\nx = "ü'.encode() + b"\xff", "line 2, column 7: not utf-8: invalid start byte"),
    ],
    ids=["no value", "no quotes", "twice", "open array", "open text", "no UTF-8"],
)
def test_malformed_toml_is_refused_with_its_place_and_what_to_do(tmp_path: Path, content: bytes, mistake: str) -> None:
    path = tmp_path / "shop.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Settings.load(path, environment={})
    assert str(caught.value) == f"{path}: {mistake}; {WHAT_TO_DO}"


@pytest.mark.parametrize("deep", ["[" * 5_000, "{a=" * 5_000])
def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path, deep: str) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(f"database = {deep}")
    with pytest.raises(ConfigError) as caught:
        Settings.load(path, environment={})
    assert str(caught.value) == f"{path}: its arrays or tables are nested too deeply; no setting needs that"


@pytest.mark.parametrize(("name", "shown"), [("", '""'), ("a\\u0000b", '"a\\0b"')])
def test_a_topic_that_no_event_can_have_is_refused(tmp_path: Path, name: str, shown: str) -> None:
    path = tmp_path / "shop.toml"
    path.write_text(f'[topic."{name}"]\norder = "none"\n')
    with pytest.raises(ConfigError) as caught:
        Settings.load(path, environment={})
    assert str(caught.value).startswith(f"topic.{shown}: the topic's name ")
    assert str(caught.value).endswith(f"({path})")


def test_a_file_with_the_line_ends_of_windows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_bytes(b'database = "sqlite:///shop.db"\r\n[relay]\r\nbatch = 5\r\n')
    assert Settings.load(path, environment={}).relay.batch == 5
