"""Secrets show nowhere: whatever a URL or an option looks like, no error repeats it and `shown` hides it."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox.core.routing import Topic
from pillarbox.core.secrets import HIDDEN, LONGEST_URL, quiet_error, with_quiet_urls, without_secrets
from pillarbox.errors import ConfigError
from pillarbox.settings import Settings
from pillarbox.settings.kinds import known_keys
from pillarbox.settings.urls import file_of, parse_url
from pillarbox.stores.postgres.connection import conninfo
from pillarbox.wiring import Relay

MARK = "hunter2"
NAMES = (
    *("password", "PWD", "client_secret", "access_token", "api.key", "sig", "Authorization", "credentials"),
    *("sasl.jaas.config", "ssl_key_pem", "sasl-mechanism", "passphrase", "p%61ss"),
)

around = st.text("ab1/ @:?&;#%,'\"\\+é\n", max_size=6)
secrets = st.builds("{}hunter2{}".format, around, around)
schemes = st.sampled_from(["postgresql", "sqlite", "sqlite+pysqlite", "kafka", "https", "stdout", "memory", "x"])
users = st.sampled_from(["", "me", "me:", ":", "a b:"])
ends = st.sampled_from(["", "host", "host/db", "one:1,two:2/db?x=1", "host:5432"])


@st.composite
def urls(draw: st.DrawFn) -> str:
    """URLs that hold a secret: before the @, or as an option."""
    scheme, secret, end = draw(schemes), draw(secrets), draw(ends)
    if draw(st.booleans()):
        user = draw(users)
        if scheme == "postgresql" and ":" not in user:  # a database's user without a password is no secret
            user = "me:"
        if ":" not in user:  # what stands before the first colon is a name, and a third slash begins a path
            secret = secret.replace(":", "").lstrip("/")
        return f"{scheme}://{user}{secret}@{end}"
    separator, name = draw(st.sampled_from("?&;#")), draw(st.sampled_from(NAMES))
    return f"{scheme}://{end}{separator}{name}={secret}{draw(st.sampled_from(['', '&x=1', ';y=2']))}"


@contextmanager
def nothing_is_said() -> Iterator[None]:
    """Let an error pass if it and its causes do not say the secret."""
    try:
        yield
    except ConfigError as error:
        said: BaseException | None = error
        while said is not None:
            assert MARK not in str(said)
            said = None if said.__suppress_context__ and said.__cause__ is None else said.__cause__ or said.__context__


@given(urls())
def test_no_error_about_a_url_says_its_secret(url: str) -> None:
    assert MARK not in without_secrets(url)
    with nothing_is_said():
        file_of("database", parse_url("database", url))
    with nothing_is_said():
        Relay(database=url, broker=url)


@given(st.sampled_from(["redis", "rediss", "nats", "tls", "rabbitmq", "amqps", "kafka"]), secrets, ends)
@example("redis", f"{MARK}/rest", "host")
@example("redis", f"x?{MARK}=1", "host")
@example("rabbitmq", f"{MARK}/rest", "host")
@example("nats", f"{MARK}/rest", "host")
@example("kafka", f"x?{MARK}=1", "host")
@example("redis", f"[{MARK}", "host")
def test_no_error_of_a_broker_says_a_password_that_was_not_percent_encoded(scheme: str, secret: str, end: str) -> None:
    with nothing_is_said():
        Relay(database="sqlite:///shop.db", broker=f"{scheme}://shop:{secret}@{end}")


@pytest.mark.parametrize("scheme", ["redis", "nats", "rabbitmq", "kafka"])
@pytest.mark.parametrize("password", ["a/b", "a?b", "a#b", "1/b", "1?unsafe=1"])
def test_a_password_that_was_not_percent_encoded_is_refused_with_the_cure(scheme: str, password: str) -> None:
    with pytest.raises(ConfigError, match=r"an @ stands behind a /, \? or # in its URL: write / as %2F"):
        Relay(database="sqlite:///shop.db", broker=f"{scheme}://shop:{password}@host")


@pytest.mark.parametrize("scheme", ["redis", "nats", "rabbitmq", "kafka"])
@pytest.mark.parametrize("host", ["h:99999", "h:port", "[::1"])
def test_a_host_that_is_none_is_refused(scheme: str, host: str) -> None:
    with pytest.raises(ConfigError, match="the port behind it is no port"):
        Relay(database="sqlite:///shop.db", broker=f"{scheme}://shop:secret@{host}")


@given(urls(), st.sampled_from(known_keys()))
def test_no_error_about_a_setting_says_a_secret_that_stands_in_the_wrong_place(url: str, key: str) -> None:
    with nothing_is_said():
        shown = Settings.load(environment={}, flags={key: url}).shown()
        assert MARK not in repr(list(shown))
    with nothing_is_said():
        Settings.load(environment={f"PILLARBOX_{key.replace('.', '_').upper()}": url})
    with nothing_is_said():
        Settings.load(environment={}, flags={key: [url]})
    with nothing_is_said():
        Settings.load(environment={}, flags={url: "1"})


@given(urls(), secrets, st.sampled_from(NAMES))
def test_options_of_a_broker_are_hidden_at_any_depth(url: str, secret: str, name: str) -> None:
    options = {"servers": [url, [url]], "deep": {"er": {"url": url, name: secret}, name: {"any": secret}}, name: secret}
    settings = Settings(database=url, broker=url, options={"kafka": options}, topics={"key-events": Topic()})
    shown = {one.key: one.value for one in settings.shown()}
    assert MARK not in repr(shown)
    assert MARK not in repr(settings)
    assert shown["topic.key-events.order"] == "aggregate"


@pytest.mark.parametrize("name", NAMES)
def test_an_option_with_a_secret_name_is_hidden(name: str) -> None:
    settings = Settings(options={"kafka": {name: 5, "linger": 5}})
    shown = {one.key: one.value for one in settings.shown()}
    assert (shown[f"kafka.{name}"], shown["kafka.linger"]) == (HIDDEN, 5)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mysql://u:hunter2", "mysql://u:***"),
        ("mysql://u:hunter2/db", "mysql://u:***/db"),
        ("postgres://u:hunter2%40h/db", "postgres://u:***/db"),
        ("password: hunter2, user: me", "password: ***, user: me"),
        ("Bearer hunter2", "Bearer ***"),
        ("Authorization: Bearer hunter2", "Authorization: Bearer ***"),
    ],
)
def test_secrets_are_hidden_in_the_ways_people_write_them(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop@localhost:5432/shop",
        "postgresql+psycopg://shop@localhost/shop?sslmode=require",
        "kafka://a:9092,b:9092",
        "nats://localhost:4222",
        "postgres://[::1]:5432/x",
        "redis://h:6379/0",
        "x://h:/",
    ],
)
def test_a_host_and_its_port_are_no_secret(url: str) -> None:
    assert without_secrets(url) == url


def test_a_topic_that_is_called_like_a_url_does_not_say_its_secret() -> None:
    with nothing_is_said():
        Settings.load(environment={}, flags={'topic."postgres://u:hunter2@h".order': "sideways"})


def test_a_second_at_sign_is_refused_before_a_server_is_asked_for_what_follows_it() -> None:
    with pytest.raises(ConfigError, match="more than one @: write one that belongs to the password as %40"):
        conninfo(f"postgresql://me:a@{MARK}@host/shop", "test")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("host:54x2/shop", "database: port: what was given is no number from 1 to 65535"),
        ("host:99999/shop", "database: port: what was given is no number from 1 to 65535"),
        ("host/shop?sslmode=requre", "database: sslmode: what was given is none of disable, allow, prefer, require,"),
        (
            "host/shop?sslmod=require",
            "database: PostgreSQL knows no parameter 'sslmod': the nearest known one is 'sslmode'",
        ),
    ],
)
def test_a_parameter_that_cannot_be_is_named_without_the_password(place: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        conninfo(f"postgresql://me:{MARK}@{place}", "test")
    assert str(refused.value).startswith(words)
    assert MARK not in "".join(traceback.format_exception(refused.value))


def test_an_unknown_parameter_that_may_be_a_part_of_a_password_is_not_told() -> None:
    with pytest.raises(ConfigError, match="no PostgreSQL URL"):
        conninfo("postgresql://me@host/shop?nightingale=1", "test")


def test_the_password_of_the_hint_is_hidden() -> None:
    settings = Settings.load(environment={"PILLARBOX_INBOX_HINT": f"redis://shop:{MARK}@localhost/0"})
    assert settings.inbox.hint == f"redis://shop:{MARK}@localhost/0"
    assert MARK not in repr(settings)
    assert {one.key: one.value for one in settings.shown()}["inbox.hint"] == "redis://shop:***@localhost/0"


def test_a_url_that_is_too_long_to_be_taken_apart_is_hidden_whole() -> None:
    url = f"redis://shop:{MARK}@localhost/{'0' * LONGEST_URL}"
    assert with_quiet_urls(f"refused by {url}: it is away") == "refused by ***: it is away"


@pytest.mark.parametrize(
    "words",
    [
        "handler: bill is no type of event: write @inbox.handler('OrderPlaced') above it",
        "ann@desk: no route to host:5432",
        "'shop.billing' has no attribute 'inbox'",
    ],
)
def test_an_error_of_somebody_else_keeps_its_words(words: str) -> None:
    assert quiet_error(words) == words


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (f"login shop:{MARK}@localhost failed", "login shop:***@localhost failed"),
        (f"dsn='shop:a@{MARK}@localhost'", "dsn='shop:***@localhost'"),
        (f"postgresql://shop:a {MARK}@localhost/shop: @inbox", "postgresql://shop:***@inbox"),
        (f"api_key={MARK} a@b", "api_key=***"),
        (f"password: {MARK} a", "password: *** a"),
    ],
)
def test_an_error_of_somebody_else_tells_no_secret(words: str, shown: str) -> None:
    assert quiet_error(words) == shown
