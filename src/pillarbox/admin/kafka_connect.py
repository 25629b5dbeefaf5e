"""Kafka Connect's REST interface: register a connector, and see whether it runs."""

import base64
import json
import re
import time
from typing import Any, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import quote, unquote, urlsplit
from urllib.request import Request, urlopen

from pillarbox.admin.debezium import Connector
from pillarbox.core.secrets import without_secrets
from pillarbox.errors import BrokerUnavailable, ConfigError

PATIENCE = 30.0
"""How long a worker may rebalance, and a task may take to start, in seconds."""
ANSWER_TIMEOUT = 60.0
"""A worker asks the database before it answers."""
PAUSE = 0.1
STALE = 3.0
"""So many seconds after an update a failure is believed, unless the task ran in between."""
REBALANCING = 409
_LONGEST = 1000
_ADVICE = re.compile(r"\s*You can also find the above list of errors.*", re.DOTALL)
_CAUSE = re.compile(r"^(?:Caused by: )?[\w.$]+(?:Exception|Error)(?:: (?P<words>.*))?$", re.MULTILINE)


class Registered(NamedTuple):
    """What became of a connector: whether it is new, its task's state, and what it failed with."""

    created: bool
    state: str
    error: str | None


class KafkaConnect:
    """A worker of Kafka Connect, at `http://host:8083` or `https://user:password@host:8083`."""

    def __init__(self, url: str, *, patience: float = PATIENCE) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("--register: what was given is not the address of Kafka Connect: http://host:8083")
        self._shown, self._patience = without_secrets(url).rstrip("/"), patience
        self._url = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl().rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if parts.username is not None:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"

    def register(self, connector: Connector, watch: float = 0.0) -> Registered:
        """Make a connector, or give the one of that name this configuration; wait until it has failed, or run so long.

        `watch` is in seconds: a task that has started may find at once that it cannot go on.
        """
        path = f"connectors/{quote(connector.name, safe='')}"
        status, _ = self._ask("PUT", f"{path}/config", dict(connector.config))
        created = status == 201
        if not created:
            # A task that failed may stay so, whatever its configuration is.
            self._ask("POST", f"{path}/restart?includeTasks=true&onlyFailed=true")
        return Registered(created, *self._state(f"{path}/status", watch, 0.0 if created else STALE))

    def _state(self, path: str, watch: float, stale: float) -> tuple[str, str | None]:
        """Wait for a state that lasts; a failure right after an update may be the one before."""
        began = changed = time.monotonic()
        before = ""
        while True:
            parts = self._parts(path)
            state = next((part["state"] for part in parts if part["state"] != "RUNNING"), "RUNNING")
            state = "STARTING" if len(parts) == 1 and state == "RUNNING" else state
            now = time.monotonic()
            if state != before:
                before, changed = state, now
            stale = 0.0 if state == "RUNNING" else stale
            if state == "FAILED" and now - changed >= stale:
                return state, _causes(next(part.get("trace", "") for part in parts if part["state"] == state))
            if (state == "RUNNING" and now - changed >= watch) or now - began > self._patience + watch:
                return state, None
            time.sleep(PAUSE)

    def _parts(self, path: str) -> list[dict[str, str]]:
        """Give the connector's status and that of its one task, if it has it already."""
        try:
            _, status = self._ask("GET", path)
            return [status["connector"], *status["tasks"]]
        except _NotThere:
            return [{"state": "UNASSIGNED"}]
        except (KeyError, TypeError) as error:
            raise self._stranger(str(error)) from error

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Send a request, and again while the workers rebalance; give the answer's status and document."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return self._ask_once(method, path, body)
            except HTTPError as error:
                if error.code != REBALANCING or time.monotonic() > deadline:
                    raise self._refusal(error) from error
            except (URLError, TimeoutError, ConnectionError) as error:
                words = getattr(error, "reason", None) or error
                raise BrokerUnavailable(
                    f"Kafka Connect at {self._shown} cannot be reached: {words}; start a worker there, or name its"
                    " REST listener"
                ) from error
            except ValueError as error:
                raise self._stranger(str(error)) from error
            time.sleep(PAUSE)

    def _ask_once(self, method: str, path: str, body: object) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}/{path}", data, self._headers, method=method)
        with urlopen(request, timeout=ANSWER_TIMEOUT) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None

    def _refusal(self, error: HTTPError) -> Exception:
        try:
            words = str(json.loads(error.read())["message"])
        except (ValueError, KeyError, TypeError):
            return self._stranger(f"{error.code} {error.reason}")
        words = " ".join(_ADVICE.sub("", words).split())[:_LONGEST]
        if error.code == 404:
            return _NotThere(f"Kafka Connect at {self._shown} does not know it: {words}")
        if error.code == REBALANCING or error.code >= 500:
            return BrokerUnavailable(f"Kafka Connect at {self._shown} cannot do it now: {words}")
        return ConfigError(f"Kafka Connect at {self._shown} refuses: {words}")

    def _stranger(self, words: str) -> ConfigError:
        return ConfigError(f"--register: {self._shown} answers, but not as Kafka Connect does: {words}")


class _NotThere(ConfigError):
    """No such connector, or not yet."""


def _causes(trace: str) -> str:
    """Take out of a Java trace what was said, each thing once."""
    said = [found["words"] for found in _CAUSE.finditer(trace) if found["words"]]
    return "; ".join(dict.fromkeys(said))[:_LONGEST] or trace.partition("\n")[0]
