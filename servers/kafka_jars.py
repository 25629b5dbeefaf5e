"""Where Kafka's programs are: jars that Maven fetches once, each checked against the checksum that we pin.

`python -m servers.kafka_jars` fetches what is missing; exit code 4 means that it could not be fetched.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from servers.postgres_builds import NOT_FETCHED, NotFetched, cache
from servers.process import NotInstalled

VERSION = "4.3.1"
LOG4J = "2.25.4"
"""Without its binding the broker logs nothing."""
PINNED = Path(__file__).with_suffix(".sha256")
JAVA = Path("/usr/bin/java")

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>pillarbox</groupId><artifactId>kafka-for-tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>{LOG4J}</version>
    </dependency>
  </dependencies>
</project>
"""


def jars() -> Path:
    """Give the directory of the jars; nothing is downloaded."""
    if not JAVA.exists():
        raise NotInstalled(f"needs Java: {JAVA} is missing; run .ci/servers")
    if not directory().exists():
        raise NotInstalled(f"needs Kafka: {directory()} is missing; run .ci/servers")
    return directory()


def directory() -> Path:
    return cache() / f"kafka-{VERSION}"


def fetch() -> None:
    """Let Maven download the jars, unless they are there."""
    if directory().exists():
        return
    cache().mkdir(parents=True, exist_ok=True)
    cache().chmod(0o755)
    with tempfile.TemporaryDirectory(dir=cache()) as temporary:
        here = Path(temporary)
        download(here)
        check(here / "jars")
        move_into_place(here / "jars")


def download(here: Path) -> None:
    """Download the jars into `here`/jars; Maven's own files stay here too, and go with it."""
    (here / "pom.xml").write_text(POM)
    command = ["mvn", "--quiet", "--batch-mode", f"-Dmaven.repo.local={here / 'repository'}"]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={here / 'jars'}", "-DincludeScope=runtime"]
    if shutil.which(command[0]) is None:
        raise NotFetched(f"Kafka {VERSION} could not be downloaded: mvn is not installed")
    done = subprocess.run(command, cwd=here, capture_output=True, text=True)
    if done.returncode:
        raise NotFetched(f"Kafka {VERSION} could not be downloaded: {done.stdout.strip()[-500:]}")


def check(found: Path) -> None:
    """Raise ValueError unless these are the jars that we pinned, all of them and no other."""
    lines = [line.split() for line in PINNED.read_text().splitlines() if not line.startswith("#")]
    pinned = {name: sha256 for sha256, name in lines}
    here = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in found.iterdir()}
    strange = sorted(name for name in here.keys() | pinned.keys() if here.get(name) != pinned.get(name))
    if strange:
        raise ValueError(f"not the jars that we pinned: {', '.join(strange)}; do not use them")


def move_into_place(found: Path) -> None:
    """Let the jars appear all at once; a second process that did the same is no harm."""
    found.chmod(0o755)
    for jar in found.iterdir():
        jar.chmod(0o644)
    try:
        os.rename(found, directory())
    except OSError:
        if not directory().exists():
            raise


def main() -> None:
    try:
        fetch()
    except NotFetched as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NOT_FETCHED)


if __name__ == "__main__":
    main()
