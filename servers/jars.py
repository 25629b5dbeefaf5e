"""Where Java's programs are: jars that Maven fetches once, each checked against the checksum that we pin.

`python -m servers.jars` fetches what is missing; exit code 4 means that it could not be fetched.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from servers.postgres_builds import NOT_FETCHED, NotFetched, cache
from servers.process import NotInstalled

JAVA = Path("/usr/bin/java")
KAFKA_VERSION = "4.3.1"
DEBEZIUM_VERSION = "3.6.2.Final"
LOG4J = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
"""Without this binding the servers log nothing."""

DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pillarbox</groupId><artifactId>jars-for-tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}</dependencies>
</project>
"""


@dataclass(frozen=True)
class Jars:
    """The jars of one program: what it depends on, and a plugin's archive if it has one, under `plugins`."""

    program: str
    name: str
    dependencies: tuple[str, ...]
    plugin: str | None = None

    @property
    def directory(self) -> Path:
        return cache() / self.name

    @property
    def pinned(self) -> dict[str, str]:
        """The SHA-256 of every jar, by its path."""
        file = Path(__file__).with_name(f"{self.name}.sha256")
        lines = [line.split() for line in file.read_text().splitlines() if not line.startswith("#")]
        return {name: sha256 for sha256, name in lines}


KAFKA = Jars(
    f"Kafka {KAFKA_VERSION}", f"kafka-{KAFKA_VERSION}", (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", LOG4J)
)
KAFKA_CONNECT = Jars(
    f"Kafka Connect {KAFKA_VERSION} with Debezium {DEBEZIUM_VERSION}",
    f"kafka-connect-{KAFKA_VERSION}-debezium-{DEBEZIUM_VERSION}",
    (
        f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
        f"org.apache.kafka:connect-transforms:{KAFKA_VERSION}",
        LOG4J,
    ),
    plugin=f"io.debezium:debezium-connector-postgres:{DEBEZIUM_VERSION}:tar.gz:plugin",
)
EVERY = (KAFKA, KAFKA_CONNECT)


def jars_of(one: Jars) -> Path:
    """Give the directory of a program's jars; nothing is downloaded."""
    if not JAVA.exists():
        raise NotInstalled(f"needs Java: {JAVA} is missing; run .ci/servers")
    if not one.directory.exists():
        raise NotInstalled(f"needs {one.program}: {one.directory} is missing; run .ci/servers")
    return one.directory


def fetch() -> None:
    """Let Maven download the jars that are not there."""
    missing = [one for one in EVERY if not one.directory.exists()]
    if not missing:
        return
    cache().mkdir(parents=True, exist_ok=True)
    cache().chmod(0o755)
    # Maven's own files stay here too, and go with it; what two programs share is downloaded once.
    with tempfile.TemporaryDirectory(dir=cache()) as temporary:
        for one in missing:
            found = download(one, Path(temporary))
            check(found, one.pinned)
            move_into_place(found, one.directory)


def download(one: Jars, here: Path) -> Path:
    """Download a program's jars into a directory in `here`."""
    found = here / one.name
    found.mkdir()
    dependencies = "".join(DEPENDENCY.format(*coordinates.split(":")) for coordinates in one.dependencies)
    (here / "pom.xml").write_text(POM.format(dependencies))
    run_maven(one, here, "copy-dependencies", f"-DoutputDirectory={found}", "-DincludeScope=runtime")
    if one.plugin is not None:
        # Its dependencies cannot be resolved, for a parent of its POM is published nowhere; the archive has them all.
        run_maven(one, here, "copy", f"-Dartifact={one.plugin}", f"-DoutputDirectory={here / 'archives'}")
        for archive in (here / "archives").iterdir():
            unpack(archive, found / "plugins")
    return found


def run_maven(one: Jars, here: Path, goal: str, *options: str) -> None:
    command = ["mvn", "--quiet", "--batch-mode", f"-Dmaven.repo.local={here / 'repository'}", f"dependency:{goal}"]
    if shutil.which(command[0]) is None:
        raise NotFetched(f"{one.program} could not be downloaded: mvn is not installed")
    done = subprocess.run([*command, *options], cwd=here, capture_output=True, text=True)
    if done.returncode:
        raise NotFetched(f"{one.program} could not be downloaded: {done.stdout.strip()[-500:]}")


def unpack(archive: Path, plugins: Path) -> None:
    """Take the jars out of a plugin's archive."""
    with tarfile.open(archive) as tar:
        tar.extractall(plugins, [member for member in tar if member.name.endswith(".jar")], filter="data")


def check(found: Path, pinned: dict[str, str]) -> None:
    """Raise ValueError unless these are the jars that we pinned, all of them and no other."""
    files = {str(file.relative_to(found)): file for file in found.rglob("*") if file.is_file()}
    here = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}
    strange = sorted(name for name in here.keys() | pinned.keys() if here.get(name) != pinned.get(name))
    if strange:
        raise ValueError(f"not the jars that we pinned: {', '.join(strange)}; do not use them")


def move_into_place(found: Path, directory: Path) -> None:
    """Let the jars appear all at once; a second process that did the same is no harm."""
    for path in (found, *found.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    try:
        os.rename(found, directory)
    except OSError:
        if not directory.exists():
            raise


def main() -> None:
    try:
        fetch()
    except NotFetched as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NOT_FETCHED)


if __name__ == "__main__":
    main()
