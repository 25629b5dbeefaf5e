"""systemd's side of the protocol, played with a real socket: when daemons are ready, that they live, that they stop."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pillarbox import Relay, Settings, pulse
from pillarbox.daemon import Daemon
from pillarbox.pulse import Pulse
from pillarbox.systemd import Systemd
from pillarbox.telemetry.hooks import Hooks, Moment

if TYPE_CHECKING:
    from tests.acceptance.conftest import Shop

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
PATIENCE = 30.0
INBOX = """
import sqlite3
from pillarbox.dbapi import Inbox
inbox = Inbox("billing", lambda: sqlite3.connect("billing.db"))
inbox.handler("OrderPlaced")(lambda connection, event: None)
"""


class Manager:
    """Listens at a socket, as systemd does."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + place[1:] if place.startswith("@") else place)
        self._socket.settimeout(PATIENCE)

    def until(self, word: str, times: int = 1) -> list[str]:
        """Wait until a word has come so often; give all that came, up to it."""
        words: list[str] = []
        while words.count(word) < times:
            words += self._socket.recv(4096).decode().split("\n")
        return words

    def so_far(self) -> list[str]:
        """Give what has come, without waiting."""
        words: list[str] = []
        self._socket.setblocking(False)
        try:
            while True:
                words += self._socket.recv(4096).decode().split("\n")
        except BlockingIOError:
            return words
        finally:
            self._socket.settimeout(PATIENCE)

    def environment(self, watchdog: float | None = None) -> dict[str, str]:
        usec = {} if watchdog is None else {"WATCHDOG_USEC": str(int(watchdog * 1_000_000))}
        return {"NOTIFY_SOCKET": self.place, **usec}

    def close(self) -> None:
        self._socket.close()


@contextmanager
def manager(place: str) -> Iterator[Manager]:
    made = Manager(place)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=["a file", "an abstract name"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    with manager(str(tmp_path / "notify") if request.param == "a file" else f"@pillarbox-{uuid.uuid4().hex}") as made:
        yield made


def test_systemd_is_told_that_a_relay_is_ready_lives_and_stops(migrated: "Shop", systemd: Manager) -> None:
    migrated.environment |= systemd.environment(watchdog=0.2)
    with migrated.running(f"pillarbox relay run --database {migrated.database} --broker {migrated.broker}") as relay:
        systemd.until("READY=1")
        systemd.until("STATUS=relays")
        systemd.until("WATCHDOG=1", times=3)
        relay.send_signal(signal.SIGTERM)
        assert "STATUS=draining" in systemd.until("STOPPING=1")
        assert relay.wait(PATIENCE) == 0


def test_systemd_is_told_that_a_consumer_is_ready_lives_and_stops(shop: "Shop", tmp_path: Path) -> None:
    shop.migrate("billing.db")
    (shop.directory / "billing.py").write_text(INBOX)
    with manager(str(tmp_path / "notify")) as systemd:
        shop.environment |= systemd.environment(watchdog=0.2)
        line = f"pillarbox consume billing:inbox --broker {shop.broker} --topic order-events"
        with shop.running(line) as consumer:
            systemd.until("READY=1")
            systemd.until("WATCHDOG=1", times=3)
            consumer.send_signal(signal.SIGTERM)
            systemd.until("STOPPING=1")
            assert consumer.wait(PATIENCE) == 0


def test_a_relay_whose_database_is_away_is_ready_lives_and_says_so(shop: "Shop", tmp_path: Path) -> None:
    with manager(str(tmp_path / "notify")) as systemd:
        shop.environment |= systemd.environment(watchdog=0.2)
        line = "pillarbox relay run --database postgresql://ann:s3cr3t@127.0.0.1:1/shop --broker stdout:"
        with shop.running(line):
            said = systemd.until("READY=1") + systemd.until("WATCHDOG=1", times=3)
        assert "STATUS=the database is away; nothing is lost" in said
        assert not any("s3cr3t" in word for word in said)


class Idle(Daemon):
    """A daemon that starts, does nothing, and stops when it is asked to."""

    async def run(self) -> None:
        self._started.set()
        await self._stop.wait()


@pytest.fixture
def quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    with manager(str(tmp_path / "notify")) as made:
        for name, value in made.environment(watchdog=0.02).items():
            monkeypatch.setenv(name, value)
        yield made


async def test_a_daemon_that_makes_no_turns_is_not_fed(quiet: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "STILL", 0.0)
    daemon = Idle()
    running = asyncio.create_task(daemon._until_signalled())
    await daemon._started.wait()
    quiet.until("READY=1")
    await until_asked(daemon, 3)
    assert "WATCHDOG=1" not in quiet.so_far()
    with daemon.pulse.waiting():  # for somebody else: that is no reason to end it
        await asyncio.to_thread(quiet.until, "WATCHDOG=1")
    daemon.stop()
    await running


async def until_asked(daemon: Daemon, times: int) -> None:
    """Wait until whether it beats was asked so often."""
    asked = asyncio.Event()
    left = iter(range(times - 1, -1, -1))

    class Asked(Pulse):
        @property
        def beats(self) -> bool:
            if next(left, 0) == 0:
                asked.set()
            return super().beats

    daemon.pulse = Asked()
    async with asyncio.timeout(PATIENCE):
        await asked.wait()


async def test_a_loop_that_hangs_is_not_fed(quiet: Manager) -> None:
    daemon = Idle()
    running = asyncio.create_task(daemon._until_signalled())
    await daemon._started.wait()
    await asyncio.to_thread(quiet.until, "WATCHDOG=1")
    quiet.so_far()
    deadline = time.monotonic() + 0.2  # ten times what the watchdog allows
    while time.monotonic() < deadline:
        pass
    assert quiet.so_far() == []
    daemon.stop()
    await running


async def test_while_it_drains_it_is_fed(quiet: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "STILL", 0.0)
    finished = asyncio.Event()

    class Slow(Idle):
        async def run(self) -> None:
            await super().run()
            await finished.wait()

    daemon = Slow()
    running = asyncio.create_task(daemon._until_signalled())
    daemon.stop()
    await asyncio.to_thread(quiet.until, "WATCHDOG=1", 3)
    finished.set()
    await running


async def test_a_manager_that_has_gone_is_no_reason_to_fail(quiet: Manager) -> None:
    quiet.close()
    daemon = Idle()
    running = asyncio.create_task(daemon._until_signalled())
    await daemon._started.wait()
    daemon.stop()
    await running


async def test_beside_an_application_systemd_is_left_to_it(quiet: Manager, migrated: "Shop") -> None:
    settings = Settings(database=f"sqlite:///{migrated.directory / 'shop.db'}")
    taken = asyncio.Event()

    def note(moment: Moment, facts: Any) -> None:
        if moment is Moment.LANES_TAKEN:
            taken.set()

    async with Relay(settings, publish=lambda messages: None, hooks=Hooks(note)):
        await taken.wait()
    assert quiet.so_far() == []


@pytest.mark.parametrize(
    ("environment", "watchdog"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "3000000"}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 3.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_fed_if_it_is_ours(environment: dict[str, str], watchdog: float | None) -> None:
    systemd = Systemd.of({"NOTIFY_SOCKET": "/run/notify"} | environment)
    assert systemd is not None
    systemd.close()
    assert systemd.watchdog == watchdog


@pytest.mark.parametrize("place", [None, "", "vsock:2:9999"])
def test_without_a_socket_that_we_know_nobody_is_told(place: str | None) -> None:
    assert Systemd.of({} if place is None else {"NOTIFY_SOCKET": place, "WATCHDOG_USEC": "1"}) is None


async def test_a_relay_that_waits_for_its_publisher_beats(migrated: "Shop", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "STILL", 0.0)  # from here on only what waits is alive
    asked, answer = asyncio.Event(), asyncio.Event()

    async def publish(messages: list[Any]) -> None:
        asked.set()
        await answer.wait()

    migrated.placed()
    async with Relay(database=f"sqlite:///{migrated.directory / 'shop.db'}", publish=publish) as relay:
        await asked.wait()
        assert relay.pulse.beats
        answer.set()


async def test_a_relay_whose_pump_stands_still_does_not_beat(migrated: "Shop", monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is renewed all the while, and the loop answers: it is the pump that counts."""
    stuck, renewed = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(pulse, "STILL", 0.0)

    def note(moment: Moment, facts: Any) -> None:
        if moment is Moment.LEASE_RENEWED and stuck.is_set():
            renewed.set()

    async def never(pump: Any, *, once: bool = False) -> None:
        stuck.set()
        await asyncio.Event().wait()

    monkeypatch.setattr("pillarbox.relay.pump.Pump.run", never)
    relay = Relay(
        database=f"sqlite:///{migrated.directory / 'shop.db'}", publish=lambda messages: None, hooks=Hooks(note)
    )
    running = asyncio.create_task(relay.run())
    async with asyncio.timeout(PATIENCE):
        await renewed.wait()
    assert not relay.pulse.beats
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def unit(path: Path, directory: Path, command: str) -> Path:
    """Give a copy whose program is there: verifying looks for it."""
    copy = directory / path.name.replace("@.", "@billing.")
    copy.write_text(path.read_text().replace("/opt/pillarbox/bin/pillarbox", command))
    return copy


@pytest.mark.parametrize("name", ["pillarbox-relay.service", "pillarbox-consume@.service"])
def test_systemd_finds_nothing_wrong_with_the_units(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd: systemd-analyze is not here")
    copy = unit(UNITS / name, tmp_path, str(Path(sys.executable).with_name("pillarbox")))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def read_unit(name: str) -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", (UNITS / name).read_text(), re.MULTILINE):
        values.setdefault(key, []).append(value)
    return values


@pytest.mark.parametrize("name", ["pillarbox-relay.service", "pillarbox-consume@.service"])
def test_the_units_notify_are_watched_are_hardened_and_leave_time_to_drain(name: str) -> None:
    said = read_unit(name)
    assert said["Type"] == ["notify"]
    assert said["Restart"] == ["always"]
    assert said["KillSignal"] == ["SIGTERM"]
    assert float(said["WatchdogSec"][0].removesuffix("s")) > 0
    drain = Settings().relay.publish_timeout.total_seconds()
    assert float(said["TimeoutStopSec"][0].removesuffix("s")) > drain
    for name in ("NoNewPrivileges", "PrivateTmp", "DynamicUser"):
        assert said[name] == ["yes"]
    assert said["ProtectSystem"] == ["strict"]
    assert not any("PILLARBOX_DATABASE" in value or "://" in value for value in said.get("Environment", []))
    assert said["EnvironmentFile"]
