"""What a RabbitMQ's URL and settings say, and what is refused before anything is opened."""

import pytest

from pillarbox.brokers.rabbitmq import Address
from pillarbox.brokers.rabbitmq.topology import arguments, queue_of
from pillarbox.errors import ConfigError

URL = "rabbitmq://shop:secret@host/%2F"


def test_a_url_names_host_exchange_and_virtual_host() -> None:
    address = Address.parse("rabbitmq://shop:secret@host:5673/sales?exchange=events")
    assert (address.place, address.exchange) == ("host:5673", "events")
    assert address.url == "amqp://shop:secret@host:5673/sales?heartbeat=10&name=pillarbox"


@pytest.mark.parametrize(
    ("scheme", "place"), [("rabbitmq", "host:5672"), ("amqp", "host:5672"), ("amqps", "host:5671")]
)
def test_each_scheme_has_its_port(scheme: str, place: str) -> None:
    assert Address.parse(f"{scheme}://host").place == place


def test_only_amqps_speaks_tls() -> None:
    address = Address.parse("amqps://host/?cafile=/etc/ca.pem")
    assert address.url == "amqps://host:5671/?cafile=%2Fetc%2Fca.pem&heartbeat=10&name=pillarbox"


def test_the_url_wins_over_the_settings() -> None:
    address = Address.parse(f"{URL}?exchange=mine", {"exchange": "theirs", "prefetch": 7})
    assert (address.exchange, address.prefetch) == ("mine", 7)


@pytest.mark.parametrize("name", ["mandatory", "persistent", "verify"])
def test_an_unsafe_setting_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"rabbitmq.{name}: false is unsafe"):
        Address.parse(URL, {name: False})
    with pytest.raises(ConfigError, match=f"rabbitmq.{name}: false is unsafe"):
        Address.parse(f"{URL}?{name}=false")


def test_whoever_says_unsafe_may_have_it() -> None:
    address = Address.parse(f"{URL}?persistent=false", {"unsafe": True})
    assert (address.persistent, address.mandatory) == (False, True)


def test_confirmations_cannot_be_given_up() -> None:
    with pytest.raises(ConfigError, match=r"rabbitmq\.confirms: cannot be set"):
        Address.parse(f"{URL}?confirms=false&unsafe=true")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{URL}?exchang=x", "did you mean exchange"),
        (f"{URL}?prefetch=0", "rabbitmq.prefetch: is no whole number from 1 to 2000"),
        (f"{URL}?heartbeat=soon", "rabbitmq.heartbeat: is no whole number"),
        (f"{URL}?unsafe=maybe", "rabbitmq.unsafe: is neither true nor false"),
        (f"{URL}?exchange={'x' * 256}", "rabbitmq.exchange: the name is longer than 255 bytes"),
        ("rabbitmq://shop:secret@host:99999/", "the port"),
        ("rabbitmq:///vhost", "write rabbitmq://user:password@host"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refusal:
        Address.parse(text)
    assert "secret" not in str(refusal.value)


def test_a_consumer_has_a_queue_for_each_topic() -> None:
    assert queue_of(Address.parse(f"{URL}?exchange=x"), "billing", "orders") == "billing.orders"


def test_without_an_exchange_the_queue_is_the_topics_own() -> None:
    assert queue_of(Address.parse(URL), "billing", "orders") == "orders"


def test_a_queue_needs_a_name_that_is_short_enough() -> None:
    with pytest.raises(ConfigError, match="longer than 255 bytes"):
        queue_of(Address.parse(URL), "billing", "ü" * 128)


def test_a_server_that_would_throw_messages_away_is_told_not_to() -> None:
    assert "x-delivery-limit" not in arguments("3.13.7")
    assert arguments("4.1.0")["x-delivery-limit"] == -1


@pytest.mark.parametrize(
    ("url", "management"),
    [
        ("amqp://shop:secret@host:5673/sales", "http://host:15672"),
        ("amqps://shop:secret@host", "https://host:15671"),
        ("amqp://[::1]", "http://[::1]:15672"),
        ("amqp://host?management=https://other:443/rabbit/", "https://other:443/rabbit"),
        ("amqps://host?management=http://other&unsafe=true", "http://other"),
        ("amqp://host?management=none", ""),
    ],
)
def test_the_management_api_is_beside_the_broker_unless_it_is_said_otherwise(url: str, management: str) -> None:
    assert Address.parse(url).management == management


@pytest.mark.parametrize(
    ("management", "words"),
    [
        ("host:15672", "write http://host:15672 or https://"),
        ("ftp://host", "write http://host:15672 or https://"),
        ("http://shop:secret@host", "without a user"),
        ("http://host", "http is unsafe: the password that amqps:// hides"),
        ("http://[::1", "write http://host:15672 or https://"),
        ("https://host:99999", "write http://host:15672 or https://"),
        ("https://host:0", "write http://host:15672 or https://"),
        ("https://ho st", "write http://host:15672 or https://"),
        ("https://host/a b", "write http://host:15672 or https://"),
        ("https://host/\r\nX-Odd: y", "write http://host:15672 or https://"),
    ],
)
def test_a_management_api_that_would_leak_the_password_is_refused(management: str, words: str) -> None:
    with pytest.raises(ConfigError, match=rf"^rabbitmq\.management: .*{words}") as refused:
        Address.parse("amqps://shop:secret@host", {"management": management})
    assert "secret" not in str(refused.value)
