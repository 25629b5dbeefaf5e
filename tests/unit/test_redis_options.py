"""The URL and the options of Redis: read, and refused with their names where they are wrong or unsafe."""

from typing import Any

import pytest

from pillarbox.brokers.redis.entries import fields_of, message_of
from pillarbox.brokers.redis.options import Options, read_options
from pillarbox.core.message import Message
from pillarbox.errors import ConfigError


def test_a_url_says_where_the_server_is_and_who_we_are() -> None:
    read = read_options("redis://shop:hunt%40er@example.org:7000/3", {})
    assert read == Options("example.org", 7000, 3, "shop", "hunt@er")
    assert "hunt" not in repr(read)


def test_what_a_url_leaves_out_has_its_default() -> None:
    assert read_options("redis://", {}) == Options("localhost", 6379, 0)


def test_options_stand_in_the_table_or_in_the_url() -> None:
    in_table = read_options("redis://h", {"durable": True, "maxlen": 1000, "replicas": 1, "unsafe": True})
    assert in_table == read_options("redis://h?durable=true&maxlen=1000&replicas=1&unsafe=true", {})
    assert (in_table.durable, in_table.maxlen, in_table.replicas) == (True, 1000, 1)


def test_tls_checks_the_certificate_and_the_name() -> None:
    tls = read_options("rediss://h?ssl_ca_certs=ca.pem", {}).tls
    assert tls == {"ssl_ca_certs": "ca.pem", "ssl_cert_reqs": "required", "ssl_check_hostname": True}


@pytest.mark.parametrize("option", [{"ssl_cert_reqs": "none"}, {"ssl_check_hostname": False}])
def test_tls_without_checks_needs_the_word_unsafe(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"redis\.{next(iter(option))}.*redis\.unsafe = true"):
        read_options("rediss://h", option)
    assert read_options("rediss://h", {**option, "unsafe": True}).tls is not None


@pytest.mark.parametrize("url", ["redis://h", "redis://h?unsafe=false"])
def test_to_trim_what_nobody_has_read_needs_the_word_unsafe(url: str) -> None:
    with pytest.raises(ConfigError, match=r"redis\.maxlen: throws entries away .*redis\.unsafe = true"):
        read_options(url, {"maxlen": 1000})


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("redis://h?durabel=true", {}, r"no option redis\.durabel; the nearest known one is redis\.durable"),
        ("redis://h", {"retry_on_error": "x"}, r"there is no option redis\.retry_on_error; known are redis\.durable, "),
        ("redis://h?maxlen=5", {"maxlen": 6}, r"redis\.maxlen: the broker's URL and the table"),
        ("redis://h", {"maxlen": 0}, r"redis\.maxlen: expected a whole number, 1 or more"),
        ("redis://h", {"maxlen": "many"}, r"redis\.maxlen: expected a whole number"),
        ("redis://h", {"durable": "perhaps"}, r"redis\.durable: expected true or false"),
        ("redis://h", {"replicas": 1}, r"redis\.replicas: .* needs redis\.durable"),
        ("redis://h", {"ssl_ca_certs": "ca.pem"}, r"redis\.ssl_ca_certs: .* rediss://"),
        ("rediss://h", {"ssl_cert_reqs": "some"}, r"redis\.ssl_cert_reqs: expected required"),
        ("redis://h/orders", {}, "number of its database"),
        ("redis://h:port/", {}, "no port"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_options(url, options)


@pytest.mark.parametrize("key", [None, "", "7"])
def test_a_header_is_never_taken_for_the_key_or_the_body(key: str | None) -> None:
    headers = {"key": "a", "body": "b", "header:key": "c", "header:header:x": "d", "Body": "e", "headers": "f"}
    message = Message("orders", key, headers, b"\x00\xff")
    written = [part.encode() if isinstance(part, str) else part for part in fields_of(message)]
    assert message_of("orders", written) == message


def test_an_entry_of_somebody_else_is_read_as_far_as_possible() -> None:
    message = message_of("orders", [b"temperature", b"\xff7"])
    assert message == Message("orders", None, {"temperature": "\\xff7"}, b"")
