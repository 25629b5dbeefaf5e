"""A relay to an endpoint that refuses, fails and asks for a pause: what the suite of relays does not ask."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace

from pillarbox import Event
from pillarbox.telemetry.hooks import Moment
from pillarbox.telemetry.logging import LogMoments, log_to, logger
from servers.webhook_receiver import Received, WebhookReceiver
from tests.integration.relay_shop import AGGREGATES, TRIED, RelayShop, until
from tests.integration.traced_shop import Spans
from tests.integration.webhook_world import SECRET


@pytest.fixture
async def shop(tmp_path: Path) -> RelayShop:
    webhooks = {"secrets": [SECRET], "allow": ["127.0.0.1"], "connections": 10}
    shop = RelayShop(tmp_path / "shop.db", timeout=1, options={"webhooks": webhooks})
    await shop.open()
    return shop


def arrived(received: list[Received], aggregate: int) -> list[int]:
    """Give the numbers of an aggregate's events, first copies only, in the order in which they came."""
    bodies = [json.loads(one.body) for one in received if one.headers["pillarbox-aggregate-id"] == str(aggregate)]
    return list(dict.fromkeys(body["n"] for body in bodies))


def check_arrived(received: list[Received], expected: int) -> int:
    """See that nothing is lost and first copies are in order per aggregate; give how many copies there are."""
    ids = {one.headers["webhook-id"] for one in received}
    assert len(ids) == expected
    assert {one.of_its_key for one in received} == {1}
    for aggregate in range(AGGREGATES):
        assert arrived(received, aggregate) == list(range(expected // AGGREGATES))
    return len(received) - len(ids)


def check_arrived_with_late_ones(received: list[Received], expected: int) -> int:
    """The same, where a call that was given up may still be at work in the endpoint when the next one comes."""
    return check_arrived([one._replace(of_its_key=1) for one in received], expected)


@pytest.mark.parametrize("status", [410, 422, 302])
async def test_an_event_that_is_refused_is_dead_at_once_and_holds_back_its_own_followers_only(
    status: int, shop: RelayShop, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"contains": '"n":3,"of":"7."', "status": status, "body": "no such order"})
    shop.add(250)
    async with shop.relay(webhook_receiver.url):
        await until(lambda: webhook_receiver.count() == 240 + 3)
        await shop.until_heard(Moment.EVENT_DEAD)
        (dead,) = await shop.records("dead")
    assert dead.attempts == 1
    assert "no such order" in str(dead.last_error)
    received = webhook_receiver.received()
    assert arrived(received, 7) == [0, 1, 2]
    assert all(arrived(received, other) == list(range(10)) for other in range(AGGREGATES) if other != 7)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """What the log has, with all of its facts."""
    before, stream = (logger.handlers, logger.level, logger.propagate), io.StringIO()
    log_to(stream, as_json=True)
    yield stream
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.mark.parametrize("status", [400, 500], ids=["dead", "retrying"])
@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        ({"card": "4111-secret"}, 'bad {"card": "4111-secr'),
        ({"card": "4111-secret"}, "card 4111-secret refused"),
        (b"the card 4111-secret", "bad: the card 4111-secret"),
    ],
    ids=["an echo cut off", "one field", "bytes"],
)
async def test_what_an_endpoint_says_is_kept_with_the_event_and_never_logged(
    payload: Any, answer: str, status: int, shop: RelayShop, webhook_receiver: WebhookReceiver, logged: io.StringIO
) -> None:
    webhook_receiver.behave({"status": status, "body": answer})
    kind = "text/plain" if isinstance(payload, bytes) else None
    shop.put(Event("Paid", payload, aggregate=("order", 7), content_type=kind))
    moment = Moment.EVENT_DEAD if status == 400 else Moment.EVENT_RETRYING
    async with shop.relay(webhook_receiver.url, LogMoments()):
        await shop.until_heard(moment)
    (record,) = await shop.records("dead", "retrying")
    assert answer in str(record.last_error)
    (line,) = (line for line in map(json.loads, logged.getvalue().splitlines()) if line["moment"] == moment)
    assert f"the endpoint answered {status}" in line["text"]
    assert "4111" not in logged.getvalue()


async def test_what_an_endpoint_says_is_in_no_trace(
    shop: RelayShop, webhook_receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = Spans()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
    webhook_receiver.behave({"status": 400, "body": "card 4111-secret refused"})
    headers = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    shop.put(Event("Paid", {"card": "4111-secret"}, aggregate=("order", 7), topic="orders", headers=headers))
    async with shop.relay(webhook_receiver.url):
        await shop.until_heard(Moment.EVENT_DEAD)
    (said,) = spans.named("publish orders")
    assert said.status.description == "the endpoint answered 400 Bad Request"
    assert "4111" not in said.to_json()


@pytest.mark.parametrize("rule", [{"status": 503}, {"hang": True}], ids=["refused", "timed out"])
async def test_an_event_that_fails_twice_is_tried_again_and_holds_back_its_followers(
    rule: dict[str, object], shop: RelayShop, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"contains": '"n":3,"of":"7."', "times": 2, **rule})
    shop.add(250)
    async with shop.relay(webhook_receiver.url):
        await until(lambda: webhook_receiver.count() >= 240)
        await shop.until_all_published()
    check_arrived_with_late_ones(webhook_receiver.received(), 250)
    assert Counter(shop.heard)[Moment.EVENT_RETRYING] >= 1
    assert Moment.EVENT_DEAD not in shop.heard


async def test_an_event_on_which_the_endpoint_hangs_up_holds_back_its_own_followers_only(
    shop: RelayShop, webhook_receiver: WebhookReceiver
) -> None:
    webhook_receiver.behave({"contains": '"n":0,"of":"7."', "close": True, "store": False})
    shop.add(250)
    async with shop.relay(webhook_receiver.url):
        await until(lambda: webhook_receiver.count() == 240)
        await shop.until_heard(Moment.EVENT_RETRYING)
        shop.add(1, start=251, topic="later")
        await until(lambda: webhook_receiver.count() == 241)
        (tried,) = await shop.records("retrying", "dead")
    assert "broke before it answered" in str(tried.last_error)
    assert arrived(webhook_receiver.received(), 7) == []


async def test_a_limit_on_the_rate_kills_no_event(shop: RelayShop, webhook_receiver: WebhookReceiver) -> None:
    shop.add(100)
    limit = {"status": 429, "headers": {"retry-after": "1"}}
    webhook_receiver.behave({"contains": '"n":1,', "times": 8, **limit}, {"contains": '"n":2,', "times": 8, **limit})
    async with shop.relay(webhook_receiver.url):
        await shop.until_all_published()
    assert check_arrived(webhook_receiver.received(), 100) == 0
    assert not TRIED & set(shop.heard)
