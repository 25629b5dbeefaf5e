"""What can be set for webhooks, and what is refused before anything is opened."""

import base64
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from pillarbox.brokers.webhook import WebhookOptions
from pillarbox.dbapi import Inbox
from pillarbox.errors import ConfigError
from pillarbox.settings import Settings
from pillarbox.wiring import Consumer, Relay
from tests.integration.webhook_world import OLD_SECRET, SECRET

URL = "https://ann:hunter2@hooks.example:8443/services/T0KEN?sig=S1GN"


def read(url: str = "https://hooks.example/in", **table: Any) -> WebhookOptions:
    return WebhookOptions.read(url, {"secrets": [SECRET], **table})


def test_the_url_is_taken_apart() -> None:
    options = read(URL)
    assert (options.host, options.port, options.target) == ("hooks.example", 8443, "/services/T0KEN?sig=S1GN")
    assert options.authorization == "Basic " + base64.b64encode(b"ann:hunter2").decode()
    assert (options.authority, options.origin) == ("hooks.example:8443", "https://hooks.example:8443")


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("https://Hooks.Example./in", "hooks.example"),
        ("https://hooks.example:443", "hooks.example"),
        ("https://[2606:2800:220:1::1]/in", "[2606:2800:220:1::1]"),
    ],
)
def test_the_host_is_written_in_one_way(url: str, authority: str) -> None:
    assert read(url).authority == authority


def test_nothing_that_is_shown_holds_a_secret() -> None:
    options = read(URL)
    shown = repr(options) + options.origin
    secrets = (SECRET, "hunter2", "T0KEN", "S1GN", str(options.authorization), repr(options.keys[0]))
    assert [secret for secret in secrets if secret in shown] == []


def test_what_an_endpoint_says_back_is_hidden() -> None:
    options = read(URL)
    said = f"no /services/T0KEN?sig=S1GN for {options.authorization} (hunter2)"
    assert options.quiet(said) == "no /***?*** for *** (***)"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "2130706433",
        "0177.0.0.1",
        "0x7f.1",
        "127.1",
        "0",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
        "169.254.169.254",
        "10.0.0.7",
        "100.64.0.1",
        "[fe80::1]",
        "[fd00:ec2::254]",
        "0xa9fea9fe",
        "3232235521",
    ],
)
def test_a_forbidden_address_is_refused_at_start(host: str) -> None:
    with pytest.raises(ConfigError, match=r"broker: .* address .* webhooks\.allow"):
        read(f"https://{host}/in")


@pytest.mark.parametrize("allow", [["127.0.0.1"], ["127.0.0.0/8"], "127.0.0.1,10.0.0.0/8", ["2130706433"]])
def test_an_address_may_be_allowed(allow: object) -> None:
    assert read("https://127.0.0.1:8443/in", allow=allow).port == 8443


def test_plain_http_is_refused_unless_the_host_is_named() -> None:
    with pytest.raises(ConfigError, match=r"broker: http:// .*https://.*webhooks\.allow.*webhooks\.unsafe"):
        read("http://hooks.example/in")
    assert read("http://hooks.example/in", allow=["hooks.example"]).port == 80
    assert read("http://hooks.example/in", unsafe=True).scheme == "http"


def test_two_keys_may_be_active() -> None:
    assert len(read(secrets=[SECRET, OLD_SECRET]).keys) == 2
    assert len(read(secrets=f"{SECRET} {OLD_SECRET}").keys) == 2
    with pytest.raises(ConfigError, match=r"webhooks\.secrets: 3 are given"):
        read(secrets=[SECRET, OLD_SECRET, SECRET])


def test_events_are_signed_unless_that_is_unsafe_on_purpose() -> None:
    with pytest.raises(ConfigError, match=r"webhooks\.secrets: is not set"):
        read(secrets=[])
    assert read(secrets=[], unsafe="true").keys == ()


@pytest.mark.parametrize(
    ("secret", "why"),
    [
        ("hunter2hunter2", "begins with whsec_"),
        ("whsec_hunter2!", "must be base64"),
        ("whsec_aHVudGVyMg==", "24 to 64 bytes, and this one has 7"),
    ],
)
def test_a_secret_that_cannot_be_used_is_refused_and_not_repeated(secret: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        read(secrets=[secret])
    assert secret.removeprefix("whsec_") not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"tls_verify": False}, r"webhooks\.tls_verify: .*webhooks\.unsafe"),
        ({"colour": 5}, r"no option webhooks\.colour; known are secrets, allow, "),
        ({"connection": 5}, r"no option webhooks\.connection; .*webhooks\.connections"),
        ({"connections": 0}, r"webhooks\.connections: expected a whole number from 1 to 1,000"),
        ({"connections": "many"}, r"webhooks\.connections: expected"),
        ({"allow": ["*.internal"]}, r"webhooks\.allow: '\*\.internal' is no host"),
        ({"allow": 5}, r"webhooks\.allow: expected a list"),
        ({"unsafe": "perhaps"}, r"webhooks\.unsafe: expected true or false"),
        ({"tls_ca": 5}, r"webhooks\.tls_ca: expected the name of a file"),
    ],
)
def test_an_option_that_is_wrong_is_named(table: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(**table)


@pytest.mark.parametrize(
    "url", ["https://", "https:///in", "https://bücher.example/", "https://hooks.example:port/", "https://a/in out"]
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="broker: "):
        read(url)


def test_a_certificate_authority_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ConfigError, match=r"webhooks\.tls_ca"):
        read(tls_ca="/nowhere/ca.pem").tls()


def test_a_relay_reads_them_from_its_settings() -> None:
    options = {"webhooks": {"secrets": [SECRET]}}
    settings = Settings(database="sqlite:///shop.db", broker="https://10.0.0.7/in", options=options)
    with pytest.raises(ConfigError, match=r"10\.0\.0\.7"):
        Relay(settings)


def test_a_consumer_says_who_receives_webhooks(tmp_path: Path) -> None:
    inbox = Inbox("billing", lambda: sqlite3.connect(tmp_path / "shop.db"))
    with pytest.raises(ConfigError, match="is received by its endpoint"):
        Consumer(inbox, topics=["orders"], broker="https://hooks.example/in")
