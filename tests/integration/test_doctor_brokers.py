"""`pillarbox doctor` and brokers: each fault is planted in a real server, and found."""

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from nats import errors as nats_errors

from pillarbox import Settings
from pillarbox.admin.doctor import Finding, examine
from pillarbox.facts import NatsFacts, RedisFacts
from pillarbox.settings import RetentionSettings
from pillarbox.wiring import open_doctor
from servers.kafka import Kafka
from servers.nats import Nats, delete_streams, make_stream
from servers.process import free_port
from servers.rabbitmq import RabbitMQ
from servers.redis import Redis
from servers.webhook_receiver import WebhookReceiver
from tests.conftest import installed
from tests.integration.kafka_topics import Topics
from tests.integration.postgres_world import soon
from tests.integration.webhook_world import SECRET

SECOND = 1_000_000_000


async def troubles(broker: str, *topics: str, **options: Any) -> list[Finding]:
    """Ask a broker; consumers that read from it forget nothing."""
    settings = Settings(broker=broker, retention=RetentionSettings(inbox=None), options=options)
    found = [one for one in examine(await open_doctor(settings).gather(topics)) if one.severity != "fine"]
    return [one for one in found if one.check != "database"]  # there is none


@pytest.fixture
def own(own_redis: Callable[..., Redis]) -> Redis:
    return own_redis("redis")


async def test_a_redis_that_is_well_yields_nothing(redis: Redis) -> None:
    assert await troubles(redis.url(), "orders") == []


async def test_the_versions_of_brokers_are_known(redis: Redis, nats: str) -> None:
    for url, oldest in ((redis.url(), (7, 0)), (nats, (2, 11))):
        facts = (await open_doctor(Settings(broker=url)).gather(["orders"])).broker
        assert isinstance(facts, RedisFacts | NatsFacts)
        assert facts.version is not None
        assert facts.version >= oldest


async def test_a_redis_without_an_append_only_file_is_found(own: Redis) -> None:
    own.configure(appendonly="no")
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == ("problem", "persistence")
    assert finding.line.startswith("Redis keeps no append-only file: ")
    assert finding.commands == ("redis-cli CONFIG SET appendonly yes",)
    assert "redis.durable" not in finding.line
    (finding,) = await troubles(f"{own.url()}?durable=true", "orders")
    assert finding.line.endswith(
        "; redis.durable does not help: this server has no WAITAOF, so the relay waits for nothing"
    )


@pytest.mark.parametrize(("written", "severity"), [("everysec", "note"), ("no", "problem")])
async def test_a_redis_that_writes_late_is_found_unless_the_relay_waits(
    own_redis: Callable[..., Redis], written: str, severity: str
) -> None:
    own = own_redis("valkey", appendfsync=written)
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == (severity, "persistence")
    assert f"(appendfsync {written})" in finding.line
    assert finding.line.endswith(", or let the relay wait for the disk: redis.durable = true")
    assert await troubles(f"{own.url()}?durable=true", "orders") == []


@pytest.mark.parametrize(("written", "severity"), [("everysec", "note"), ("no", "problem")])
async def test_a_redis_that_writes_late_and_cannot_be_waited_for_is_found(
    own: Redis, written: str, severity: str
) -> None:
    own.configure(appendfsync=written)
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == (severity, "persistence")
    assert ", or run one that has WAITAOF" in finding.line
    (finding,) = await troubles(f"{own.url()}?durable=true", "orders")
    assert (finding.severity, finding.check) == ("problem", "persistence")
    assert f"(appendfsync {written})" in finding.line
    assert finding.line.endswith(": without it redis.durable waits for nothing")
    own.configure(appendfsync="always")
    assert await troubles(f"{own.url()}?durable=true", "orders") == []


@pytest.mark.parametrize(("kind", "waits"), [("redis", False), ("valkey", True)])
async def test_whether_a_redis_can_be_waited_for_is_known_to_those_who_may_not_ask(
    own_redis: Callable[..., Redis], kind: str, waits: bool
) -> None:
    server = own_redis(kind, appendfsync="everysec")
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">secret", "~*", "+@all", "-command")
    found = await troubles(f"{server.url(login='shop:secret@')}?durable=true", "orders")
    assert [finding.check for finding in found] == ([] if waits else ["persistence"])


async def test_a_redis_that_may_evict_streams_is_found(own: Redis) -> None:
    own.configure(maxmemory_policy="allkeys-lru")
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == ("note", "eviction")
    own.configure(maxmemory="100mb")
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == ("problem", "eviction")
    own.configure(maxmemory_policy="noeviction")
    assert await troubles(own.url(), "orders") == []


async def test_a_redis_that_is_a_replica_is_found(own: Redis) -> None:
    with own.client() as client:
        client.replicaof("127.0.0.1", str(free_port()))
    (finding,) = await troubles(own.url(), "orders")
    assert (finding.severity, finding.check) == ("problem", "role")
    assert finding.line.startswith("this Redis is a replica: it takes no event (READONLY), ")
    with own.client() as client:
        client.replicaof("NO", "ONE")
    assert await troubles(own.url(), "orders") == []


async def test_a_redis_with_replicas_for_which_nobody_waits_is_noted(own_redis: Callable[..., Redis]) -> None:
    primary, replica = own_redis("valkey"), own_redis("valkey")
    waiting = f"{primary.url()}?durable=true&replicas=1"
    (finding,) = await troubles(waiting, "orders")
    assert (finding.severity, finding.check) == ("problem", "replicas")
    assert "waits for 1 replica to have each event on disk (redis.replicas), and there are 0: nothing" in finding.line
    with replica.client() as client, primary.client() as there:
        client.replicaof("127.0.0.1", str(primary.port))
        await soon(lambda: bool(there.role()[2]), "the replica is connected")
    (finding,) = await troubles(primary.url(), "orders")
    assert (finding.severity, finding.check) == ("note", "replicas")
    assert finding.line.startswith("Redis is copied to 1 replica without anybody waiting for it: ")
    assert await troubles(waiting, "orders") == []


async def test_a_redis_whose_replicas_cannot_be_waited_for_is_found(own: Redis) -> None:
    (finding,) = await troubles(f"{own.url()}?durable=true&replicas=1", "orders")
    assert (finding.severity, finding.check) == ("problem", "replicas")
    assert "has no WAITAOF to wait with" in finding.line


async def test_streams_that_are_trimmed_are_noted(redis: Redis) -> None:
    (finding,) = await troubles(f"{redis.url()}?maxlen=10000&unsafe=true", "orders")
    assert (finding.severity, finding.check) == ("note", "trimming")
    assert finding.line.startswith("the relay trims streams to a length of 10,000 (redis.maxlen), ")


async def test_a_redis_that_does_not_tell_is_noted(redis: Redis) -> None:
    user = f"u{uuid.uuid4().hex}"
    with redis.client() as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">secret", "~*", "+@all", "-config")
        try:
            (finding,) = await troubles(redis.url(login=f"{user}:secret@"), "orders")
        finally:
            client.execute_command("ACL", "DELUSER", user)
    assert (finding.severity, finding.check) == ("note", "persistence")
    assert "CONFIG GET is refused" in finding.line


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for Kafka no longer than for others: its client tries again until nobody waits any more."""
    for module in ("keeping", "looking"):
        monkeypatch.setattr(f"pillarbox.brokers.kafka.{module}.PATIENCE", 2.0)


def check_away(finding: Finding, words: str) -> None:
    assert (finding.severity, finding.check) == ("problem", "broker")
    assert finding.line.startswith("the broker cannot be asked: ")
    assert words in finding.line
    assert "hunter2" not in finding.line


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://me:hunter2@127.0.0.1:{port}", "Connect call failed"),
        ("amqp://me:hunter2@127.0.0.1:{port}", "Connect call failed"),
        ("nats://me:hunter2@127.0.0.1:{port}", "Connect call failed"),
        ("kafka://me:hunter2@127.0.0.1:{port}?security.protocol=SASL_PLAINTEXT", "Connection refused"),
        ("https://me:hunter2@127.0.0.1:{port}/hooks/hunter2", "https://127.0.0.1"),
    ],
)
async def test_a_broker_that_is_away_is_found(url: str, words: str) -> None:
    (finding,) = await troubles(url.format(port=free_port()), "orders", webhooks=HOOKS)
    check_away(finding, words)


@pytest.mark.usefixtures("hasty")
async def test_a_kafka_that_is_away_is_found_without_a_topic() -> None:
    finding, topics = await troubles(f"kafka://127.0.0.1:{free_port()}")
    check_away(finding, "Connection refused")
    assert topics.line.startswith("no topic is known here")


async def test_a_redis_that_does_not_let_us_in_is_found(redis: Redis) -> None:
    (finding,) = await troubles(redis.url(login="nobody:hunter2@"), "orders")
    check_away(finding, "does not let us in: invalid username-password pair")


async def test_a_rabbitmq_that_does_not_let_us_in_is_found(rabbitmq: RabbitMQ, vhost: str) -> None:
    (finding,) = await troubles(managed(rabbitmq, vhost, password="hunter2"), "orders")
    check_away(finding, "does not let us in: ")
    (finding,) = await troubles(managed(rabbitmq, "nowhere"), "orders")
    check_away(finding, "there is no such virtual host")


@pytest.fixture
def own_nats() -> Iterator[Callable[..., Nats]]:
    """Starts a NATS of which something is configured."""
    with ExitStack() as servers:
        yield lambda **how: servers.enter_context(installed(lambda: Nats(**how)))


async def test_a_nats_that_does_not_let_us_in_is_found(own_nats: Callable[..., Nats]) -> None:
    server = own_nats(extra="authorization { user: shop, password: right }")
    url = server.url.replace("//", "//shop:hunter2@")
    (finding,) = await troubles(url, "orders")
    while "reset by peer" in finding.line:  # the server hangs up behind its words, and may overtake them
        (finding,) = await troubles(url, "orders")
    check_away(finding, "Authorization Violation")


async def test_a_kafka_that_does_not_let_us_in_is_found(kafka: Kafka) -> None:
    (finding,) = await troubles(kafka.sasl("shop", "hunter2"), "orders")
    check_away(finding, "mend user and password there, or in the broker's URL")


HOOKS = {"secrets": [SECRET], "allow": ["127.0.0.1", "localhost"]}


@pytest.fixture(scope="module")
def tls_receiver() -> Iterator[WebhookReceiver]:
    """An endpoint whose certificate runs out some day."""
    with installed(lambda: WebhookReceiver("localhost", "127.0.0.1", days=4)) as server:
        yield server


async def test_an_endpoint_that_is_well_yields_nothing_and_receives_nothing(
    webhook_receiver: WebhookReceiver, tls_receiver: WebhookReceiver
) -> None:
    assert await troubles(webhook_receiver.url, "orders", webhooks=HOOKS) == []
    hooks = {**HOOKS, "tls_ca": str(tls_receiver.certificate)}
    assert await troubles(tls_receiver.url, "orders", webhooks=hooks) == []
    assert webhook_receiver.received() + tls_receiver.received() == []


async def test_a_certificate_that_runs_out_is_noted(
    tls_receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pillarbox.admin.doctor.webhook.SOON", timedelta(days=5))
    hooks = {**HOOKS, "tls_ca": str(tls_receiver.certificate)}
    (finding,) = await troubles(tls_receiver.url, "orders", webhooks=hooks)
    assert (finding.severity, finding.check) == ("note", "certificate")
    assert finding.line.startswith(f"the certificate of https://127.0.0.1:{tls_receiver.port} runs out at ")


async def test_an_endpoint_that_is_not_what_the_settings_say_is_found(
    webhook_receiver: WebhookReceiver, tls_receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finding,) = await troubles(tls_receiver.url, "orders", webhooks=HOOKS)
    check_away(finding, "certificate verify failed")
    nearby = webhook_receiver.url.replace("127.0.0.1", "localhost")
    (finding,) = await troubles(nearby, "orders", webhooks={**HOOKS, "allow": [], "unsafe": True})
    check_away(finding, "localhost is the loopback address")
    monkeypatch.setattr("pillarbox.brokers.webhook.client.REACHING", 1.0)
    (finding,) = await troubles(webhook_receiver.url.replace("http:", "https:"), "orders", webhooks=HOOKS)
    check_away(finding, "may not speak TLS")


@pytest.fixture
async def nats(nats_server: Nats) -> AsyncIterator[str]:
    yield nats_server.url
    await delete_streams(nats_server.url)


async def test_streams_that_are_well_yield_nothing(nats: str) -> None:
    await make_stream(nats, "ORDERS", "orders", "orders.*", max_msgs=1000, discard="new")
    await make_stream(nats, "MAILS", "mails")
    assert await troubles(nats, "orders", "orders.late", "mails") == []


async def test_a_subject_that_no_stream_takes_is_found(nats: str) -> None:
    await make_stream(nats, "ORDERS", "orders")
    (finding,) = await troubles(nats, "orders", "ordres")
    assert (finding.severity, finding.check) == ("problem", "topics")
    assert finding.line.startswith("no stream of NATS takes the subject ordres: every event for it is dead in one att")


async def test_a_stream_that_drops_its_oldest_messages_is_found_once(nats: str) -> None:
    await make_stream(nats, "ORDERS", "orders", "mails", max_bytes=1_000_000)
    (finding,) = await troubles(nats, "orders", "mails")
    assert (finding.severity, finding.check) == ("problem", "discard")
    assert finding.commands == ("nats stream edit ORDERS --discard new",)


async def test_a_duplicate_window_that_a_takeover_outlasts_is_noted(nats: str) -> None:
    await make_stream(nats, "ORDERS", "orders", duplicate_window=10 * SECOND)
    (finding,) = await troubles(nats, "orders")
    assert (finding.severity, finding.check) == ("note", "duplicate window")
    assert finding.line.startswith("the stream ORDERS recognises copies for 10 s only (duplicate_window), ")
    assert " 25 s later " in finding.line


async def test_a_stream_that_takes_less_than_an_outbox_does_is_noted(nats: str, own_nats: Callable[..., Nats]) -> None:
    await make_stream(nats, "ORDERS", "orders", max_msg_size=1000)
    (finding,) = await troubles(nats, "orders")
    assert (finding.severity, finding.check) == ("note", "size of messages")
    assert finding.line.startswith("the stream ORDERS takes messages of at most 1.0 kB (its max_msg_size, or the")
    small = own_nats(max_payload=100_000)
    await make_stream(small.url, "ORDERS", "orders")
    (finding,) = await troubles(small.url, "orders")
    assert finding.line.startswith("the stream ORDERS takes messages of at most 100 kB ")


@pytest.fixture
def nats_cluster(own_nats: Callable[..., Nats]) -> str:
    """The URL of one of three servers, with a stream on all of them, SAFE, and one on one of them, ALONE."""
    routes = [free_port() for _ in range(3)]
    others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    own = "server_name: n{port}\ncluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{others}] }}"
    first, *_ = [own_nats(extra=own.format(port=port, others=others)) for port in routes]

    def made(name: str, replicas: int) -> bool:
        stream = {"name": name, "subjects": [name.lower()], "storage": "file", "num_replicas": replicas}
        try:
            first.ask(f"STREAM.CREATE.{name}", stream)
        except (RuntimeError, nats_errors.Error):  # there is no leader yet
            return False
        return True

    deadline = time.monotonic() + 60
    for name, replicas in (("SAFE", 3), ("ALONE", 1)):
        while not made(name, replicas):
            assert time.monotonic() < deadline, f"{name} cannot be made"
            time.sleep(0.1)
    return first.url


@pytest.mark.soak
async def test_a_stream_with_one_replica_in_a_cluster_is_found(nats_cluster: str) -> None:
    (finding,) = await troubles(nats_cluster, "safe", "alone")
    assert (finding.severity, finding.check) == ("problem", "replicas")
    assert finding.line.startswith("the stream ALONE has no second replica, though there is a cluster: ")


async def test_a_stream_in_memory_or_without_acknowledgement_is_found(nats: str) -> None:
    await make_stream(nats, "FLEETING", "orders", storage="memory")
    await make_stream(nats, "SILENT", "mails", no_ack=True)
    memory, silent = await troubles(nats, "orders", "mails")
    assert memory.line.startswith("the stream FLEETING keeps its messages in memory: ")
    assert silent.line.startswith("the stream SILENT acknowledges nothing (no_ack): ")


def managed(rabbitmq: RabbitMQ, vhost: str, exchange: str = "", **login: str) -> str:
    """Give the URL of a virtual host, with where the management API is."""
    where = f"management=http://127.0.0.1:{rabbitmq.management}"
    return f"{rabbitmq.url(vhost, **login)}?{where}{f'&exchange={exchange}' if exchange else ''}"  # type: ignore[arg-type]


async def test_a_topic_without_a_queue_is_found(rabbitmq: RabbitMQ, vhost: str) -> None:
    broker = managed(rabbitmq, vhost)
    (finding,) = await troubles(broker, "orders")
    assert (finding.severity, finding.check) == ("problem", "queues")
    assert finding.line.startswith("RabbitMQ has no queue orders, and without an exchange a topic is the queue")
    rabbitmq.declare_queue(vhost, "orders")
    assert await troubles(broker, "orders") == []


async def test_an_exchange_that_is_not_there_is_found(rabbitmq: RabbitMQ, vhost: str) -> None:
    (finding,) = await troubles(managed(rabbitmq, vhost, "shop"), "orders")
    assert (finding.severity, finding.check) == ("problem", "queues")
    assert finding.line.startswith("RabbitMQ has no exchange shop: ")


async def test_an_exchange_without_a_queue_for_a_topic_is_found(rabbitmq: RabbitMQ, vhost: str) -> None:
    broker = managed(rabbitmq, vhost, "shop")
    rabbitmq.declare_exchange(vhost, "shop")
    rabbitmq.declare_queue(vhost, "audit")
    rabbitmq.bind(vhost, "shop", "audit", "orders.#")
    (finding,) = await troubles(broker, "orders", "orders.late", "mails")
    assert (finding.severity, finding.check) == ("problem", "queues")
    assert finding.line.startswith("no queue is bound to the exchange shop for the topic mails: ")
    rabbitmq.bind(vhost, "shop", "audit", "mails")
    assert await troubles(broker, "orders", "orders.late", "mails") == []


async def test_a_policy_that_applies_to_nothing_is_noted(rabbitmq: RabbitMQ, vhost: str) -> None:
    broker = managed(rabbitmq, vhost)
    rabbitmq.declare_queue(vhost, "orders")
    rabbitmq.ask(
        "PUT",
        f"policies/{vhost}/full",
        {"pattern": "^ordres$", "definition": {"overflow": "reject-publish", "max-length": 9}, "apply-to": "queues"},
    )
    (finding,) = await troubles(broker, "orders")
    assert (finding.severity, finding.check) == ("note", "policies")
    assert finding.line.startswith("the policy full applies to nothing: no queue or exchange is called ^ordres$, ")
    rabbitmq.ask(
        "PUT",
        f"policies/{vhost}/full",
        {"pattern": "^orders$", "definition": {"overflow": "reject-publish", "max-length": 9}, "apply-to": "queues"},
    )
    assert await troubles(broker, "orders") == []


@pytest.mark.parametrize(
    ("settings", "severity", "words"),
    [
        ({"max-length": 9}, "problem", "the queue orders is bounded, and when it is full it drops its oldest messages"),
        ({"message-ttl": 60_000}, "problem", "the queue orders drops what has waited for 1 min (message-ttl), "),
        ({"delivery-limit": 3}, "note", "the queue orders throws a message away when it has come 3 times "),
    ],
)
@pytest.mark.parametrize("said_by", ["the queue", "a policy"])
async def test_a_queue_that_throws_events_away_is_found(
    rabbitmq: RabbitMQ, vhost: str, said_by: str, settings: dict[str, int], severity: str, words: str
) -> None:
    if said_by == "a policy":
        definition = {"pattern": ".*", "definition": settings, "apply-to": "queues"}
        rabbitmq.ask("PUT", f"policies/{vhost}/limits", definition)
        rabbitmq.declare_queue(vhost, "orders", **{"x-queue-type": "quorum" if severity == "note" else "classic"})
    else:
        kind = "quorum" if severity == "note" else "classic"
        arguments = {f"x-{name}": value for name, value in settings.items()}
        rabbitmq.declare_queue(vhost, "orders", **{"x-queue-type": kind}, **arguments)
    (finding,) = await troubles(managed(rabbitmq, vhost), "orders")
    assert (finding.severity, finding.check, finding.line.startswith(words)) == (severity, "queue limits", True)


async def test_what_a_queue_throws_away_may_go_to_dead_letters(rabbitmq: RabbitMQ, vhost: str) -> None:
    limits = {"x-max-length": 9, "x-message-ttl": 1000, "x-delivery-limit": 3, "x-dead-letter-exchange": "dead"}
    rabbitmq.declare_queue(vhost, "orders", **limits)
    assert await troubles(managed(rabbitmq, vhost), "orders") == []


async def test_the_password_goes_to_no_other_place(
    rabbitmq: RabbitMQ, vhost: str, webhook_receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    elsewhere = webhook_receiver.url
    webhook_receiver.behave(
        {"times": 1, "status": 302, "store": True, "headers": {"location": f"{elsewhere}/elsewhere"}}
    )
    (finding,) = await troubles(f"{rabbitmq.url(vhost)}?management={elsewhere}", "orders")
    assert finding.line.startswith("RabbitMQ does not say what is bound to what, ")
    assert "it answers 302" in finding.line
    assert [received.request for received in webhook_receiver.received()] == ["GET /hook/api/overview HTTP/1.1"]
    monkeypatch.setenv("http_proxy", elsewhere)
    assert await troubles(managed(rabbitmq, vhost), "orders") == []


async def test_a_queue_that_is_gone_with_a_restart_is_found(rabbitmq: RabbitMQ, vhost: str) -> None:
    rabbitmq.ask("PUT", f"queues/{vhost}/orders", {"durable": False})
    (finding,) = await troubles(managed(rabbitmq, vhost), "orders")
    assert (finding.severity, finding.check) == ("problem", "queue limits")
    assert finding.line.startswith("the queue orders is not durable: ")


async def test_a_management_api_that_does_not_tell_is_noted_unless_it_is_not_asked(
    rabbitmq: RabbitMQ, vhost: str
) -> None:
    rabbitmq.declare_queue(vhost, "orders")
    (nobody,) = await troubles(f"{rabbitmq.url(vhost)}?management=http://127.0.0.1:{free_port()}", "orders")
    assert (nobody.severity, nobody.check) == ("note", "queues")
    assert "Connection refused" in nobody.line
    user = f"user-{uuid.uuid4().hex}"
    rabbitmq.create_user(user, vhost, configure=".*", write=".*", read=".*")
    (refused,) = await troubles(managed(rabbitmq, vhost, user=user, password=user), "orders")
    assert f"it refuses the user {user} (401), who needs the tag management" in refused.line
    rabbitmq.ask("PUT", f"users/{user}", {"password": user, "tags": "management"})
    assert await troubles(managed(rabbitmq, vhost, user=user, password=user), "orders") == []
    assert await troubles(f"{rabbitmq.url(vhost)}?management=none", "orders") == []


async def test_what_is_wrong_with_topics_of_kafka_is_found(kafka: Kafka) -> None:
    topics = Topics(kafka)
    topics.make("plain")
    topics.make("stuck", config={"min.insync.replicas": "2"})
    topics.make("unclean", config={"unclean.leader.election.enable": "true"})
    topics.make("small", config={"max.message.bytes": "2000"})

    async def found(name: str) -> list[tuple[str, str]]:
        return [(one.severity, one.check) for one in await troubles(kafka.url, topics.full(name))]

    alone = ("note", "replicas")  # the cluster has one broker
    assert await found("plain") == [alone]
    assert await found("stuck") == [("problem", "replicas in sync"), alone]
    assert await found("unclean") == [("problem", "unclean elections"), alone]
    assert await found("small") == [alone, ("note", "size of messages")]
    assert await found("nowhere") == [("problem", "topics")]


async def test_a_name_that_no_topic_of_kafka_can_have_is_found_and_hides_no_other_row(kafka: Kafka) -> None:
    topics = Topics(kafka)
    topics.make("unclean", config={"unclean.leader.election.enable": "true"})
    impossible, unclean, _ = await troubles(kafka.url, "a b", topics.full("unclean"))
    assert (impossible.severity, impossible.check) == ("problem", "topics")
    assert impossible.line.startswith(
        "no topic of Kafka can be called 'a b': every event for it is dead in one attempt"
    )
    assert unclean.check == "unclean elections"
