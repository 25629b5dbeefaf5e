"""What is special about NATS JetStream: each refusal in its own words, what passes through unchanged, CloudEvents."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import nats
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary, from_structured
from cloudevents.core.formats.json import JSONFormat

from pillarbox.brokers.nats import NatsOptions, NatsPublisher, NatsSubscriber
from pillarbox.brokers.nats.connection import Client, _close
from pillarbox.core.message import Message, encode
from pillarbox.errors import (
    BrokerUnavailable,
    ConfigError,
    PublishError,
    PublishRejected,
    PublishTimeout,
)
from pillarbox.ports import Outcome
from pillarbox.testing.contracts.publisher import answers, batch, bodies, same
from pillarbox.testing.contracts.subscriber import receive
from servers.nats import Nats, ask, delete_streams, make_stream
from tests.conftest import installed
from tests.integration.an_entry import an_entry, check_cloudevent, check_delivery
from tests.integration.nats_streams import raw_messages, stored_in

MakePublisher = Callable[..., NatsPublisher]


@pytest.fixture
async def url(nats_server: Nats) -> AsyncIterator[str]:
    """The URL of a server without streams."""
    yield nats_server.url
    await delete_streams(nats_server.url)


@pytest.fixture
async def publisher(url: str) -> AsyncIterator[MakePublisher]:
    """Opens publishers with options."""
    opened: list[NatsPublisher] = []

    def make(at: str = url, *, timeout: float = 5, **options: Any) -> NatsPublisher:
        given = NatsOptions.read("nats", at.removeprefix("nats:"), options)
        opened.append(NatsPublisher(given, publish_timeout=timedelta(seconds=timeout)))
        return opened[-1]

    yield make
    for one in opened:
        await one.close()


async def publish(publisher: NatsPublisher, *messages: Message) -> list[PublishError | None]:
    """Send messages and give what became of each, in order."""
    publisher.send(messages)
    found: dict[int, Outcome] = {outcome.ticket: outcome for outcome in await answers(publisher, len(messages))}
    return [found[message.ticket].error for message in messages]


async def refusal(publisher: NatsPublisher, message: Message) -> str:
    """Send a message that must be refused for good, and give the words."""
    (error,) = await publish(publisher, message)
    assert type(error) is PublishRejected
    return str(error)


async def test_a_subject_that_no_stream_takes_is_refused(publisher: MakePublisher) -> None:
    assert "no stream takes the subject 'orders'" in await refusal(publisher(), *batch("a"))


async def test_a_stream_that_was_deleted_is_refused_in_one_attempt(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders")
    ours = publisher()
    assert await publish(ours, *batch("a")) == [None]
    await ask(url, "STREAM.DELETE.TEST", {})
    assert "no responders" in await refusal(ours, *batch("a", first=2))


async def test_a_subject_that_moved_to_another_stream_is_published_there_the_next_time(
    url: str, publisher: MakePublisher
) -> None:
    await make_stream(url, "TEST", "orders")
    ours = publisher()
    await publish(ours, *batch("a"))
    await ask(url, "STREAM.DELETE.TEST", {})
    await make_stream(url, "OTHER", "orders")
    (error,) = await publish(ours, *batch("a", first=2))
    assert type(error) is PublishError
    assert "expected stream does not match" in str(error)
    assert await publish(ours, *batch("a", first=3)) == [None]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"max_msgs": 2}, "maximum messages exceeded"),
        ({"max_bytes": 400}, "maximum bytes exceeded"),
        ({"max_msgs_per_subject": 2, "discard_new_per_subject": True}, "maximum messages per subject exceeded"),
    ],
)
async def test_a_full_stream_refuses_in_its_own_words(
    url: str, publisher: MakePublisher, limit: dict[str, Any], words: str
) -> None:
    await make_stream(url, "TEST", "orders", discard="new", **limit)
    ours = publisher()
    outcomes = await publish(ours, *batch("abcdefgh"))
    refused = [error for error in outcomes if error is not None]
    assert refused
    assert all(type(error) is PublishRejected and words in str(error) for error in refused)
    assert len(await stored_in(url, "TEST")) == outcomes.count(None)


async def test_a_message_above_the_streams_own_limit_is_refused(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders", max_msg_size=1000)
    assert "message size exceeds maximum allowed" in await refusal(publisher(), *batch("a", padding=2000))


async def test_a_message_is_measured_with_its_headers(nats_server: Nats, url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders")
    ours = publisher()
    below = Message("orders", "a", {"id": "1"}, b"x" * (nats_server.max_payload - 300), 1)
    above = below._replace(headers={"id": "2", "long": "ü" * 200}, ticket=2)
    after = Message("orders", "b", {"id": "3"}, b"x", 3)
    first, second, third = await publish(ours, below, above, after)
    assert (first, third) == (None, None)
    assert type(second) is PublishRejected
    assert "max_payload" in str(second)


async def test_headers_above_what_jetstream_takes_are_refused(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders")
    message = Message("orders", "a", {"id": "1", "long": "x" * 70_000}, b"", 1)
    assert "header size exceeds maximum" in await refusal(publisher(), message)


async def test_a_sealed_stream_refuses(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders")
    ours = publisher()
    await publish(ours, *batch("a"))
    config = (await ask(url, "STREAM.INFO.TEST", {}))["config"]
    await ask(url, "STREAM.UPDATE.TEST", config | {"sealed": True})
    assert "sealed" in await refusal(ours, *batch("a", first=2))


@pytest.mark.parametrize("topic", ["", "two words", "orders.*", "orders.>", "a..b", ".a", "$JS.API.STREAM.DELETE.TEST"])
async def test_a_topic_that_is_no_subject_is_refused(url: str, publisher: MakePublisher, topic: str) -> None:
    await make_stream(url, "TEST", "orders")
    assert "is no subject" in await refusal(publisher(), Message(topic, "a", {"id": "1"}, b"{}", 1))
    assert (await ask(url, "STREAM.NAMES", {}))["streams"] == ["TEST"]


async def test_a_message_that_only_core_nats_took_is_not_published(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders")
    client = await nats.connect(url)
    await client.subscribe("silent")
    ours = publisher(stream="TEST", timeout=0.5)
    outcomes = await publish(ours, *batch("a", topic="silent"), *batch("b", first=2))
    await client.close()
    assert type(outcomes[0]) is PublishTimeout
    assert outcomes[1] is None


@pytest.mark.parametrize("words", [b"ok", b'{"stream":"OTHER", "seq":1}', b"[]", b'{"stream":"TEST"}'])
async def test_an_answer_of_somebody_else_is_no_acknowledgement(
    url: str, publisher: MakePublisher, words: bytes
) -> None:
    client = await nats.connect(url)

    async def meddle(message: Any) -> None:
        await message.respond(words)

    await client.subscribe("orders", cb=meddle)
    await client.flush()
    (error,) = await publish(publisher(stream="TEST"), *batch("a"))
    await client.close()
    assert type(error) is PublishError


async def test_a_copy_that_the_stream_knows_counts_as_published(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders")
    ours = publisher()
    assert await publish(ours, *batch("a")) == [None]
    assert await publish(ours, *batch("a")) == [None]
    assert len(await stored_in(url, "TEST")) == 1


async def test_a_stream_in_memory_is_refused_until_somebody_says_that_it_is_meant(
    url: str, publisher: MakePublisher
) -> None:
    await make_stream(url, "TEST", "orders", storage="memory")
    (error,) = await publish(publisher(), *batch("a"))
    assert type(error) is BrokerUnavailable
    assert "nats.unsafe" in str(error)
    assert await publish(publisher(unsafe=True), *batch("a")) == [None]


async def test_a_stream_that_was_made_anew_in_memory_is_refused_too(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders")
    ours = publisher()
    assert await publish(ours, *batch("a")) == [None]
    await ask(url, "STREAM.DELETE.TEST", {})
    await make_stream(url, "TEST", "orders", storage="memory")
    for first, words in ((2, "made anew"), (4, "in memory")):
        outcomes = await publish(ours, *batch("ab", first=first))
        assert [type(error) for error in outcomes] == [BrokerUnavailable] * 2
        assert words in str(outcomes[0])


async def test_what_is_known_of_streams_is_forgotten_with_the_connection(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders")
    ours = publisher()
    assert await publish(ours, *batch("a")) == [None]
    assert ours._streams.known == {"orders": "TEST"}
    ours._lost("the connection to NATS was lost")
    assert ours._streams.known == {}
    assert await publish(ours, *batch("a", first=2)) == [None]


async def test_a_stream_that_was_made_anew_in_a_file_takes_the_event_the_next_time(
    url: str, publisher: MakePublisher
) -> None:
    await make_stream(url, "TEST", "orders")
    ours = publisher()
    assert await publish(ours, *batch("a")) == [None]
    await ask(url, "STREAM.DELETE.TEST", {})
    await make_stream(url, "TEST", "orders")
    assert type((await publish(ours, *batch("a", first=2)))[0]) is BrokerUnavailable
    assert await publish(ours, *batch("a", first=2)) == [None]
    assert bodies(await stored_in(url, "TEST")) == [b"a2"]


async def test_a_stream_that_acknowledges_nothing_is_named(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders", no_ack=True)
    (error,) = await publish(publisher(), *batch("a"))
    assert type(error) is BrokerUnavailable
    assert "no_ack" in str(error)


async def test_a_stream_that_is_there_but_does_not_answer_is_an_outage(url: str, publisher: MakePublisher) -> None:
    """As in a cluster that elects a leader: nobody responds, and yet JetStream knows the stream."""
    await make_stream(url, "TEST", "orders", no_ack=True)
    client = await nats.connect(url)

    async def say_that_nobody_responds(message: Any) -> None:
        await client.publish(message.reply, headers={"Status": "503"})

    await client.subscribe("orders", cb=say_that_nobody_responds)
    await client.flush()
    (error,) = await publish(publisher(stream="TEST"), *batch("a"))
    await client.close()
    assert type(error) is BrokerUnavailable
    assert "does not answer" in str(error)


USERS = """
authorization {
  users = [
    { user: admin, password: secret }
    { user: shop, password: secret, permissions: { publish: ["$JS.API.>", "orders"], subscribe: "_INBOX.>" } }
  ]
}
"""


async def test_what_the_user_may_not_do_is_refused_and_a_wrong_password_is_an_outage(publisher: MakePublisher) -> None:
    with Nats(extra=USERS) as server:
        await make_stream(f"nats://admin:secret@127.0.0.1:{server.port}", "TEST", "orders", "mails")
        ours = publisher(f"nats://shop:secret@127.0.0.1:{server.port}")
        outcomes = await publish(ours, *batch("a", topic="mails"), *batch("b", first=2))
        assert type(outcomes[0]) is PublishRejected
        assert "permissions violation" in str(outcomes[0]).lower()
        assert outcomes[1] is None
        (error,) = await publish(publisher(f"nats://shop:wrong@127.0.0.1:{server.port}"), *batch("a"))
        assert type(error) is BrokerUnavailable
        # The server hangs up behind its words: where that arrives as a reset, they are lost with it.
        assert "authorization violation" in str(error).lower() or "reset by peer" in str(error)
        await ours.close()


async def test_closing_ends_a_connection_that_is_being_made_although_a_cancellation_is_lost(
    publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wait of the library may lose it that ends in the same moment."""
    connecting = asyncio.Event()

    async def connect(*_: object, **__: object) -> None:
        connecting.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(60)

    monkeypatch.setattr("nats.aio.client.Client.connect", connect)
    ours = publisher()
    ours.send(batch("a"))
    await connecting.wait()
    async with asyncio.timeout(10):
        await ours.close()


async def test_a_right_that_is_missing_for_one_subject_says_nothing_of_another_that_differs_in_case(
    publisher: MakePublisher,
) -> None:
    with Nats(extra=USERS) as server:
        await make_stream(f"nats://admin:secret@127.0.0.1:{server.port}", "TEST", "orders", "Orders")
        ours = publisher(f"nats://shop:secret@127.0.0.1:{server.port}")
        outcomes = await publish(ours, *batch("a"), *batch("a", first=2, topic="Orders"), *batch("b", first=3))
        assert [type(error) for error in outcomes] == [type(None), PublishRejected, type(None)]
        await ours.close()


async def test_a_password_may_be_percent_encoded(publisher: MakePublisher) -> None:
    with Nats(extra='authorization { user: "a@nn", password: "p@ss/w?rd" }') as server:
        ours = publisher(f"nats://a%40nn:p%40ss%2Fw%3Frd@127.0.0.1:{server.port}")
        assert "no stream takes the subject" in await refusal(ours, *batch("a"))
        await ours.close()


async def test_a_client_that_fails_before_it_asks_a_server_is_told_at_once_and_closed(
    publisher: MakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ImportError("no such library")

    monkeypatch.setattr("nats.aio.client.Client._setup_server_pool", fail)
    (error,) = await publish(publisher(), *batch("a"))
    assert type(error) is BrokerUnavailable
    assert "no such library" in str(error)


async def test_a_client_that_never_connected_is_closed_without_a_word() -> None:
    await _close(Client())


async def test_a_server_that_does_not_ask_for_tls_is_not_spoken_to_with_tls_demanded(url: str) -> None:
    options = NatsOptions.read("tls", url.removeprefix("nats:"), {})
    ours = NatsPublisher(options, publish_timeout=timedelta(seconds=5))
    (error,) = await publish(ours, *batch("a"))
    await ours.close()
    assert type(error) is BrokerUnavailable
    assert "does not ask for TLS" in str(error)


@pytest.fixture
def secured() -> Iterator[Nats]:
    """A server that asks for TLS, with a certificate of its own making in its directory."""
    server = installed(Nats)
    certificate, key = server.directory / "certificate.pem", server.directory / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    named = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(certificate), "-keyout", str(key)]
    subprocess.run([*made, *named], check=True, capture_output=True)
    key.chmod(0o644)
    server.extra = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
    with server:
        yield server


async def test_a_certificate_is_checked(secured: Nats) -> None:
    trusting = {"tls_ca": str(secured.directory / "certificate.pem")}
    for table, words in ((trusting, "no stream takes"), ({}, "certificate verify failed")):
        options = NatsOptions.read("tls", f"//127.0.0.1:{secured.port}", table)
        ours = NatsPublisher(options, publish_timeout=timedelta(seconds=5))
        (error,) = await publish(ours, *batch("a"))
        assert words in str(error)
        await ours.close()


async def test_jetstream_that_is_not_there_is_an_outage(publisher: MakePublisher) -> None:
    with Nats() as server:
        server.stop()
        text = server.configuration.read_text()
        server.configuration.write_text("\n".join(line for line in text.splitlines() if "jetstream" not in line))
        server.server.ready = lambda: True
        server.start()
        ours = publisher(server.url)
        (error,) = await publish(ours, *batch("a"))
        assert type(error) is BrokerUnavailable
        await ours.close()


async def test_a_server_that_is_not_there_is_told_at_once(publisher: MakePublisher) -> None:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    (error,) = await publish(publisher("nats://127.0.0.1:1", timeout=10), *batch("a"))
    assert type(error) is BrokerUnavailable
    assert loop.time() - begin < 2


ODD = [
    Message("orders", "a", {"id": "1", "content_type": "application/avro"}, bytes(range(256)), 1),
    Message("orders", "b", {"id": "2"}, b"", 2),
    Message("orders", "c", {"id": "3"}, b"x" * 262_144, 3),
    Message("orders", " leading\nand two lines ", {"id": "4", "said": " spaces ", "lines": "a\r\nb"}, b"{}", 4),
    Message("orders", None, {"id": "5", "aggregate_id": "7", "Größe": "groß", "two words": "yes"}, b"{}", 5),
    Message("orders", "d", {"id": "6", "Nats-Rollup": "all", "pillarbox-key": "mine", "nats-msg-id": "1"}, b"{}", 6),
    Message("orders", "ü", {"id": "7", "empty": "", "emoji": "👍", "quotes": '"\\'}, b"null", 7),
]


async def test_odd_messages_arrive_unchanged(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "orders", allow_rollup_hdrs=True)
    assert await publish(publisher(), *ODD) == [None] * len(ODD)
    assert all(same(one, other) for one, other in zip(await stored_in(url, "TEST"), ODD, strict=True))
    subscriber = NatsSubscriber(NatsOptions.read("nats", url[5:], {}), consumer="billing", topics=["orders"])
    received = await receive(subscriber, len(ODD))
    await subscriber.close()
    assert all(same(delivery.message, sent) for delivery, sent in zip(received, ODD, strict=True))


async def test_a_plain_message_has_the_headers_of_the_reference(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "order-events")
    await publish(publisher(), encode(an_entry(), 1))
    ((subject, headers, body),) = await raw_messages(url, "TEST")
    assert subject == "order-events"
    assert body == b'{"total": 42}'
    assert headers == {
        "id": an_entry().event_id,
        "type": "OrderPlaced",
        "aggregate_type": "order",
        "aggregate_id": "Größe 7",
        "content_type": "application/json",
        "shop": "Zürich",
        "Nats-Msg-Id": an_entry().event_id,
        "Nats-Expected-Stream": "TEST",
    }


async def test_the_cloudevents_sdk_reads_a_binary_event(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "order-events")
    await publish(publisher(), encode(an_entry(), 1, "cloudevents"))
    ((_, headers, body),) = await raw_messages(url, "TEST")
    check_cloudevent(from_binary(HTTPMessage(headers, body), JSONFormat()))
    assert headers["Nats-Msg-Id"] == an_entry().event_id


async def test_the_cloudevents_sdk_reads_a_structured_event(url: str, publisher: MakePublisher) -> None:
    await make_stream(url, "TEST", "order-events")
    await publish(publisher(), encode(an_entry(), 1, "cloudevents-structured"))
    ((_, headers, body),) = await raw_messages(url, "TEST")
    check_cloudevent(from_structured(HTTPMessage(headers, body), JSONFormat()))
    assert headers["Nats-Msg-Id"] == an_entry().event_id


@pytest.mark.parametrize("format", ["plain", "cloudevents", "cloudevents-structured"])
async def test_our_own_subscriber_reads_every_format(url: str, publisher: MakePublisher, format: str) -> None:
    await make_stream(url, "TEST", "order-events")
    await publish(publisher(), encode(an_entry(), 1, format))
    subscriber = NatsSubscriber(NatsOptions.read("nats", url[5:], {}), consumer="billing", topics=["order-events"])
    (delivery,) = await receive(subscriber, 1)
    await subscriber.close()
    check_delivery(delivery)


@pytest.mark.parametrize(
    ("rest", "table", "words"),
    [
        ("//localhost", {"tls_verify": False}, "nats.tls_verify"),
        ("//localhost?tls_verify=false", {}, "nats.tls_verify"),
        ("//localhost", {"strem": "A"}, "did you mean stream"),
        ("//localhost", {"lease": "soon"}, "nats.lease"),
        ("//localhost", {"unsafe": "perhaps"}, "nats.unsafe"),
        ("//", {}, "nats://host:4222"),
        ("//localhost/orders", {}, "nats://host:4222"),
        ("//localhost:port", {}, "no port"),
        ("//localhost:99999", {}, "no port"),
        ("//localhost?credentials=/nope", {}, "nats.credentials: /nope cannot be read: No such file"),
        ("//localhost", {"nkey": "/nope"}, "nats.nkey: /nope cannot be read"),
        ("//localhost", {"tls_ca": "/nope"}, "nats.tls_ca: /nope cannot be read"),
        ("//localhost", {"tls_cert": "/nope"}, "nats.tls_cert: /nope cannot be read"),
        ("//localhost", {"tls_key": "/nope"}, "nats.tls_key: /nope cannot be read"),
        ("//localhost", {"nkey": "SU" + "A" * 56}, "nats.nkey: what was given, which looks like the secret itself"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(rest: str, table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        NatsOptions.read("nats", rest, table)


def test_the_url_names_servers_and_options() -> None:
    options = NatsOptions.read("tls", "//ann:secret@one,two:4333?stream=ORDERS", {"stream": "MAILS", "unsafe": True})
    assert options.servers == ("tls://one:4222", "tls://two:4333")
    assert (options.user, options.password) == ("ann", "secret")
    assert "secret" not in repr(options)
    assert (options.stream, options.unsafe) == ("ORDERS", True)


def test_a_login_without_a_colon_is_a_token() -> None:
    options = NatsOptions.read("nats", "//s%2Fecret@one", {})
    assert (options.user, options.token) == (None, "s/ecret")


async def test_a_library_for_keys_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "seed").write_text("SU…")
    monkeypatch.setattr("pillarbox.brokers.nats.connection.find_spec", lambda name: None)
    options = NatsOptions.read("nats", "//localhost", {"nkey": str(tmp_path / "seed")})
    with pytest.raises(ConfigError, match=r"nats\.nkey: needs the library nkeys.*pip install nkeys"):
        NatsPublisher(options, publish_timeout=timedelta(seconds=1))


async def test_bodies_of_a_large_send_all_arrive(url: str, publisher: MakePublisher) -> None:
    """More than may be under way at once."""
    await make_stream(url, "TEST", "orders")
    messages = batch("abcdefghij" * 600)
    assert await publish(publisher(timeout=20), *messages) == [None] * 6000
    assert bodies(await stored_in(url, "TEST"))[:3] == [b"a1", b"b2", b"c3"]


def test_a_library_that_is_missing_is_named_with_the_line_that_installs_it() -> None:
    program = "import sys; sys.modules['nats'] = None; import pillarbox.brokers.nats"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "MissingExtra: a NATS broker needs the extra 'nats': pip install 'pillarbox[nats]'" in done.stderr
