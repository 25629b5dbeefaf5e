"""The directory of a demo or a torture, which the user names and keeps, or one of its own that is thrown away; and
files that a torture was told to make elsewhere."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BESIDE = ("", "-wal", "-shm", "-journal", "-relay", "-consumers")
"""What SQLite, relays and consumers put beside a file of theirs."""


def remove_file(file: Path) -> None:
    """Remove a file of SQLite that a run has made, and what is beside it."""
    for ending in _BESIDE:
        file.with_name(file.name + ending).unlink(missing_ok=True)


def unusable(keep: Path) -> str | None:
    """Make the directory that is to keep the files; say why it cannot, and what to do."""
    try:
        keep.mkdir(parents=True, exist_ok=True)
        problem = f"{keep} is not empty" if any(keep.iterdir()) else None
    except OSError as error:
        problem = f"{keep} cannot be used: {error.strerror}"
    return problem and f"{problem}: name a directory that is empty, or that does not exist yet"


@contextmanager
def open_directory(keep: Path | None, what: str) -> Iterator[Path]:
    """Give the directory that is kept, or one that is thrown away."""
    if keep is not None:
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix=f"pillarbox-{what}-") as name:
        yield Path(name).resolve()


class Place:
    """Where a torture leaves its evidence: kept if the user named it or the run has failed, else thrown away."""

    def __init__(self, path: Path, *, kept: bool) -> None:
        self.path, self.kept = path, kept


@contextmanager
def open_place(keep: Path | None, what: str, parent: Path | None = None) -> Iterator[Place]:
    """Give a place in the directory that is kept, or in a new one in `parent`, or where temporary files are."""
    if keep is not None:
        yield Place(keep.resolve(), kept=True)
        return
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    place = Place(Path(tempfile.mkdtemp(prefix=f"{what}-", dir=parent)).resolve(), kept=False)
    try:
        yield place
    finally:
        if not place.kept:
            shutil.rmtree(place.path)
