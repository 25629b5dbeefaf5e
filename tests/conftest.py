"""What all tests share: a skip must be justified, and the run says at its end what it ran against."""

import importlib.util
import platform
import re
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REQUIREMENTS: dict[str, Callable[[], bool]] = {
    "Linux": lambda: sys.platform == "linux",
    "Python 3.12": lambda: sys.version_info >= (3, 12),
    "Python 3.13": lambda: sys.version_info >= (3, 13),
    "git": lambda: shutil.which("git") is not None,
    "SQLAlchemy": lambda: importlib.util.find_spec("sqlalchemy") is not None,
}
"""What a test may need that not every machine has. A skip says `needs <name>: …`, and the name must stand here."""


def needless(reason: str) -> bool:
    """Tell whether this machine could have run a test that was skipped for `reason`."""
    named = re.search(r"needs ([^:]+):", reason)
    return named is None or named[1] not in REQUIREMENTS or REQUIREMENTS[named[1]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-skip-needs-a-reason",
        action="store_true",
        help="fail if a test was skipped that this machine could have run",
    )


def pytest_configure() -> None:
    # A shell's background jobs ignore SIGINT, and children inherit that: a Ctrl-C that is tested would do nothing.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).with_name("soak") in item.path.parents:
            item.add_marker("soak")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    counts = {outcome: len(terminalreporter.stats.get(outcome, ())) for outcome in ("passed", "failed", "error")}
    skipped = [reason_of(report) for report in terminalreporter.stats.get("skipped", ())]
    terminalreporter.section("what this ran against")
    write(f"{platform.python_implementation()} {platform.python_version()}, SQLite {sqlite3.sqlite_version}")
    write(f"{platform.platform()}, {platform.machine()}")
    write(", ".join(f"{count} {outcome}" for outcome, count in counts.items()) + f", {len(skipped)} skipped")
    for nodeid, reason in skipped:
        write(f"  skipped {nodeid}: {reason}" + (" ← this machine could have run it" if needless(reason) else ""))
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == "not run":
                write(f"  not run: {value}")
            elif name == "says":
                write(f"  {value}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not session.config.getoption("--every-skip-needs-a-reason"):
        return
    if session.exitstatus == pytest.ExitCode.OK and any(
        needless(reason_of(report)[1]) for report in reporter.stats.get("skipped", ())
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str]:
    """Give the test's name and why it was skipped."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return report.nodeid, reason.removeprefix("Skipped: ")
