"""Which file system a path is on: SQLite's locks and shared memory do not work over a network."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pillarbox.errors import ConfigError

_NETWORK = (
    *("nfs", "cifs", "smb", "9p", "afs", "afp", "webdav", "ceph", "glusterfs", "lustre", "gpfs", "vboxsf", "vmhgfs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.gcsfuse", "fuse.davfs", "fuse.ceph", "fuse.glusterfs", "macfuse"),
)
"""How the names of such file systems begin."""


def check_local(path: str) -> None:
    """Refuse a database on a network file system."""
    found = file_system(str(Path(path).resolve()), mounts())
    if found is not None and found.startswith(_NETWORK):
        raise ConfigError(
            f"database: {path} is on a network file system ({found}), where SQLite's locks do not hold:"
            " put the file on a local disk, or use PostgreSQL"
        )


def file_system(path: str, mounted: Iterator[tuple[str, str]]) -> str | None:
    """Give the type of the file system that holds an absolute path, from (mount point, type) pairs."""
    best, found = "", None
    for point, kind in mounted:
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two on one point the later hides the earlier
            best, found = point, kind
    return found


def mounts() -> Iterator[tuple[str, str]]:
    """Give what is mounted where, as (mount point, type)."""
    if os.path.exists("/proc/self/mounts"):
        return parse_proc(Path("/proc/self/mounts").read_text(errors="surrogateescape"))
    if sys.platform == "darwin":
        return parse_darwin(subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=True).stdout)
    return iter(())


def parse_proc(text: str) -> Iterator[tuple[str, str]]:
    """Read Linux's /proc/self/mounts; blanks in names are octal there."""
    for line in text.splitlines():
        _, point, kind, *_ = line.split(" ")
        for octal, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            point = point.replace(octal, character)
        yield point, kind


def parse_darwin(text: str) -> Iterator[tuple[str, str]]:
    """Read macOS's mount: `//me@host/share on /Volumes/share (smbfs, nodev)`."""
    for line in text.splitlines():
        names, _, options = line.rpartition(" (")
        _, _, point = names.partition(" on ")
        yield point, options.rstrip(")").split(",")[0]
