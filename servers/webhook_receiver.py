"""A web application that receives webhooks: one of our own that may be killed, and told how to answer."""

import base64
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from servers.own import OwnServer
from servers.process import NotInstalled, Server, workdir

PROGRAM = Path(__file__).with_name("webhook_endpoint.py")
LARGEST = 400_000
"""Bytes; a larger request is answered with 413."""


class Received(NamedTuple):
    """A request that was taken: headers in lower case, the connection it came through, and who was there with it."""

    request: str
    headers: dict[str, str]
    body: bytes
    connection: str
    sni: str | None
    at_once: int
    of_its_key: int


class WebhookReceiver(OwnServer):
    """Run the endpoint as our own child. What it took is in a file, which survives kill -9.

    `names` are those of its certificate; without any, it speaks plain HTTP.
    """

    def __init__(self, *names: str, days: int = 2) -> None:
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
        self.directory = workdir("webhook")
        # The server's account may not enter where our files are.
        self._program = shutil.copy(PROGRAM, self.directory)
        self.certificate = make_certificate(self.directory, names, days) if names else None
        self._python = python
        self._probes: set[int] = set()
        self._forgotten = 0
        self.server = Server([python], directory=self.directory, ready=self._answers, patience=15)

    @property
    def url(self) -> str:
        """Its address, by number: TLS is spoken to the name of the certificate."""
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}/hook"

    @property
    def title(self) -> str:
        return "a receiver of webhooks"

    def behave(self, *rules: dict[str, Any]) -> None:
        """Say how to answer from now on; the first rule that fits holds, and without one the answer is 200.

        contains   a part of the body; without it every request fits
        times      for how many requests; without it for all
        numbers    for which of the requests, the next one being 0; without it for all
        delay      seconds before anything is done
        store      take the request? By default, if the status is 2xx
        status, headers, body   the answer
        raw        the answer's very bytes, in Latin-1
        endless    seconds between the pieces of an answer that never ends
        hang       never answer
        close      close the connection instead of an answer
        """
        new = self.directory / "rules.new"
        new.write_text(json.dumps(rules))
        new.chmod(0o644)
        new.rename(self.directory / "rules.json")

    def received(self) -> list[Received]:
        """Give what was taken, in order."""
        return [Received(**self._read(line)) for line in self._lines("received.jsonl")]

    def count(self) -> int:
        """Count what was taken."""
        return len(self._lines("received.jsonl"))

    def connections(self) -> int:
        """Count the connections there have ever been, without those that asked whether it is ready."""
        return len([port for port in self._peers() if port not in self._probes]) - self._forgotten

    def forget(self) -> None:
        """Behave well, and forget what was taken."""
        self.behave()
        (self.directory / "received.jsonl").open("w").close()
        self._forgotten += self.connections()

    def _peers(self) -> list[int]:
        return [json.loads(line)["peer"] for line in self._lines("connections.jsonl")]

    def _read(self, line: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(line)
        del found["at"]
        return found | {"body": base64.b64decode(found["body"])}

    def _lines(self, name: str) -> list[str]:
        file = self.directory / name
        return file.read_text().splitlines() if file.exists() else []

    def prepare(self) -> None:
        command: list[str | Path] = [self._python, self._program, str(self.port), self.directory]
        if self.certificate is not None:
            command.append(self.certificate.with_name("server.pem"))
        self.server.argv = [str(word) for word in command]

    def _start_on(self, port: int) -> None:
        super()._start_on(port)
        self.forget()

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as probe:
                self._probes.add(probe.getsockname()[1])
        except OSError:
            return False
        return True


def make_certificate(directory: Path, names: tuple[str, ...], days: int = 2) -> Path:
    """Make a certificate for these names or addresses, signed by itself, which runs out in so many days; give the file
    that a client trusts."""
    if shutil.which("openssl") is None:
        raise NotInstalled("needs openssl: the program that makes certificates is missing; install it from Debian")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    kinds = [f"{'IP' if name.replace('.', '').isdigit() else 'DNS'}:{name}" for name in names]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", str(days), "-subj", f"/CN={names[0]}", "-addext", f"subjectAltName={','.join(kinds)}"]
    subprocess.run([*command, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    both = directory / "server.pem"
    both.write_text(certificate.read_text() + key.read_text())
    both.chmod(0o644)
    return certificate
