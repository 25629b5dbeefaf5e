"""Prometheus: one of our own that scrapes what it is told to and judges by rules; and promtool, which comes with it."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from servers.own import OwnServer
from servers.process import NotInstalled, Server, workdir

PROGRAM = Path("/usr/bin/prometheus")
PROMTOOL = Path("/usr/bin/promtool")


class Prometheus(OwnServer):
    """Run Prometheus as our own child. `files` are put beside its configuration: rules that it names, say."""

    def __init__(self, configuration: str, files: Mapping[str, str] | None = None) -> None:
        _look_for(PROGRAM)
        self.directory = workdir("prometheus", durable=False)
        for name, text in {"prometheus.yml": configuration, **(files or {})}.items():
            file = self.directory / name
            file.write_text(text)
            file.chmod(0o644)
        self.server = Server([PROGRAM], directory=self.directory, ready=self._answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def title(self) -> str:
        return f"Prometheus {self.ask('status/buildinfo')['version']}"

    def prepare(self) -> None:
        self.server.argv = [
            str(PROGRAM),
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def ask(self, path: str, **parameters: str) -> Any:
        """Ask its API something; what it refuses raises ValueError with its words."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as refusal:
            raise ValueError(f"{path} {parameters}: {refusal.read().decode()}") from None

    def query(self, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Give what an expression says now, by its sorted labels."""
        answer = self.ask("query", query=expression)
        assert answer["resultType"] == "vector", answer
        return {tuple(sorted(found["metric"].items())): float(found["value"][1]) for found in answer["result"]}

    def alerts(self, state: str = "firing") -> dict[str, list[dict[str, str]]]:
        """Give the alerts that fire, or are pending: the labels of each, by name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self.ask("alerts")["alerts"]:
            if alert["state"] == state:
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def promtool(*words: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run promtool with `text` as its input; its exit code and its words are the caller's to judge."""
    _look_for(PROMTOOL)
    return subprocess.run(
        [PROMTOOL, *words], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )


def _look_for(program: Path) -> None:
    if not program.exists():
        raise NotInstalled(f"needs Prometheus: {program} is missing; run .ci/servers")
