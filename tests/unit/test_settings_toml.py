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


def test_a_file_with_the_line_ends_of_windows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    path.write_bytes(b'database = "sqlite:///shop.db"\r\n[relay]\r\nbatch = 5\r\n')
    assert Settings.load(path, environment={}).relay.batch == 5
