"""What is special about webhooks: addresses, redirects, odd answers, secrets, TLS, connections, signatures."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary, from_structured
from cloudevents.core.formats.json import JSONFormat

from pillarbox.brokers.webhook import WebhookOptions, WebhookPublisher, client
from pillarbox.core.entry import Entry
from pillarbox.core.message import Delivery, Message, decode, encode
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected, PublishTimeout
from pillarbox.testing.contracts.publisher import answers, batch, errors
from servers.process import free_port
from servers.webhook_receiver import WebhookReceiver
from tests.conftest import installed
from tests.integration.webhook_world import KEY, OLD_KEY, OLD_SECRET, SECRET, expected_signature, message_of, options

MakePublisher = Callable[..., WebhookPublisher]
Lookup = Callable[..., Any]
TLS_RECORD = 16_384
"""Bytes in a record of TLS, at most."""


@pytest.fixture
async def publisher() -> AsyncIterator[MakePublisher]:
    """Makes publishers, and closes them."""
    made: list[WebhookPublisher] = []

    def make(where: WebhookOptions, *, seconds: float = 5) -> WebhookPublisher:
        made.append(WebhookPublisher(where, publish_timeout=timedelta(seconds=seconds)))
        return made[-1]

    yield make
    for one in made:
        await one.close()


@pytest.fixture(scope="module")
def tls_receiver() -> Iterator[WebhookReceiver]:
    """An endpoint whose certificate is for localhost and 127.0.0.1."""
    with installed(lambda: WebhookReceiver("localhost", "127.0.0.1")) as server:
        yield server


async def outcome(publisher: WebhookPublisher, *messages: Message) -> PublishError | None:
    """Send messages; give the error of the last ticket."""
    sent = messages or tuple(batch("a"))
    publisher.send(sent)
    found = dict(await answers(publisher, len(sent)))
    return found[sent[-1].ticket]


class Names:
    """A name server of our own: it gives the next answer each time it is asked, and the last one for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers, self.asked = list(answers), 0
        self._real = socket.getaddrinfo

    def __call__(self, host: str, port: int, *rest: Any, **more: Any) -> Any:
        assert not host.replace(".", "").isdigit(), "an address needs no look-up"
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not answer:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [found for address in answer for found in self._real(address, port, type=socket.SOCK_STREAM)]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Names]:
    """Answers every look-up of a name from now on."""

    def answer(*answers: list[str]) -> Names:
        made = Names(*answers)
        monkeypatch.setattr(socket, "getaddrinfo", made)
        return made

    return answer


@pytest.mark.parametrize(
    "found",
    [
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "fe80::1",
        "fd00:ec2::254",
        "224.0.0.1",
        "0.0.0.0",
        "64:ff9b::7f00:1",
        "93.184.216.34,127.0.0.1",
    ],
)
async def test_a_name_that_leads_inside_is_away_and_nobody_is_called(
    found: str, names: Callable[..., Names], publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    names(found.split(","))
    where = options(f"http://hooks.test:{webhook_receiver.port}/hook", allow=[], unsafe=True)
    error = await outcome(publisher(where))
    assert type(error) is BrokerUnavailable
    assert "hooks.test is the" in str(error)
    assert "webhooks.allow" in str(error)
    assert webhook_receiver.connections() == 0


async def test_a_name_that_is_allowed_may_lead_inside(
    names: Callable[..., Names], publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    names(["127.0.0.1"])
    where = options(f"http://hooks.test:{webhook_receiver.port}/hook", allow=["hooks.test"])
    assert await outcome(publisher(where)) is None
    (received,) = webhook_receiver.received()
    assert received.headers["host"] == f"hooks.test:{webhook_receiver.port}"


async def test_the_address_that_was_checked_is_the_one_that_is_called(
    names: Callable[..., Names],
    publisher: MakePublisher,
    webhook_receiver: WebhookReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "CONNECTING", 0.2)  # nobody answers at the first address
    asked = names(["192.0.2.1"], ["127.0.0.1"])
    where = options(f"http://hooks.test:{webhook_receiver.port}/hook", allow=["192.0.2.1"], unsafe=True)
    hooks = publisher(where, seconds=1)
    assert type(await outcome(hooks)) is BrokerUnavailable
    assert asked.asked == 1, "a second look-up could have had another answer"
    assert "is the loopback address" in str(await outcome(hooks))
    assert webhook_receiver.connections() == 0


async def test_a_name_is_looked_up_again_after_a_while(
    names: Callable[..., Names],
    publisher: MakePublisher,
    webhook_receiver: WebhookReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = names(["127.0.0.1"], ["169.254.169.254"])
    where = options(f"http://hooks.test:{webhook_receiver.port}/hook", allow=["hooks.test"])
    hooks = publisher(where)
    for first in range(1, 6):
        assert await outcome(hooks, *batch("a", first=first)) is None
    assert (asked.asked, webhook_receiver.connections()) == (1, 1)
    monkeypatch.setattr(client, "LOOKED_UP_FOR", -1.0)
    assert "cloud metadata" in str(await outcome(hooks))
    assert len(webhook_receiver.received()) == 5


async def test_the_next_address_is_tried_where_one_does_not_answer(
    names: Callable[..., Names], publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    names(["127.0.0.9", "127.0.0.1"])  # the receiver listens on the second only
    where = options(f"http://hooks.test:{webhook_receiver.port}/hook", allow=["hooks.test"])
    assert await outcome(publisher(where)) is None


async def test_no_proxy_of_the_environment_comes_between(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    assert await outcome(publisher(options(webhook_receiver.url))) is None


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_refusal_and_never_followed(
    status: int, publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"times": 1, "status": status, "headers": {"location": "/elsewhere"}})
    error = await outcome(publisher(options(webhook_receiver.url)))
    assert type(error) is PublishRejected
    assert "Location: /elsewhere" in str(error)
    assert webhook_receiver.received() == []


REFUSED = dict.fromkeys([400, 401, 404, 410, 422], PublishRejected)
TRIED_AGAIN = dict.fromkeys([408, 425, 429, 500, 502, 503], PublishError)


@pytest.mark.parametrize(("status", "kind"), {**REFUSED, **TRIED_AGAIN}.items())
async def test_what_an_endpoint_answers_is_told_in_its_own_words(
    status: int, kind: type, publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"status": status, "body": "tenant 7\nis unknown"})
    error = await outcome(publisher(options(webhook_receiver.url)))
    assert type(error) is kind
    assert f"answered {status}" in str(error)
    assert "tenant 7 is unknown" in str(error)


async def test_a_pause_that_the_endpoint_asks_for_is_kept(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"times": 1, "status": 429, "headers": {"retry-after": "1"}})
    hooks = publisher(options(webhook_receiver.url, connections=1))
    asked = time.monotonic()
    hooks.send(batch("abc"))
    assert set(errors(await answers(hooks, 3)).values()) == {BrokerUnavailable}
    assert type(await outcome(hooks)) is BrokerUnavailable
    assert webhook_receiver.received() == []
    while await outcome(hooks) is not None:  # noqa: ASYNC110 - the pause is the endpoint's
        await asyncio.sleep(0.05)
    assert time.monotonic() - asked >= 1


async def test_an_endless_answer_is_cut_off(publisher: MakePublisher, webhook_receiver: WebhookReceiver) -> None:
    head = "HTTP/1.1 {} Said\r\ncontent-length: 1000000000\r\n\r\n"
    webhook_receiver.behave(
        {"contains": "a1", "raw": head.format(200), "endless": 0.0001, "store": True},
        {"contains": "a2", "raw": head.format(500), "endless": 0.0001, "store": False},
    )
    hooks = publisher(options(webhook_receiver.url))
    began = time.monotonic()
    assert await outcome(hooks) is None
    error = await outcome(hooks, *batch("a", first=2))
    assert time.monotonic() - began < 2
    assert type(error) is PublishError
    assert len(str(error)) < 1000
    assert await outcome(hooks, *batch("a", first=3)) is None, "the connection that was cut is not used again"


async def test_an_answer_that_drips_is_cut_off_once_its_status_is_known(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "READING", 0.2)
    raw = "HTTP/1.1 200 Said\r\ncontent-length: 1000000000\r\n\r\n"
    webhook_receiver.behave({"raw": raw, "endless": 0.15, "store": True})
    began = time.monotonic()
    assert await outcome(publisher(options(webhook_receiver.url))) is None
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    "rule",
    [{"hang": True}, {"raw": "HTTP/1.1 200 Said\r\nx: ", "endless": 0.05}, {"raw": "HT"}],
    ids=["silence", "headers without end", "half a status"],
)
async def test_an_answer_that_does_not_come_in_time_is_no_answer(
    rule: dict[str, Any], publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave(rule)
    began = time.monotonic()
    error = await outcome(publisher(options(webhook_receiver.url), seconds=0.5))
    assert 0.4 < time.monotonic() - began < 2
    assert type(error) is BrokerUnavailable
    assert "did not answer within 0.5 s" in str(error)


async def test_an_event_that_the_endpoint_hangs_on_counts_while_it_answers_others(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"contains": "a1", "hang": True})
    hooks = publisher(options(webhook_receiver.url), seconds=0.5)
    hooks.send(batch("a"))
    await asyncio.sleep(0.1)  # in a send of its own
    hooks.send(batch("b", first=2))
    assert errors(await answers(hooks, 2)) == {1: PublishTimeout, 2: None}


@pytest.mark.parametrize(
    ("rule", "kind", "words"),
    [
        ({"close": True}, BrokerUnavailable, "broke before it answered"),
        ({"raw": "SSH-2.0-OpenSSH_9.2\r\n\r\n"}, PublishError, "answered what is not HTTP"),
        ({"raw": "HTTP/1.1 200 Said\r\n" + "x: y\r\n" * 30_000}, PublishError, "answered what is not HTTP"),
    ],
    ids=["closed", "not HTTP", "huge headers"],
)
async def test_an_answer_that_makes_no_sense_is_no_acknowledgement(
    rule: dict[str, Any], kind: type, words: str, publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave(rule)
    error = await outcome(publisher(options(webhook_receiver.url), seconds=2))
    assert type(error) is kind
    assert words in str(error)


@pytest.mark.parametrize("first", ["plain", "TLS"])
async def test_an_answer_too_many_is_not_taken_for_the_next_events(
    first: str, publisher: MakePublisher, webhook_receiver: WebhookReceiver, tls_receiver: WebhookReceiver
) -> None:
    receiver = tls_receiver if first == "TLS" else webhook_receiver
    head = "HTTP/1.1 200 Said\r\ncontent-length: 0\r\nx: "
    long = head + "y" * (TLS_RECORD - len(head) - 4) + "\r\n\r\n"  # the surplus is in a record of its own
    receiver.behave({"contains": "a1", "raw": long + long, "store": True}, {"status": 500})
    ca = {"tls_ca": str(receiver.certificate)} if receiver.certificate else {}
    hooks = publisher(options(receiver.url, connections=1, **ca))
    assert await outcome(hooks) is None
    error = await outcome(hooks, *batch("a", first=2))
    assert "answered 500" in str(error)


@pytest.mark.parametrize("body", ["ok", ""], ids=["at once", "later"])
async def test_a_body_that_must_not_be_there_harms_nobody(
    body: str, publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    raw = "HTTP/1.1 204 Said\r\ncontent-length: 2\r\n\r\n" + body
    webhook_receiver.behave({"raw": raw, "store": True})
    hooks = publisher(options(webhook_receiver.url, connections=1))
    for first in range(1, 4):
        assert await outcome(hooks, *batch("a", first=first)) is None
    assert webhook_receiver.connections() == 3, "none is used again"


async def test_204_keeps_its_connection_as_200_does(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver, tls_receiver: WebhookReceiver
) -> None:
    for receiver in (webhook_receiver, tls_receiver):
        receiver.forget()
        receiver.behave({"contains": "a1", "raw": "HTTP/1.1 204 Said\r\n\r\n", "store": True})
        ca = {"tls_ca": str(receiver.certificate)} if receiver.certificate else {}
        hooks = publisher(options(receiver.url, connections=1, **ca))
        for first in range(1, 4):
            assert await outcome(hooks, *batch("a", first=first)) is None
        assert receiver.connections() == 1


async def test_a_call_is_answered_for_whatever_is_raised(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = publisher(options(webhook_receiver.url, connections=1))
    for what in ("pause", "pack"):
        with monkeypatch.context() as patched:
            patched.setattr(f"pillarbox.brokers.webhook.publisher.{what}", lambda *_: int("odd"))
            async with asyncio.timeout(5):
                error = await outcome(hooks)
        assert type(error) is PublishError
        assert "ValueError: invalid literal" in str(error)
    assert await outcome(hooks) is None


async def test_a_worker_that_somebody_ends_answers_for_what_waits(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"hang": True})
    hooks = publisher(options(webhook_receiver.url, connections=1))
    hooks.send(batch("ab"))
    await asyncio.sleep(0)
    (worker,) = (task for task in asyncio.all_tasks() if task.get_name().startswith("call "))
    worker.cancel()
    async with asyncio.timeout(5):
        assert set(errors(await answers(hooks, 2)).values()) == {BrokerUnavailable}


async def test_an_event_on_which_the_endpoint_hangs_up_counts_once_it_has_answered_others(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"contains": "a1", "close": True})
    hooks = publisher(options(webhook_receiver.url))
    for _ in range(3):
        assert type(await outcome(hooks)) is BrokerUnavailable, "it may be away"
    assert await outcome(hooks, *batch("b", first=2)) is None
    error = await outcome(hooks)
    assert type(error) is PublishError
    assert "again on this event, while it answered others" in str(error)
    assert type(await outcome(hooks)) is BrokerUnavailable, "it may be away by now"


async def test_answers_of_a_proxy_do_not_say_that_the_endpoint_is_there(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"contains": "a1", "close": True}, {"status": 502})
    hooks = publisher(options(webhook_receiver.url))
    answers = [await outcome(hooks, *batch("a", first=first)) for first in (1, 2, 1)]
    assert type(answers[-1]) is BrokerUnavailable


async def test_a_name_that_does_not_exist_is_away(names: Callable[..., Names], publisher: MakePublisher) -> None:
    names([])
    error = await outcome(publisher(options("https://hooks.test/in")))
    assert type(error) is BrokerUnavailable
    assert "cannot be looked up" in str(error)
    assert "not known" in str(error)


async def test_where_nobody_listens_all_that_waits_is_answered_at_once(publisher: MakePublisher) -> None:
    hooks = publisher(options(f"http://127.0.0.1:{free_port()}/in", connections=2))
    hooks.send(batch("abcdefghij" * 20))
    began = time.monotonic()
    assert set(errors(await answers(hooks, 200)).values()) == {BrokerUnavailable}
    assert time.monotonic() - began < 2


async def test_tls_is_spoken_to_the_name_of_the_url(publisher: MakePublisher, tls_receiver: WebhookReceiver) -> None:
    tls_receiver.forget()
    where = options(f"https://localhost:{tls_receiver.port}/in", tls_ca=str(tls_receiver.certificate))
    assert await outcome(publisher(where)) is None
    (received,) = tls_receiver.received()
    assert received.sni == "localhost"
    assert received.headers["host"] == f"localhost:{tls_receiver.port}"


async def test_tls_to_an_address_checks_the_address(publisher: MakePublisher, tls_receiver: WebhookReceiver) -> None:
    where = options(tls_receiver.url, tls_ca=str(tls_receiver.certificate))
    assert await outcome(publisher(where)) is None


async def test_a_certificate_for_another_name_is_away_and_nothing_is_sent(
    names: Callable[..., Names], publisher: MakePublisher, tls_receiver: WebhookReceiver
) -> None:
    tls_receiver.forget()
    names(["127.0.0.1"])
    url = f"https://hooks.test:{tls_receiver.port}/in"
    error = await outcome(publisher(options(url, allow=["hooks.test"], tls_ca=str(tls_receiver.certificate))))
    assert type(error) is BrokerUnavailable
    assert "certificate" in str(error).lower()
    assert tls_receiver.received() == []


async def test_a_certificate_that_nobody_vouches_for_is_away(
    publisher: MakePublisher, tls_receiver: WebhookReceiver
) -> None:
    tls_receiver.forget()
    error = await outcome(publisher(options(f"https://localhost:{tls_receiver.port}/in")))
    assert type(error) is BrokerUnavailable
    assert "certificate" in str(error).lower()
    assert tls_receiver.received() == []


async def test_https_to_a_server_without_tls_is_away(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    error = await outcome(publisher(options(f"https://127.0.0.1:{webhook_receiver.port}/in"), seconds=2))
    assert type(error) is BrokerUnavailable
    assert "may not speak TLS" in str(error)
    assert webhook_receiver.received() == []


async def test_both_active_keys_sign(publisher: MakePublisher, webhook_receiver: WebhookReceiver) -> None:
    before = int(time.time())
    assert await outcome(publisher(options(webhook_receiver.url, secrets=[SECRET, OLD_SECRET]))) is None
    (received,) = webhook_receiver.received()
    signatures = received.headers["webhook-signature"].split(" ")
    assert signatures == [expected_signature(KEY, received), expected_signature(OLD_KEY, received)]
    assert received.headers["webhook-id"] == "orders-a-1"
    assert before <= int(received.headers["webhook-timestamp"]) <= time.time()


async def test_a_copy_has_the_same_id(publisher: MakePublisher, webhook_receiver: WebhookReceiver) -> None:
    hooks = publisher(options(webhook_receiver.url))
    for _ in range(2):
        assert await outcome(hooks) is None
    assert len({received.headers["webhook-id"] for received in webhook_receiver.received()}) == 1


async def test_no_secret_is_told_or_logged(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "httpcore")  # at DEBUG it writes down the endpoint's own headers
    port = webhook_receiver.port
    where = options(f"http://ann:hunter2@127.0.0.1:{port}/T0KEN/in?sig=S1GNED", secrets=[SECRET, OLD_SECRET])
    hooks = publisher(where, seconds=0.5)
    echo = f"{where.authorization} /T0KEN/in?sig=S1GNED hunter2"
    told = []
    for rule in (
        {"status": 404, "body": echo},
        {"status": 302, "headers": {"location": f"http://127.0.0.1:{port}/T0KEN/in?sig=S1GNED"}},
        {"status": 500, "body": echo},
        {"hang": True},
        {"close": True},
        {"raw": f"{echo}\r\n\r\n"},
    ):
        webhook_receiver.behave(rule)
        told.append(await outcome(hooks))
    webhook_receiver.behave()
    assert await outcome(hooks) is None
    assert all(told)
    shown = caplog.text + repr(told) + "".join(repr(error.__cause__) for error in told if error) + repr(where)
    secrets = [SECRET, OLD_SECRET, SECRET[6:], "hunter2", "T0KEN", "S1GNED", str(where.authorization)[6:]]
    assert [secret for secret in secrets if secret in shown] == []
    assert webhook_receiver.received()[-1].headers["authorization"] == where.authorization


async def test_one_call_is_in_flight_per_key_and_many_keys_go_at_once(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"delay": 0.02})
    hooks = publisher(options(webhook_receiver.url, connections=8))
    messages = batch("abcdefghijklmnop" * 4)
    hooks.send(messages)
    assert set(errors(await answers(hooks, 64)).values()) == {None}
    received = webhook_receiver.received()
    assert {one.of_its_key for one in received} == {1}
    assert max(one.at_once for one in received) == 8
    assert webhook_receiver.connections() == 8, "no event has a connection of its own"
    for key in "abc":
        bodies = [one.body for one in received if message_of(one).key == key]
        assert bodies == [message.body for message in messages if message.key == key]


async def test_messages_without_a_key_go_at_once(publisher: MakePublisher, webhook_receiver: WebhookReceiver) -> None:
    webhook_receiver.behave({"delay": 0.1})
    hooks = publisher(options(webhook_receiver.url, connections=4))
    hooks.send([message._replace(key=None) for message in batch("aaaa")])
    await answers(hooks, 4)
    assert max(one.at_once for one in webhook_receiver.received()) == 4


async def test_what_waits_for_its_turn_has_time_as_long_as_others_are_answered(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"delay": 0.2})
    hooks = publisher(options(webhook_receiver.url, connections=2), seconds=0.5)
    hooks.send(batch("abcdefghij"))  # a second in all
    assert set(errors(await answers(hooks, 10)).values()) == {None}


def an_entry(**changes: Any) -> Entry:
    given: dict[str, Any] = {
        "position": 1,
        "event_id": "019a0000-0000-7000-8000-000000000001",
        "event_type": "OrderPlaced",
        "topic": "order-events",
        "aggregate_type": "order",
        "aggregate_id": "42 ü%",
        "data": '{"total":42}',
        "headers": '{"language":"Ελληνικά","Odd Name":"\\"x\\"","tenant_id":"7"}',
        "number": 7,
        "content_type": None,
        "idempotency_key": None,
        "available_at": None,
        "occurred_at": None,
        "created_at": datetime(2026, 5, 1, tzinfo=UTC),
    }
    return Entry(**given | changes)


@pytest.mark.parametrize("format", ["plain", "cloudevents", "cloudevents-structured"])
@pytest.mark.parametrize(
    "data",
    ['{"total":42}', bytes(range(256)), b"", b"x" * 262_144],
    ids=["JSON", "binary", "empty", "256 KiB"],
)
async def test_an_event_arrives_unchanged_in_every_format(
    format: str, data: str | bytes, publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    entry = an_entry(data=data, content_type=None if isinstance(data, str) else "application/octet-stream")
    sent = encode(entry, 1, format)
    assert await outcome(publisher(options(webhook_receiver.url)), sent) is None
    (received,) = webhook_receiver.received()
    message = message_of(received)
    assert (message.topic, message.key, dict(message.headers)) == (sent.topic, sent.key, dict(sent.headers))
    assert message.body == sent.body
    event = decode(Delivery(message))
    assert (event.type, event.number, event.aggregate) == ("OrderPlaced", 7, ("order", "42 ü%"))
    assert event.headers == {"language": "Ελληνικά", "Odd Name": '"x"', "tenant_id": "7"}


async def test_the_cloudevents_sdk_reads_a_binary_event(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    assert await outcome(publisher(options(webhook_receiver.url)), encode(an_entry(), 1, "cloudevents")) is None
    (received,) = webhook_receiver.received()
    event = from_binary(HTTPMessage(received.headers, received.body), JSONFormat())
    assert (event.get_id(), event.get_type()) == ("019a0000-0000-7000-8000-000000000001", "OrderPlaced")
    assert (event.get_subject(), event.get_data()) == ("42 ü%", {"total": 42})


async def test_the_cloudevents_sdk_reads_a_structured_event(
    publisher: MakePublisher, webhook_receiver: WebhookReceiver
) -> None:
    sent = encode(an_entry(), 1, "cloudevents-structured")
    assert await outcome(publisher(options(webhook_receiver.url)), sent) is None
    (received,) = webhook_receiver.received()
    event = from_structured(HTTPMessage(received.headers, received.body), JSONFormat())
    assert (event.get_subject(), event.get_data()) == ("42 ü%", {"total": 42})


async def test_once_closed_it_sends_nothing(publisher: MakePublisher, webhook_receiver: WebhookReceiver) -> None:
    hooks = publisher(options(webhook_receiver.url))
    await hooks.close()
    assert type(await outcome(hooks)) is BrokerUnavailable
    assert webhook_receiver.connections() == 0
