"""The repository as others find it: no package index named in it, complete locks, and a `make` that says its verbs."""

import re
import shutil
import subprocess
from functools import cache
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = sorted((ROOT / "locks").glob("*.lock"))
# Put together here, so that this file does not hold them either.
INDEX_HOSTS = [
    name + "." + end
    for name, end in [
        *[("pypi", "org"), ("pythonhosted", "org"), ("pypi", "python.org")],
        *[("repo1.maven", "org"), ("repo.maven", "apache.org"), ("oss.sonatype", "org"), ("central.sonatype", "com")],
        *[("npmjs", "org"), ("npmjs", "com"), ("yarnpkg", "com")],
        *[("crates", "io"), ("proxy.golang", "org"), ("sum.golang", "org"), ("goproxy", "io")],
        *[(host, f"debian.{end}") for host in ("deb", "ftp", "security", "snapshot") for end in ("org", "net")],
    ]
]
INDEX_OPTIONS = ["--index" + "-url", "--extra-index" + "-url", "--find" + "-links", "--trusted" + "-host"]
EXTRAS = (
    "cli", "postgres", "asyncpg", "sqlalchemy", "django", "kafka", "rabbitmq", "redis", "nats", "webhooks",
    "prometheus", "opentelemetry", "dashboard", "all",
)  # fmt: skip

needs_git = pytest.mark.skipif(
    shutil.which("git") is None or not (ROOT / ".git").exists(), reason="needs git: it lists what the repository holds"
)


@cache
def files_of_the_repository() -> list[Path]:
    """Give the files that are tracked, or would be with the next commit."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]


@needs_git
@pytest.mark.parametrize("host", [*INDEX_HOSTS, *INDEX_OPTIONS])
def test_no_file_names_a_package_index(host: str) -> None:
    files = files_of_the_repository()
    assert ROOT / "pyproject.toml" in files
    assert [str(file) for file in files if host.encode() in file.read_bytes()] == []


@needs_git
@pytest.mark.parametrize("name", ["uv.lock", "pylock.toml", ".venv/made-from", ".venv-demo/made-from", "shop.db-wal"])
def test_git_ignores_what_is_made_on_each_machine(name: str) -> None:
    assert subprocess.run(["git", "check-ignore", "--quiet", name], cwd=ROOT).returncode == 0


def test_there_is_a_lock_for_the_demo_and_one_for_the_tests() -> None:
    assert {lock.stem for lock in LOCKS} >= {"demo", "test"}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_every_requirement_of_a_lock_is_exact_and_has_hashes(lock: Path) -> None:
    requirements = lock.read_text().replace("\\\n", " ").strip().splitlines()
    assert requirements
    wrong = [
        line for line in requirements if not re.fullmatch(r"[\w.-]+==\S+( ; [^#]+?)?( +--hash=sha256:\w{64})+", line)
    ]
    assert wrong == []


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_names_no_place_to_fetch_from(lock: Path) -> None:
    assert "://" not in lock.read_text()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_holds_everything_that_was_asked_for(lock: Path) -> None:
    locked = {line.split("==")[0] for line in lock.read_text().splitlines() if "==" in line}
    asked = [line for line in lock.with_suffix(".in").read_text().splitlines() if line and line[0] not in "#-"]
    assert asked
    assert [name for name in asked if re.split(r"[\[<>]", name)[0] not in locked] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("README.md", "# Pillarbox"),
        ("CHANGELOG.md", "## [Unreleased]"),
        ("CONTRIBUTING.md", "one module in `brokers/`"),
        ("LICENSE", "Apache License\n                           Version 2.0, January 2004"),
    ],
)
def test_the_papers_are_there(name: str, words: str) -> None:
    assert words in (ROOT / name).read_text()


def test_the_package_requires_nothing_without_an_extra() -> None:
    required = requires("pillarbox")
    assert required
    assert [line for line in required if not re.search(r"; .*\bextra == ", line)] == []


def test_there_are_these_extras_and_no_others() -> None:
    assert sorted(metadata("pillarbox").get_all("Provides-Extra") or ()) == sorted(EXTRAS)


def test_the_extra_all_is_all_the_others() -> None:
    required = [line.partition(";")[::2] for line in requires("pillarbox") or ()]
    every = {what for what, when in required if "'all'" in when or '"all"' in when}
    assert every
    assert every == {what for what, _ in required}


def test_make_alone_lists_the_verbs() -> None:
    listing = subprocess.run(["make"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    assert {"demo", "test", "soak", "check", "bench", "lock"} <= set(re.findall(r"make (\w+)", listing))


def test_continuous_integration_runs_what_developers_run() -> None:
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("exec make test")
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
