"""What an endpoint's status means, and how long a pause it may ask for."""

from datetime import UTC, datetime

import pytest

from pillarbox.brokers.webhook.answers import judge, pause
from pillarbox.errors import BrokerUnavailable, PublishError, PublishRejected

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_published(status: int) -> None:
    assert judge(status, "") is None


@pytest.mark.parametrize(
    "status", [300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 409, 410, 413, 422, 431, 451]
)
def test_what_is_refused_for_good(status: int) -> None:
    assert type(judge(status, "no")) is PublishRejected


@pytest.mark.parametrize("status", [100, 408, 425, 429, 500, 501, 502, 503, 504, 599, 999])
def test_what_is_tried_again(status: int) -> None:
    assert type(judge(status, "no")) is PublishError


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (410, "410 Gone: no such tenant (it is gone for good"),
        (302, "302 Found: no such tenant (redirects are never followed"),
        (422, "answered 422 Unprocessable Entity: no such tenant"),
    ],
)
def test_the_endpoints_own_words_are_kept(status: int, words: str) -> None:
    error = judge(status, "no such tenant")
    assert words in str(error)
    assert error is not None
    assert error.brief == str(error).replace(": no such tenant", "")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120),
        (" 7 ", 7),
        ("Fri, 01 May 2026 12:00:30 GMT", 30),
        ("Fri, 01 May 2026 11:00:00 GMT", 0),
        ("99999999999999999999", 3600),
        ("Fri, 01 May 2099 12:00:00 GMT", 3600),
        ("0", 0),
        ("-5", 0),
        ("soon", 0),
        ("٣", 0),
        ("", 0),
        ("Fri, 31 Dec 2027 23:59:59 +99999999999999", 0),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 3600),
        ("Mon, 01 Jan 0001 00:00:00 +2359", 0),
        ("Fri, 99 Foo 99999 25:61:61 GMT", 0),
    ],
)
def test_an_endpoint_may_ask_for_a_pause(text: str, seconds: float) -> None:
    assert pause(503, {"retry-after": text}, NOW) == pause(429, {"retry-after": text}, NOW) == seconds


def test_a_pause_means_away_and_counts_nothing() -> None:
    error = judge(429, "slow down", pause(429, {"retry-after": "30"}, NOW))
    assert type(error) is BrokerUnavailable
    assert "slow down" in str(error)
    assert "30 s" in str(error)


@pytest.mark.parametrize("status", [200, 301, 410, 500])
def test_other_answers_ask_for_none(status: int) -> None:
    assert pause(status, {"retry-after": "30"}, NOW) == 0
