"""The jars of the servers: only those that were pinned are used."""

import hashlib
from pathlib import Path

import pytest

from servers.jars import EVERY, Jars, check

FOUND = {"kafka.jar": b"kafka", "plugins/debezium/postgres.jar": b"debezium"}
PINNED = {name: hashlib.sha256(contents).hexdigest() for name, contents in FOUND.items()}


def write(directory: Path, files: dict[str, bytes]) -> Path:
    for name, contents in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(contents)
    return directory


def test_the_jars_that_were_pinned_are_used(tmp_path: Path) -> None:
    check(write(tmp_path, FOUND), PINNED)


@pytest.mark.parametrize(
    ("files", "strange"),
    [
        (FOUND | {"kafka.jar": b"forged"}, "kafka.jar"),
        (FOUND | {"plugins/more.jar": b"x"}, "plugins/more.jar"),
        ({"kafka.jar": b"kafka"}, "plugins/debezium/postgres.jar"),
    ],
)
def test_any_other_jar_is_refused_by_its_name(tmp_path: Path, files: dict[str, bytes], strange: str) -> None:
    with pytest.raises(ValueError, match=f"not the jars that we pinned: {strange}; do not use them"):
        check(write(tmp_path, files), PINNED)


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_every_program_has_its_checksums(one: Jars) -> None:
    pinned = one.pinned
    assert all(name.endswith(".jar") and len(sha256) == 64 for name, sha256 in pinned.items())
    assert len(pinned) > 40
