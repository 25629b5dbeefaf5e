"""What RabbitMQ's management API may answer that is no use: told as a reason, whatever it is."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pillarbox.brokers.rabbitmq import Address
from pillarbox.brokers.rabbitmq.management import Host, Untold, ask

WHOLE: dict[str, Any] = {
    "overview": {"rabbitmq_version": "4.1.0"},
    "exchanges": [{"name": "events", "type": "topic"}],
    "bindings": [{"source": "events", "destination": "q", "destination_type": "queue", "routing_key": "#"}],
    "queues": [{"name": "q", "durable": True}],
    "policies": [{"name": "p", "pattern": "q", "apply-to": "all", "priority": 0, "definition": {}}],
}


def http(body: bytes, length: object = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n%s" % (str(length or len(body)).encode(), body)


def answers(**instead: Any) -> Callable[[str], bytes]:
    """Answer as RabbitMQ does, but for some things."""
    return lambda what: http(json.dumps({**WHOLE, **instead}[what]).encode())


@contextmanager
def answering(answer: Callable[[str], bytes]) -> Iterator[Address]:
    """Give the address of a server that answers so, by what it is asked for, and closes."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            path = self.rfile.readline().split()[1].decode()
            while self.rfile.readline().strip():
                pass
            self.wfile.write(answer(path.split("/")[2].partition("?")[0]))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            port = server.server_address[1]
            yield Address.parse(f"rabbitmq://shop:hunter2@127.0.0.1/?management=http://127.0.0.1:{port}")
        finally:
            server.shutdown()
            thread.join()


async def test_what_rabbitmq_answers_is_taken_as_it_is() -> None:
    with answering(answers()) as address:
        told = await ask(address)
    assert told == Host("4.1.0", *(WHOLE[name] for name in ("exchanges", "bindings", "queues", "policies")))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"AMQP\x00\x00\x09\x01", r"speaks no HTTP.*BadStatusLine.*the port of the management API"),
        (http(b"{}", 100), "breaks off .IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500 + b"\r\n{}", "speaks no HTTP"),
        (http(b"[" * 200_000), "recursion"),
        (http(b"<html>"), "Expecting value"),
        (http(b"\xff"), "invalid start byte"),
        (http(b"{}"), "/api/overview is not RabbitMQ's"),
        (http(b"[]"), "/api/overview is not RabbitMQ's"),
        (http(b"null"), "/api/overview is not RabbitMQ's"),
        (http(b'{"rabbitmq_version": 1}'), "/api/overview is not RabbitMQ's"),
    ],
    ids=["AMQP", "cut", "headers", "deep", "html", "bytes", "object", "list", "null", "version"],
)
async def test_an_odd_answer_is_a_reason(answer: bytes, words: str) -> None:
    with answering(lambda what: answer) as address:
        await refused(address, words)


@pytest.mark.parametrize("what", ["exchanges", "bindings", "queues", "policies"])
@pytest.mark.parametrize("instead", [{}, None, "x", [None], [{}], [[]], [{"name": 1}]])
async def test_an_answer_of_another_shape_is_a_reason(what: str, instead: Any) -> None:
    with answering(answers(**{what: instead})) as address:
        await refused(address, f"/api/{what}/%2F is not RabbitMQ's management API")


@pytest.mark.parametrize("name", ["cafile", "certfile"])
@pytest.mark.parametrize("is_there", [True, False])
async def test_certificates_that_cannot_be_used_are_a_reason(tmp_path: Path, name: str, *, is_there: bool) -> None:
    file = tmp_path / "some.pem"
    if is_there:
        file.write_text("no certificate")
    await refused(Address.parse(f"amqps://shop:hunter2@127.0.0.1/?{name}={file}"), "cannot be used for TLS: ")


async def refused(address: Address, words: str) -> None:
    with pytest.raises(Untold, match=words) as why:
        await ask(address)
    assert "hunter2" not in str(why.value)
