"""A server as our own child: ready when a real request succeeds, stopped, killed, frozen, and gone when we are."""

import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

STARTED: set[str] = set()
"""The servers that this process has started, with their versions: what the tests ran against."""

LINGERING = ("still in use", "already exists")
ADDRESS_IN_USE = "address already in use"
ANY_PORTS = range(10240, 32768)
MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""So many bytes must be free in memory for one more server there."""

Started = TypeVar("Started")


class NotInstalled(Exception):
    """This machine lacks a server's program; the message says how to get it."""


class AddressInUse(Exception):
    """Somebody else listens on the port: take another one."""


class Server:
    """Run one server program; start it from the main thread, for it dies with the thread that started it."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        directory: Path,
        ready: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        patience: float = 30,
    ) -> None:
        self.argv = [str(argument) for argument in argv]
        self.directory = directory
        self.ready = ready
        self.environment = dict(environment or {})
        self.stop_signal = stop_signal
        self.patience = patience
        self.log = directory / "server.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._was_ready = False

    @property
    def pid(self) -> int:
        return self._child().pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        deadline = time.monotonic() + self.patience
        while not self._answers_before(deadline):
            complaint = self._last_words().lower()
            if ADDRESS_IN_USE in complaint and not self._was_ready:
                raise AddressInUse(self._account("found its port taken"))
            # After kill -9 the children need a moment to let go of the port and of the shared memory.
            if not any(word in complaint for word in (*LINGERING, ADDRESS_IN_USE)) or time.monotonic() > deadline:
                raise RuntimeError(self._account("ended as it started"))
            time.sleep(0.1)
        self._was_ready = True

    def stop(self) -> None:
        """Ask the server to end, and wait until it has."""
        if not self.running:
            return
        child = self._child()
        child.send_signal(self.stop_signal)
        self.thaw()
        try:
            child.wait(self.patience)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(self._account(f"did not stop in {self.patience:.0f} s, and was killed")) from None

    def kill(self) -> None:
        """Send SIGKILL to the server's process group, and wait until the server is gone."""
        if self.running:
            os.killpg(self.pid, signal.SIGKILL)
            self._child().wait()

    def freeze(self) -> None:
        """Stop the server without ending it: connections stay open and nothing answers."""
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop the server if it runs, and start it again in the same place."""
        self.stop()
        self.start()

    def tail(self) -> str:
        """Give the end of the server's log."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def _answers_before(self, deadline: float) -> bool:
        """Start the program once; say whether it answers, or has ended."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*as_server_account(), "--pdeathsig", "KILL", "--", *self.argv],
                cwd=self.directory,
                env=clean_environment(self.directory, self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while self.process.poll() is None:
            # Asked again after the answer: it may have come from another server on the same port while ours gave up.
            if self.ready() and self.process.poll() is None:
                return True
            if time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(self._account(f"did not answer in {self.patience:.0f} s, and was killed"))
            time.sleep(0.02)
        return False

    def _child(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise RuntimeError(f"{self.argv[0]} was never started; call start() first")
        return self.process

    def _last_words(self) -> str:
        """Give what the server has logged since it was last started."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    def _account(self, what: str) -> str:
        return f"{self.argv[0]} {what}; its log {self.log} ends:\n{self.tail()}"


def free_port() -> int:
    """Give a port that nobody listens on, outside the range from which the kernel takes ports for clients.

    A client's port could otherwise be in the way of a restart, or a client that dials a dead server could reach itself.
    """
    taken = range(*clients_ports())
    ports = [port for port in ANY_PORTS if port not in taken] or ANY_PORTS
    while True:
        port = random.choice(ports)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def clients_ports() -> tuple[int, int]:
    """Give the first port that the kernel gives to clients, and the one after the last."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(first), int(last) + 1


def start_on_free_port(start: Callable[[int], Started]) -> Started:
    """Call `start` with a free port, and again with another one if somebody was faster."""
    for _ in range(5):
        try:
            return start(free_port())
        except AddressInUse:
            continue
    return start(free_port())


def server_account() -> pwd.struct_passwd | None:
    """Give the account a server runs under: none of its own unless we are root, which most servers refuse."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("root cannot run servers here: neither the account postgres nor nobody exists; add one of them")


def as_server_account() -> list[str]:
    """Give the beginning of a command that runs under the server's account."""
    account = server_account()
    if account is None:
        return ["setpriv"]
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


def clean_environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """Give an environment in which nothing of the developer's own changes what a server does."""
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": str(home), **extra}


def run_tool(argv: Sequence[str | Path], *, directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a server's own tool under the server's account, and give what it prints."""
    command = [*as_server_account(), "--", *(str(argument) for argument in argv)]
    done = subprocess.run(
        command,
        cwd=directory,
        env=clean_environment(directory, environment or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        raise RuntimeError(f"{argv[0]} failed with exit code {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def workdir(name: str, *, durable: bool = True) -> Path:
    """Make a directory for one server, where its account may enter and a socket's path is short enough: on a disk, or,
    if nothing has to survive a power loss, in memory."""
    place = MEMORY if not durable and has_room(MEMORY) else Path("/tmp")
    directory = Path(tempfile.mkdtemp(prefix=f"pillarbox-{name}-", dir=place))
    if account := server_account():
        shutil.chown(directory, account.pw_uid, account.pw_gid)
    return directory


def has_room(place: Path) -> bool:
    """Say whether a server may fill its part of this place in memory."""
    if not place.is_dir() or shutil.disk_usage(place).free < ROOM:
        return False
    available = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return available is not None and int(available[1]) * 1024 >= ROOM


def end_processes_in(directory: Path) -> None:
    """Send SIGKILL to what a killed server has left at work in its directory, until nothing is left."""
    while left := [pid for pid in process_ids() if works_in(pid, directory)]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def process_ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def works_in(pid: int, directory: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == directory
    except OSError:  # it has ended, or is somebody else's
        return False
