"""Registering a connector with a worker that is not as ready as ours: it rebalances, wants a password, or breaks."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from pillarbox.admin.debezium import Connector
from pillarbox.admin.kafka_connect import KafkaConnect, Registered
from pillarbox.errors import BrokerUnavailable, ConfigError

SHOP = Connector("shop", {"tasks.max": "1"})
Answer = tuple[int, object]
RUNS: Answer = (200, {"connector": {"state": "RUNNING"}, "tasks": [{"state": "RUNNING"}]})
STARTS: Answer = (200, {"connector": {"state": "RUNNING"}, "tasks": []})
MISSING: Answer = (404, {"message": "No status found for connector shop"})
REBALANCES: Answer = (409, {"message": "Cannot complete request momentarily due to stale configuration"})
MADE: Answer = (201, {})
CHANGED: Answer = (200, {})
FAILED: Answer = (
    200,
    {
        "connector": {"state": "RUNNING"},
        "tasks": [{"state": "FAILED", "trace": "o.a.ConnectException: Tolerance\n\tat x\nCaused by: j.Exception: Why"}],
    },
)


class Worker:
    """A worker that answers as it was told to, and repeats the last answer of each kind."""

    def __init__(self, **answers: list[Answer]) -> None:
        self._answers = answers
        self.asked: list[tuple[str, str, str | None]] = []

    def answer(self, method: str, path: str, login: str | None) -> Answer:
        self.asked.append((method, path, login))
        left = self._answers.get(method, [(202, {})])
        return left.pop(0) if len(left) > 1 else left[0]

    @contextmanager
    def listening(self) -> Iterator[str]:
        worker = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                status, document = worker.answer(self.command, self.path, self.headers["Authorization"])
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = answer

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever, args=(0.02,))
            thread.start()
            try:
                yield f"127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()


@pytest.fixture
def register() -> Callable[..., Registered]:
    def run(worker: Worker, login: str = "", patience: float = 5.0) -> Registered:
        with worker.listening() as address:
            return KafkaConnect(f"http://{login}{address}", patience=patience).register(SHOP)

    return run


Register = Callable[..., Registered]


def test_it_waits_while_workers_rebalance_and_the_task_starts(register: Register) -> None:
    worker = Worker(PUT=[REBALANCES, REBALANCES, MADE], GET=[MISSING, STARTS, RUNS])
    assert register(worker) == Registered(True, "RUNNING", None)
    assert [method for method, *_ in worker.asked] == ["PUT", "PUT", "PUT", "GET", "GET", "GET"]


def test_one_that_was_there_is_started_again_if_it_had_failed(register: Register) -> None:
    worker = Worker(PUT=[CHANGED], GET=[FAILED, RUNS])
    assert register(worker) == Registered(False, "RUNNING", None)
    assert worker.asked[1][:2] == ("POST", "/connectors/shop/restart?includeTasks=true&onlyFailed=true")


def test_a_new_one_that_fails_has_failed(register: Register) -> None:
    assert register(Worker(PUT=[MADE], GET=[STARTS, FAILED])) == Registered(True, "FAILED", "Tolerance; Why")


def test_one_that_was_there_and_stays_failed_has_failed(register: Register) -> None:
    assert register(Worker(PUT=[CHANGED], GET=[FAILED])) == Registered(False, "FAILED", "Tolerance; Why")


def test_one_that_never_starts_is_told_as_it_is(register: Register) -> None:
    assert register(Worker(PUT=[MADE], GET=[STARTS]), patience=0.2) == Registered(True, "STARTING", None)


def test_the_login_of_the_address_is_sent(register: Register) -> None:
    worker = Worker(PUT=[MADE], GET=[RUNS])
    register(worker, "ann:p%40ss@")
    assert {login for *_, login in worker.asked} == {"Basic YW5uOnBAc3M="}


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (
            (400, {"message": "invalid:\nno\nYou can also find the above list of errors at"}),
            ConfigError,
            "es: invalid: no$",
        ),
        ((401, {"message": "User cannot access the resource."}), ConfigError, "refuses: User cannot access"),
        ((500, {"message": "Request timed out"}), BrokerUnavailable, "cannot do it now: Request timed out"),
        (REBALANCES, BrokerUnavailable, "cannot do it now: Cannot complete request momentarily"),
        ((404, b"<html>"), ConfigError, "answers, but not as Kafka Connect does: 404 Not Found"),
        ((200, b"<html>"), ConfigError, "answers, but not as Kafka Connect does"),
    ],
)
def test_what_a_worker_refuses_is_an_error_with_its_words(
    register: Register, answer: Answer, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        register(Worker(PUT=[answer]), "ann:secret@", patience=0.2)
    assert "secret" not in str(raised.value)


def test_a_stranger_that_takes_everything_is_noticed(register: Register) -> None:
    with pytest.raises(ConfigError, match="answers, but not as Kafka Connect does"):
        register(Worker(PUT=[CHANGED], GET=[(200, {"hello": "world"})]))
