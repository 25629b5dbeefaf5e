"""Durations and URLs: how they are read and shown."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.core.secrets import without_secrets
from pillarbox.errors import ConfigError
from pillarbox.settings.durations import about, parse_duration, write_duration
from pillarbox.settings.urls import file_of, parse_url


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("5 ms", timedelta(milliseconds=5)),
        ("15 s", timedelta(seconds=15)),
        ("5 min", timedelta(minutes=5)),
        ("7 days", timedelta(days=7)),
        ("1 day", timedelta(days=1)),
        ("2 h", timedelta(hours=2)),
        ("1.5s", timedelta(seconds=1.5)),
    ],
)
def test_durations_are_read_as_people_write_them(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "5", "s", "-5 s", "5 weeks", "5 s 3 ms", "1e9 s", "five s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        parse_duration(text)


def test_a_duration_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="longer than any"):
        parse_duration("9999999999999 days")


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=4000)))
def test_a_written_duration_is_read_back(duration: timedelta) -> None:
    assert parse_duration(write_duration(duration)) == duration


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(seconds=-3), "0 s"),
        (timedelta(seconds=59), "59 s"),
        (timedelta(seconds=119), "1 min"),
        (timedelta(hours=25), "1 day"),
        (timedelta(days=2), "2 days"),
    ],
)
def test_a_time_that_has_passed_is_said_in_one_unit(duration: timedelta, text: str) -> None:
    assert about(duration) == text


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///shop.db", "shop.db"),
        ("sqlite:////var/shop.db", "/var/shop.db"),
        ("sqlite+pysqlite:///shop.db", "shop.db"),
        ("SQLITE+aiosqlite:///a b/shop.db", "a b/shop.db"),
    ],
)
def test_an_sqlite_url_names_a_file(url: str, path: str) -> None:
    assert file_of("database", parse_url("database", url)) == path


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:shop.db", "sqlite:///:memory:", "sqlite://shop.db"])
def test_an_sqlite_url_without_a_file_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"names no file: write sqlite:///shop.db"):
        file_of("database", parse_url("database", url))


def test_an_sqlite_url_with_options_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave them out"):
        file_of("database", parse_url("database", "sqlite:///shop.db?mode=ro"))


@pytest.mark.parametrize("text", ["shop.db", "", "://x", "/var/shop.db"])
def test_what_is_no_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a URL: write for example sqlite:///shop.db"):
        parse_url("database", text)


@pytest.mark.parametrize("text", ["host=db.example dbname=shop", "dbname = shop", "user=a password=b:c host=d"])
def test_a_string_of_libpq_is_refused_with_the_url_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a URL: write postgresql://user@host:5432/shop$"):
        parse_url("database", text)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("rabbitmq://shop:hunter2@localhost/vhost", "rabbitmq://shop:***@localhost/vhost"),
        ("redis://:hunter2@localhost", "redis://:***@localhost"),
        ("postgresql://a:p@ss:word@host/db", "postgresql://a:***@host/db"),
        ("https://host/hook?token=hunter2&x=1", "https://host/***?token=***&x=1"),
        ("https://host/services/hunter2", "https://host/***"),
        ("http://host:8083/", "http://host:8083/"),
        ("postgresql://me:hun/ter 2@host/db", "postgresql://me:***@host/db"),
        ("nats://hunter2@host", "nats://***@host"),
        ("https://hunter2:@host", "https://***@host"),
        ("me:hunter2@host", "me:***@host"),
        ("Server=host;Password=hunter2", "Server=host;Password=***"),
        ("host=db password=hunter2", "host=db password=***"),
        ("kafka://host?a=b;sasl.jaas.config=x;c=d", "kafka://host?a=b;sasl.jaas.config=***;c=d"),
        ("sqlite:////home/me@work/shop.db", "sqlite:////home/me@work/shop.db"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
        ("kafka://one:9092,two:9092", "kafka://one:9092,two:9092"),
    ],
)
def test_secrets_of_a_url_are_hidden(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
